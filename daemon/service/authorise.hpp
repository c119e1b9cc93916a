#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bus/bus.hpp"
#include "model/lease.hpp"
#include "policies/loader.hpp"
#include "service/accounts.hpp"
#include "service/event.hpp"

namespace numalease::service {

/// What a caller may be allowed to do; each is a polkit action `org.numalease1.<text>`.
enum class Action {
    acquire,               ///< "acquire": cores and memory
    acquire_kernel_state,  ///< "acquire-kernel-state": knobs that everybody on the machine feels
    shield,                ///< "shield": nothing else on the leased CPUs
    drop_caches,           ///< "drop-caches"
    manage,                ///< "manage": another user's lease
};
std::string action_id(Action action);

/// The actions a request needs. `numa-balancing=auto` is the daemon's own choice and needs no more than a lease.
std::vector<Action> actions_of(const model::Request& request);

/// Who may do what where polkit does not answer: root everything; the group everything but dropping caches and other
/// people's leases; nobody else anything.  Errors: denied, with the action and the way out.
model::Result<void> decide_without_polkit(Action action, unsigned uid, bool in_group, const std::string& user,
                                          const std::string& group);

/// Asks polkit where it is on the bus, else the group.
class Authoriser {
public:
    using Verdict = std::function<void(model::Result<void>)>;

    /// `bus` may be null: then there is no polkit.
    Authoriser(Later& later, Accounts& accounts, sd_bus* bus) : later_(later), accounts_(accounts), bus_(bus) {}

    /// `call` is the message to be authorised; `actions` are asked about in turn until one is denied.
    void check(const Held& call, const model::Caller& caller, std::vector<Action> actions, const std::string& group,
               const Verdict& verdict);

private:
    void ask(const Held& call, const model::Caller& caller, const std::shared_ptr<std::vector<Action>>& rest,
             const std::string& group, const Verdict& verdict);
    Later& later_;
    Accounts& accounts_;
    sd_bus* bus_;
};

}  // namespace numalease::service
