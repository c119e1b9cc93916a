#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/schedule.hpp"
#include "core/step.hpp"
#include "service/authorise.hpp"
#include "service/daemon.hpp"
#include "service/denials.hpp"
#include "service/history.hpp"
#include "service/holders.hpp"
#include "service/identity.hpp"
#include "service/observe.hpp"
#include "service/residency.hpp"
#include "service/site.hpp"
#include "service/squatters.hpp"
#include "service/status.hpp"
#include "service/use.hpp"

namespace numalease::service {

/// The object at /org/numalease1 and one below it for each lease, on every connection. A handler is
/// decode → validate → authorise → limit → step → reply.
class Manager {
public:
    struct Parts {
        Daemon* daemon = nullptr;  ///< null: read-only, every changing method is denied
        std::function<const core::State&()> state;
        std::function<About()> about;
        const Site* site = nullptr;
        const Machine* machine = nullptr;
        Observer* observer = nullptr;
        Holders* holders = nullptr;
        Identifier* identifier = nullptr;
        Authoriser* authoriser = nullptr;
        Accounts* accounts = nullptr;
        Denials* denials = nullptr;
        Residencies* residencies = nullptr;
        Uses* uses = nullptr;
        History* history = nullptr;
        Squatters* squatters = nullptr;
    };
    explicit Manager(Parts parts) : parts_(std::move(parts)) {}

    /// Adds the object to a connection.  Errors: io.
    model::Result<void> attach(sd_bus* connection);
    /// Forgets a connection and the calls that still wait on it.
    void detach(sd_bus* connection);
    /// After every step: signals, properties, replies that were waited for, log lines.
    void changed(const core::State& before, const core::State& after, const core::Input& input);
    /// Calls that have not been answered.
    [[nodiscard]] std::size_t pending() const;

private:
    friend struct Vtables;
    struct Wait {
        Held call;
        model::LeaseId lease;
        bool until_active = false;
        std::unique_ptr<sd_bus_track, bus::Deleter<sd_bus_track_unref>> sender;  ///< on a broker: that it is there
    };
    struct PendingJoin {
        Held call;
        model::LeaseId lease;
        std::shared_ptr<Identity> who;
    };
    /// A user's calls that need a verdict.
    struct Turn {
        std::size_t asked = 0;
        std::deque<std::function<void()>> waiting;
    };
    using Known = std::function<void(const std::shared_ptr<Identity>&)>;

    void acquire(const Held& call);
    void wait(const Held& call);
    void join(const Held& call);
    void release(const Held& call);
    void stop(const Held& call);
    void extend(const Held& call);
    void verify(const Held& call);
    void plan(const Held& call);
    void list_leases(const Held& call);
    void list_current(const Held& call);
    void get_lease(const Held& call);
    void get_topology(const Held& call);
    void get_knobs(const Held& call);
    void get_status(const Held& call);
    void cache_residency(const Held& call);
    void history(const Held& call);
    void get_squatters(const Held& call);
    void ask(const Held& call);

    model::Result<model::Request> read_request(const Held& call) const;
    model::Result<const model::Lease*> read_lease(const Held& call) const;
    model::Result<const model::Lease*> find_lease(const model::LeaseId& id) const;
    model::Result<model::LeaseId> read_id(const Held& call) const;
    void identified(const Held& call, Known next);
    void authorised(const Held& call, const std::shared_ptr<Identity>& who, const std::vector<Action>& actions,
                    std::function<void()> next);
    void in_turn(const Held& call, unsigned uid, std::function<void()> ask);
    void begin_turns(unsigned uid);
    void end_turn(unsigned uid);
    void as_owner(const Held& call, const model::LeaseId& id, Known next);
    void grant(const Held& call, const model::Request& request, const std::shared_ptr<Identity>& who);
    void pass_on(const Held& call, const model::LeaseId& id, const std::string& text, unsigned uid);
    /// With what is not in the state: how busy it is, how long it has left, who was on its CPUs at the grant, when its
    /// turn comes.
    [[nodiscard]] model::Dict dict_of(const model::Lease& lease);
    [[nodiscard]] const std::map<model::LeaseId, core::Forecast>& forecasts();
    void lease_changed(const model::Lease* before, const model::Lease* after);
    static int on_waiter_gone(sd_bus_track* track, void* data);
    void answer_waits(const model::LeaseId& id, const model::Lease* lease);
    void answer_join(const core::Done& done);
    const model::Lease* lease_at(const char* path) const;

    Parts parts_;
    std::set<sd_bus*> connections_;
    std::vector<Wait> waits_;
    std::map<std::uint64_t, PendingJoin> joins_;
    const core::State* removed_from_ = nullptr;  ///< while InterfacesRemoved is sent: where the object still is
    std::map<unsigned, Turn> turns_;             ///< by uid
    std::map<unsigned, model::Micros> asked_;    ///< by uid, when last; boot clock
    Recent<std::monostate, std::vector<std::string>> rivals_{model::Micros(2'000'000)};  ///< a walk through /proc
    Recent<std::monostate, std::map<model::LeaseId, core::Forecast>> forecasts_{model::Micros(1'000'000)};
    std::shared_ptr<int> token_ = std::make_shared<int>();  ///< held by every call that is being looked into
};

/// A text that Ask may pass on.  Errors: invalid_request.
model::Result<void> check_asked(std::string_view text);

/// What a Wait gets at this moment: nothing yet, the lease, or why it will never come. `stuck`: core::is_stuck.
std::optional<model::Result<model::Dict>> wait_answer(const model::Lease& lease, bool until_active, bool stuck = false);

}  // namespace numalease::service
