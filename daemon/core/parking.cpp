#include <algorithm>

#include "core/stepper.hpp"

// A lease whose holder is gone and may come back: a named lease, and a unit that systemd starts again. It keeps what it
// has for the grace time, and the same holder takes it up without queueing.

namespace numalease::core {

using model::ConfinementKind;
using model::Errc;
using model::Error;
using model::Lease;
using model::LeaseState;

namespace {

constexpr model::Micros kAskAgain{1'000'000};

/// What a request leases, without what is said to people or about waiting.
model::Request essence(model::Request request) {
    request.command.clear();
    request.reason.clear();
    request.wait = {};
    return request;
}

bool leases_the_same(const model::Request& one, const model::Request& other) { return essence(one) == essence(other); }

}  // namespace

bool Stepper::may_come_back(const Lease& lease) {
    const auto& it = lease.confinement;
    // One that was taken up again and is being confined anew has been given before, too.
    const bool given =
        lease.state == LeaseState::active || (lease.state == LeaseState::preparing && lease.started.boot.count() != 0);
    const bool returns = it.kind == ConfinementKind::slice ||
                         (it.kind == ConfinementKind::unit && (it.whole_unit || lease.state == LeaseState::preparing));
    return given && returns && lease.signals_sent == 0 && lease.request.grace.count() > 0;
}

void Stepper::park(Lease& lease, const std::string& why) {
    lease.state = LeaseState::active;
    lease.stage = model::Stage::done;
    lease.reason = why + "; kept for " + model::duration_text(lease.request.grace);
    lease.holders.clear();
    lease.parked = now_;
    if (!is_parked_unit(lease)) return;
    // The mask must be off before the unit's next run, which may be by another command.
    take_off(lease);
    ask_unit(lease.id);
}

bool Stepper::is_parked_unit(const Lease& lease) {
    return lease.parked && lease.confinement.kind == ConfinementKind::unit;
}

void Stepper::unpark(Lease& lease) {
    lease.parked.reset();
    lease.reason = "granted";
    state_.unit_asks.erase(lease.id);
}

void Stepper::ask_unit(const model::LeaseId& id) {
    const auto op = state_.next_op++;
    state_.unit_asks[id] = {.op = op};
    effects_.push_back(AskUnit{op, id});
}

/// Returns whether this was the answer about a parked lease's unit.
bool Stepper::unit_answered(const Done& done) {
    const auto ask = std::ranges::find_if(state_.unit_asks, [&](const auto& it) { return it.second.op == done.op; });
    if (ask == state_.unit_asks.end()) return false;
    auto& lease = state_.leases.at(ask->first);
    if (done.unit_is_over)
        begin_ending(lease, why_it_ended(lease, lease.confinement.unit + " has ended"));
    else
        ask->second = {.op = 0, .at = now_.boot + kAskAgain};
    return true;
}

void Stepper::look_at_parked(Lease& lease) {
    const auto facts = observed_.named.find(lease.id);
    const bool inhabited = facts != observed_.named.end() && facts->second.inhabited;
    if (lease.expires && *lease.expires <= now_.boot)  // whoever runs in it gets his signals
        return inhabited ? unpark(lease) : begin_ending(lease, "its time is up");
    if (lease.parked->boot + lease.request.grace <= now_.boot) {
        if (inhabited) return unpark(lease);
        return begin_ending(lease, "nobody took it up again within " + model::duration_text(lease.request.grace));
    }
    const auto ask = state_.unit_asks.find(lease.id);
    if (ask != state_.unit_asks.end() && ask->second.op == 0 && ask->second.at <= now_.boot) ask_unit(lease.id);
}

/// Whoever held a parked lease takes it up: returns whether that answers the request.
bool Stepper::take_up(const Acquire& input) {
    if (!input.request.name.empty()) return take_up_named(input);
    const auto wanted = choose_confinement(input.caller, {}, observed_.systemd);
    if (wanted.kind != ConfinementKind::unit) return false;
    for (const auto& id :
         state_.leases.begun_where([&](const Lease& it) { return it.parked && it.confinement.unit == wanted.unit; })) {
        auto& lease = state_.leases.edit(id);
        if (lease.caller.uid != input.caller.uid || !leases_the_same(lease.request, input.request)) {
            begin_ending(lease, "the next run of " + wanted.unit + " asks for something else");
            return false;
        }
        unpark(lease);
        state_.unit_retries.erase(id);
        lease.caller = input.caller;
        lease.holders = {input.caller.process};
        lease.state = LeaseState::preparing;  // it has all but its confinement
        lease.stage = model::Stage::hugepages;
        lease.verified = {};  // it was another engine's
        acquired_ = id;
        return true;
    }
    return false;
}

bool Stepper::take_up_named(const Acquire& input) {
    const auto& name = input.request.name;
    const auto answer = [&](Errc code, std::string text) {
        refusal_ = Error{code, std::move(text)};
        return true;
    };
    if (!observed_.systemd) return answer(Errc::unsupported, "name: a named lease needs systemd, whose slice it is");
    for (const auto& id : state_.leases.where([&](const Lease& it) {
             return it.request.name == name && !model::is_over(it.state) && it.state != LeaseState::ending;
         })) {
        auto& lease = state_.leases.edit(id);
        const auto found = observed_.named.find(id);
        const auto facts = found == observed_.named.end() ? NamedFacts{} : found->second;
        if (lease.caller.uid != input.caller.uid)
            return answer(Errc::denied, "the lease '" + name + "' (" + id + ") is held for uid " +
                                            std::to_string(lease.caller.uid) + "; use another name");
        if (lease.state != LeaseState::active || facts.held)
            return answer(Errc::not_now, "the lease '" + name + "' (" + id + ") is held by process " +
                                             std::to_string(lease.caller.process.pid) +
                                             " already; to end it: numa-leasectl stop " + name);
        if (lease.signals_sent != 0)
            return answer(Errc::not_now, "the lease '" + name + "' (" + id + ") is being stopped; ask again");
        if (leases_the_same(lease.request, input.request)) {
            unpark(lease);
            lease.caller = input.caller;
            lease.caller.parent.clear();
            lease.holders = {input.caller.process};
            if (!facts.inhabited) lease.verified = {};
            acquired_ = id;
            return true;
        }
        if (facts.inhabited)
            return answer(Errc::in_use, lease.confinement.unit + " still has processes, which run in " + id +
                                            " as it was asked for before; end them first");
        begin_ending(lease, "it is asked for anew, with other fields");
        return false;
    }
    return false;
}

}  // namespace numalease::core
