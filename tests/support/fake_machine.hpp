#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/step.hpp"

namespace numalease::test {

/// A pool of huge pages that behaves like the kernel's (mm/hugetlb.c, set_max_huge_pages).  Units: pages.
struct FakePool {
    std::uint64_t persistent = 0;
    std::uint64_t surplus = 0;
    std::uint64_t used = 0;
    std::uint64_t room = 1000;  ///< pages the node can give altogether

    [[nodiscard]] std::uint64_t total() const { return persistent + surplus; }
    [[nodiscard]] std::uint64_t free() const { return total() - used; }
    void write(std::uint64_t target);
    /// A process frees `pages`: surplus pages go back to the system.
    void unuse(std::uint64_t pages);
    [[nodiscard]] model::PoolReading reading() const {
        return {.total = total(), .surplus = surplus, .free = free(), .global_free = free(), .global_reserved = 0};
    }
};

/// Thrown where the daemon is to die.
struct Crash {};

/// The daemon's shell around the pure step, with a kernel and a journal in memory. It can die at any point between two
/// actions, and checks the laws at each of them.
class FakeMachine {
public:
    explicit FakeMachine(model::Topology topology);
    virtual ~FakeMachine() = default;
    FakeMachine(const FakeMachine&) = default;
    FakeMachine& operator=(const FakeMachine&) = default;

    std::map<model::KnobKey, std::string> knobs;
    std::map<model::KnobKey, FakePool> pools;
    std::set<model::KnobKey> refusing;                ///< writes to these fail with EACCES
    std::optional<model::Error> unconfine_error;      ///< systemd does not put a unit back
    std::string cgroup;                               ///< of every caller
    std::map<std::string, model::CpuSet> partitions;  ///< by cgroup
    std::string partition_problem;                    ///< the kernel does not make one, and says this
    std::string shield_in_the_way;                    ///< why no partition can be begun
    std::set<std::string> alive;                      ///< leases whose holder lives
    std::map<model::UnitProperty, std::string> unit;  ///< properties of the one unit there is
    std::map<int, model::CpuSet> masks;               ///< of threads; odd ones are in that unit
    bool keeper_missing = true;                       ///< the first change brings the controller for everybody
    std::set<std::string> inhabited;                  ///< named leases whose slice has processes
    bool whole_unit = false;                          ///< the caller is its unit's main process
    bool unit_is_over = false;                        ///< of every parked lease: systemd will not start it again
    core::Observed observed;
    core::State state;
    std::vector<model::Record> journal;
    std::vector<std::string> problems;  ///< broken laws and violated invariants
    std::vector<std::string> reports;
    std::vector<int> signals;
    std::function<void(const core::Effect&)> before_effect;
    model::Instant now{.boot = model::Micros(1'000'000), .real = model::Micros(0)};
    std::size_t actions = 0;                 ///< journal appends and effects so far
    std::optional<std::size_t> crash_after;  ///< die after that many actions

    bool light = false;                         ///< without a journal and its checks
    bool keep_whole_journal = false;            ///< never compacted
    std::optional<std::size_t> cut_journal_at;  ///< die in the append that would pass so many records

    /// One input and everything that follows from it. Returns the refusal, if any.
    std::optional<model::Error> handle(const core::Input& input);
    /// Acquires for a caller that may use the whole machine; returns the lease's id, empty where refused.
    std::string acquire(const std::string& options, unsigned uid = 0, const std::string& parent = {});
    void holder_gone(std::string id);
    /// The process dies and a new one replays the journal.
    void restart();
    /// Lets time pass until no deadline is left or `limit` ticks are over.
    void settle(unsigned limit = 64);
    [[nodiscard]] const model::Lease& lease(const std::string& id) const { return state.leases.at(id); }
    [[nodiscard]] model::Caller caller(unsigned uid = 0) const;
    model::Error last_refusal;

protected:
    /// The kernel and the journal: in memory here, real ones in tests/integration.
    [[nodiscard]] virtual core::KnobReading read(const model::KnobKey& key) const;
    virtual std::optional<model::Error> write(const model::KnobKey& key, const std::string& value);
    virtual void resize(const model::KnobKey& key, std::uint64_t target, std::uint64_t to_surplus);
    virtual void append(const std::vector<model::Record>& records);
    virtual void reload() {}

private:
    void act();
    core::Done inspect(const core::InspectUnit& effect) const;
    void confine(const core::Confine& effect, model::Confinement& confinement);
    void unconfine(const model::Confinement& confinement);
    void lose_masks();
    void restore_masks(const std::vector<model::ThreadMask>& kept, bool inside_too);
    core::Observed observe(const core::Input& input) const;
    void perform(const core::Effect& effect, std::deque<core::Input>& inputs);
    void check_journal();
    void shield(const core::Confine& effect, model::Confinement& confinement);
    void check_recorded(const model::KnobKey& key, const std::string& value);
    int next_pid_ = 1000;
    std::string acquired_;  ///< by the last input
};

/// Runs a scenario to its end, or until the daemon dies in it.
template <typename Scenario>
void until_crash(FakeMachine& machine, const Scenario& scenario) {
    try {
        scenario(machine);
    } catch (const Crash&) {
    }
}

/// "--node 0 numa-balancing=off required=numa-balancing": fields of a request separated by blanks.
model::Request request(const std::string& fields);

/// One socket, `nodes` nodes of `cores` cores with two threads each, 64 GiB a node.
model::Topology simple_topology(unsigned nodes, unsigned cores);

}  // namespace numalease::test
