#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/step.hpp"
#include "host/process.hpp"
#include "host/threads.hpp"
#include "service/event.hpp"
#include "service/machine.hpp"
#include "service/systemd.hpp"

namespace numalease::service {

inline constexpr std::uint64_t kShieldPolls = 40;  ///< 2 s together: as long as systemd takes to remove a cgroup
/// What the kernel and systemd do after a call has returned is waited for this often, this long apart: 2 s together.
inline constexpr std::uint64_t kPolls = 1'000;
inline constexpr std::uint64_t kPollUsec = 2'000;

/// Puts confinement in force through systemd, reads it back from the effective files, and takes it away again.
/// Which kind a lease gets is core's decision; this only carries it out.
///
/// scope: StartTransientUnit → JobRemoved → the process's own cgroup → cpuset.cpus.effective → Done
/// unit:  SetUnitProperties (runtime) → the unit's cgroup → cpuset.cpus.effective → Done; taken away as DESIGN §4 says
/// slice: SetUnitProperties (runtime) on the slice of a named lease, before anybody joins
/// affinity: the client does it; a tracking cgroup where one can be made, so that the last process ends the lease
class Confiner {
public:
    /// `bus` may be null: then there is no systemd here.
    Confiner(Later& later, const Machine& machine, sd_bus* bus, std::function<const core::State&()> state,
             std::function<void(core::Done)> done);

    /// Finds out whether a systemd manager is on the bus (waits: only before anything is served), and follows it.
    void start();
    [[nodiscard]] bool available() const { return available_; }

    // Each of these answers with one Done, from the loop or before it returns.
    /// Priors of a unit, masks of threads, and whether a shield can be had.
    /// Errors: not_now where somebody has a shield's CPUs for himself; what systemd says of a unit; io.
    void inspect(std::uint64_t op, const model::Lease& lease);
    /// `process`: the caller, or who joins the lease, which is active then.
    /// Errors: io where systemd does not do it, the process is gone, or the effective files do not follow in 2 s;
    /// unsupported where a unit has no cpuset controller, and where who joins is not to be moved.
    void confine(std::uint64_t op, const model::Lease& lease, const model::Process& process);
    /// Errors: io where systemd does not answer or something could not be put back; the same may be asked again.
    void unconfine(std::uint64_t op, const model::Lease& lease, const model::Topology& topology);
    /// Whether the unit of a parked lease has ended for good; the answer is Done::unit_is_over.
    void ask_unit(std::uint64_t op, const model::Lease& lease);
    /// Removes the tracking cgroup of a lease that is over, and the folder of a slice that nobody is in.
    void forget(const model::Lease& lease);
    /// A CPU has gone or come: what the last lease's end would take from others' threads is kept from now on.
    void keep_controller();

private:
    /// One operation under way.
    struct Job {
        std::uint64_t op = 0;
        model::Lease lease;
        model::Process process;
        model::CpuSet online;
        model::CpuSet possible;  ///< with those that are offline
        model::NodeSet nodes;
        std::uint64_t polls_left = 0;
        std::vector<model::UnitSetting> restored;  ///< putting back: those that are still ours
        std::vector<model::ThreadMask> masks_now;  ///< putting back: before the shield came down
        bool unlinked = false;                     ///< putting back: a file that systemd has read is gone
        std::string note;
    };
    using JobPtr = std::shared_ptr<Job>;
    using Next = std::function<void(model::Result<sd_bus_message*>)>;

    void finish(const JobPtr& job);
    void inspect_unit(const JobPtr& job);
    void give_up(const JobPtr& job, model::Error error);
    void refuse(const JobPtr& job, const model::Error& error);
    void read_masks(const JobPtr& job);
    const host::ThreadMasks& thread_masks();
    void ensure_keepers(const JobPtr& job, const std::function<void()>& next);
    void ensure_keeper(const JobPtr& job, std::vector<std::string> slices, const std::function<void()>& next);
    void await_start(const JobPtr& job, const std::string& unit, bus::Message call, std::function<void()> started,
                     const std::function<void(model::Error)>& failed);
    void start_scope(const JobPtr& job);
    void send_scope(const JobPtr& job);
    void scope_is_answered();
    void attach(const JobPtr& job);
    void join_unit(const JobPtr& job);
    void set_unit(const JobPtr& job);
    void set_slice(const JobPtr& job);
    void verify_slice(const JobPtr& job);
    void join_slice(const JobPtr& job);
    void look_at_unit(const JobPtr& job);
    void answer_about_unit(const JobPtr& job, bool over);
    void track(const JobPtr& job);
    void verify(const JobPtr& job);
    void put_back(const JobPtr& job);
    void widen(const JobPtr& job);
    void await_widened(const JobPtr& job);
    void unset(const JobPtr& job);
    void unlink_ours(const JobPtr& job);
    void restore_masks(const JobPtr& job);
    void await_reload(const JobPtr& job);
    void send_reload();
    void set_properties(const std::string& unit, const systemd::Settings& settings, Next next);
    /// Asks a unit about itself. `next` is not called for a unit that systemd has not loaded: then `otherwise` is.
    void read_facts(const std::string& unit, const std::function<void(const systemd::UnitFacts&)>& next,
                    const std::function<void(model::Error)>& otherwise);
    void note_priors(const JobPtr& job, const systemd::UnitFacts& facts) const;
    [[nodiscard]] bool is_in_force(const Job& job, const host::CgroupFacts& facts) const;
    void raise_memlock(const Job& job) const;
    // confine_shield.cpp
    void await_room_for_shield(const JobPtr& job, const std::function<void()>& next);
    [[nodiscard]] systemd::Surroundings surroundings_of(const Job& job) const;
    [[nodiscard]] std::string cgroup_of(const Job& job) const;
    void keep_below_callers_limit(Job& job) const;
    [[nodiscard]] model::CpuSet cpus_of_slice(const model::Shield& shield) const;
    void await_shield_slice(const JobPtr& job);
    void size_slice(const JobPtr& job, const std::function<void()>& next);
    void await_slice(const JobPtr& job, const std::function<void()>& next);
    void raise_shield(const JobPtr& job);
    void begin_shield(const JobPtr& job);
    void add_masks_of_shields(const model::Lease& lease, host::ThreadMasks& masks) const;
    void await_released(const JobPtr& job, const std::function<void()>& next);
    void lower_shield(const JobPtr& job, const std::function<void()>& next);
    /// Where systemd keeps a runtime property of `unit`; empty where there is none.
    [[nodiscard]] std::string dropin(const std::string& unit, model::UnitProperty property) const;
    /// Does that file hold one of `values` and nothing else? True where there is no file.
    [[nodiscard]] bool dropin_holds(const std::string& unit, model::UnitProperty property,
                                    const std::vector<std::string>& values) const;
    [[nodiscard]] static std::string everything(const Job& job, model::UnitProperty property);
    static int on_job_removed(sd_bus_message* message, void* data, sd_bus_error* error);
    static int on_owner_changed(sd_bus_message* message, void* data, sd_bus_error* error);

    Later& later_;
    const Machine& machine_;
    sd_bus* bus_;
    std::function<const core::State&()> state_;
    std::function<void(core::Done)> done_;
    bool available_ = false;
    bus::Slot removed_slot_;
    bus::Slot owner_slot_;
    struct Start {
        JobPtr job;
        std::function<void()> started;
        std::function<void(model::Error)> failed;
    };
    std::multimap<std::string, Start> starting_;  ///< by unit, until systemd's job for it is over
    std::size_t scopes_starting_ = 0;
    std::deque<JobPtr> held_back_;  ///< scopes for which systemd is asked when others have started
    std::vector<JobPtr> unloaded_;  ///< wait until systemd has forgotten a drop-in
    bool reloading_ = false;
    host::ThreadMasks masks_;
    model::Micros masks_good_until_{0};  ///< boot clock
};

/// CPUs that are online or may come to be; `online` where the kernel does not say.
model::CpuSet possible_cpus(const host::Root& root, const model::CpuSet& online);

/// True where a drop-in holds nothing but comments, one section, and `property`, each time empty or set to one of
/// `values`: what systemd writes when we set it. Only such a file is unlinked.
bool is_own_dropin(std::string_view text, std::string_view property, const std::vector<std::string>& values);

}  // namespace numalease::service
