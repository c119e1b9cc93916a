#include "core/step.hpp"

#include <algorithm>
#include <csignal>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Errc;
using model::Error;
using model::Lease;
using model::LeaseState;

namespace {

/// When somebody is to be told that a lease with an end is about to end.
model::Micros warning_of(const Lease& lease) {
    return *lease.expires - std::min(lease.request.warn.before, (*lease.expires - lease.started.boot) / 10);
}

/// When a lease must be looked at, if nothing happens before.
std::optional<model::Micros> deadline_of(const Lease& lease) {
    std::optional<model::Micros> out;
    const auto at = [&](model::Micros when) { out = out ? std::min(*out, when) : when; };
    if (lease.parked) at(lease.parked->boot + lease.request.grace);
    if (lease.state == LeaseState::queued && !lease.request.wait.forever)
        at(lease.queued.boot + lease.request.wait.time);
    if (lease.state == LeaseState::active && lease.expires) {
        at(*lease.expires);
        if (!lease.parked && !lease.warned && lease.signals_sent == 0) at(warning_of(lease));
    }
    return out;
}

}  // namespace

Stepper::Stepper(const State& state, const Observed& observed, model::Instant now)
    : state_(state), old_(state), observed_(observed), now_(now) {}

void Stepper::operator()(const Join& input) {
    const auto found = state_.leases.find(input.lease);
    if (found == state_.leases.end() || found->second.state != LeaseState::active) {
        refusal_ = Error{Errc::no_such_lease, "no active lease " + input.lease};
        return;
    }
    // The caller stays: it is what the lease is named after, and where its unit is read from.
    std::erase_if(state_.leases.edit(input.lease).holders,
                  [&](const model::Process& it) { return std::ranges::find(input.dead, it) != input.dead.end(); });
    const auto op = lease_op(input.lease);
    state_.joins[op] = input.process;
    effects_.push_back(Confine{op, input.lease, input.process});
}

void Stepper::operator()(const HoldersGone& input) {
    std::vector<model::LeaseId> known;
    std::ranges::copy_if(input.leases, std::back_inserter(known), [&](const model::LeaseId& id) {
        const auto* lease = std::as_const(state_.leases).get(id);
        return lease != nullptr && !model::is_over(lease->state);
    });
    serve_later_ =
        is_crowded() && std::ranges::all_of(known, [&](const model::LeaseId& id) { return waits_in_crowd(id); });
    for (const auto& id : known) holder_gone(state_.leases.edit(id));
}

void Stepper::holder_gone(Lease& lease) {
    if (lease.state == LeaseState::ending || lease.parked) return;
    if (may_come_back(lease)) return park(lease, why_it_ended(lease, "its last process ended"));
    if (lease.state != LeaseState::active) lease.failure = Errc::not_now;
    begin_ending(lease, lease.signals_sent != 0     ? lease.reason
                        : lease.failure.has_value() ? "the client vanished"
                                                    : why_it_ended(lease, "its last process ended"));
}

void Stepper::operator()(const Release& input) {
    const auto found = state_.leases.find(input.lease);
    if (found == state_.leases.end() || model::is_over(found->second.state)) {
        refusal_ = Error{Errc::no_such_lease, "no lease " + input.lease};
        return;
    }
    if (input.alive && found->second.state == LeaseState::active) {
        refusal_ =
            Error{Errc::in_use, input.lease + ": its processes are still alive; use numa-leasectl stop " + input.lease};
        return;
    }
    begin_ending(state_.leases.edit(input.lease), "released");
}

void Stepper::operator()(const Stop& input) {
    const auto found = state_.leases.find(input.lease);
    if (found == state_.leases.end() || model::is_over(found->second.state)) {
        refusal_ = Error{Errc::no_such_lease, "no lease " + input.lease};
        return;
    }
    serve_later_ = waits_in_crowd(input.lease);
    auto& lease = state_.leases.edit(input.lease);
    if (lease.state == LeaseState::ending) return;
    if (lease.state != LeaseState::active) {
        lease.failure = Errc::not_now;
        begin_ending(lease, "stopped by " + input.by + " before it began");
        return;
    }
    if (lease.parked) {
        const auto facts = observed_.named.find(lease.id);
        if (facts == observed_.named.end() || !facts->second.inhabited)
            return begin_ending(lease, "stopped by " + input.by);
        unpark(lease);
    }
    if (lease.signals_sent > 1) return;
    // It brings the end nearer, and never puts it off: neither a limit's nor another's stop.
    auto end = now_.boot + input.grace;
    if (lease.expires)
        end = std::min(end, *lease.expires + (lease.signals_sent == 0 ? kExpiryGrace : model::Micros(0)));
    lease.reason = "stopped by " + input.by;
    lease.expires = end;
    lease.signals_sent = 1;
    effects_.push_back(Kill{input.lease, SIGTERM});
}

void Stepper::operator()(const Extend& input) {
    const auto found = state_.leases.find(input.lease);
    if (found == state_.leases.end() || found->second.state != LeaseState::active) {
        refusal_ = Error{Errc::no_such_lease, "no active lease " + input.lease};
        return;
    }
    if (auto refusal = extension_refusal(found->second, input)) {
        refusal_ = std::move(refusal);
        return;
    }
    auto& lease = state_.leases.edit(input.lease);
    lease.expires = *lease.expires + input.by;
    lease.warned = false;
}

void Stepper::operator()(const Done& input) {
    for (auto& [key, row] : state_.ledger)
        if (row.in_flight && row.op == input.op) {
            row_done(row, input);
            return;
        }
    if (!unit_answered(input)) lease_op_done(input);
}

void Stepper::operator()(const Tick&) {
    retry_units();
    const auto due = [&](const Lease& it) {
        const auto when = deadline_of(it);
        return when && *when <= now_.boot;
    };
    for (const auto& id : state_.leases.where(due)) time_has_come(state_.leases.edit(id));
    for (const auto& id : state_.leases.begun_where([](const Lease& it) { return it.parked.has_value(); }))
        look_at_parked(state_.leases.edit(id));
}

/// For a lease whose deadline is over, but for a parked one's.
void Stepper::time_has_come(Lease& lease) {
    if (lease.state == LeaseState::queued) {
        const auto why = lease.in_the_way.empty() ? std::string() : ": " + lease.in_the_way.front();
        return refuse(lease, {Errc::not_now, "waited " + model::duration_text(lease.request.wait.time) + why});
    }
    if (lease.parked || lease.state != LeaseState::active || !lease.expires) return;
    if (*lease.expires > now_.boot) {
        lease.warned = true;
        effects_.push_back(Warn{lease.id, *lease.expires - now_.boot});
        if (const int signal = model::warning_signal(lease.request.warn.signal); signal != 0)
            effects_.push_back(Kill{lease.id, signal});
        return;
    }
    if (lease.signals_sent == 0) {
        lease.reason = "its time is up";
        lease.signals_sent = 1;
        lease.expires = now_.boot + kExpiryGrace;
        effects_.push_back(Kill{lease.id, SIGTERM});
    } else {
        lease.signals_sent = 2;
        lease.expires.reset();
        effects_.push_back(Kill{lease.id, SIGKILL});
    }
}

void Stepper::recover_active(Lease& lease, bool alive) {
    const std::string why = "its last process ended while no daemon ran";
    if (lease.parked) {
        // Whether its unit was put back is not known, nor what has become of it.
        if (lease.confinement.kind != model::ConfinementKind::unit) return;
        if (has_touched_machine(lease)) unconfine(lease.id);
        return ask_unit(lease.id);
    }
    if (alive) return;
    may_come_back(lease) ? park(lease, why) : begin_ending(lease, why);
}

void Stepper::operator()(const Recover& input) {
    for (const auto& id : state_.leases.where([](const Lease& it) { return !model::is_over(it.state); })) {
        auto& lease = state_.leases.edit(id);
        switch (lease.state) {
            case LeaseState::queued:  // who still waits keeps the place
                if (!input.alive.contains(id)) refuse(lease, {Errc::not_now, "its caller ended while no daemon ran"});
                break;
            case LeaseState::preparing:
                if (may_come_back(lease)) {
                    park(lease, "the daemon restarted while it was taken up again");
                    break;
                }
                lease.failure = Errc::not_now;
                begin_ending(lease, "the daemon restarted while it was being prepared");
                break;
            case LeaseState::active: recover_active(lease, input.alive.contains(id)); break;
            case LeaseState::ending:
                // The journal's last batch may be torn between the lease and what it lets go of.
                let_everything_go(lease);
                // Putting a unit back can be done twice; whether the first time got to its end is not known.
                if (has_touched_machine(lease)) unconfine(id);
                break;
            default: break;
        }
    }
}

void Stepper::operator()(const Shutdown& input) {
    state_.stopping = true;
    for (const auto& id : state_.leases.where([](const Lease& it) { return !model::is_over(it.state); })) {
        auto& lease = state_.leases.edit(id);
        if (lease.state == LeaseState::queued) {
            if (!input.keeps_leases)
                refuse(lease, {Errc::not_now, "the daemon is stopping; ask again when it is back"});
        } else if (!(input.keeps_leases && (lease.state == LeaseState::active || may_come_back(lease)))) {
            const bool begun = lease.state != LeaseState::preparing;
            if (!begun) lease.failure = Errc::not_now;
            begin_ending(lease, begun ? "the daemon was stopped; its workload was left running"
                                      : "the daemon is stopping; ask again when it is back");
        }
    }
}

/// Nothing to undo or redo: the kernel narrows a cpuset with its CPUs and widens it again. It only has to be said.
void Stepper::look_for_offline_cpus() {
    const auto offline = [&](const Lease& it) -> model::CpuSet {
        if (it.state != LeaseState::active) return {};
        return it.placement.cpus - observed_.topology.online;
    };
    for (const auto& id : state_.leases.begun_where([&](const Lease& it) { return !(offline(it) == it.offline); })) {
        auto& lease = state_.leases.edit(id);
        lease.offline = offline(lease);
    }
}

Step Stepper::finish() && {
    if (!serve_later_)
        state_.queue_retry_at.reset();
    else if (!state_.queue_retry_at)
        state_.queue_retry_at = now_.boot + kQueueRetry;
    for (bool changed = true; changed;) {
        changed = reconcile_rows();
        for (const auto& id :
             state_.leases.begun_where([](const Lease& it) { return it.state == LeaseState::preparing; }))
            changed = advance(state_.leases.edit(id)) || changed;
        changed = finish_endings() || changed;
        const auto waiting = state_.queue.size();
        if (!state_.stopping && !serve_later_) serve_queue();
        changed = changed || state_.queue.size() != waiting;
    }
    look_for_offline_cpus();
    drop_old_ended();
    state_.leases.settle();
    auto records = changes(old_, state_);
    return {.next = std::move(state_),
            .records = std::move(records),
            .effects = std::move(effects_),
            .reports = std::move(reports_),
            .refusal = std::move(refusal_),
            .lease = std::move(acquired_)};
}

Step step(const State& state, const Input& input, const Observed& observed, model::Instant now) {
    Stepper stepper(state, observed, now);
    std::visit(stepper, input);
    return std::move(stepper).finish();
}

std::expected<model::Placement, NoPlace> plan(const State& state, const Observed& observed,
                                              const model::Request& request, const model::Caller& caller,
                                              model::Instant now) {
    const Stepper stepper(state, observed, now);
    return stepper.plan(Lease{.caller = caller, .request = request});
}

std::vector<model::KnobKey> watched(const State& state, const Input& input, const model::Topology& topology) {
    std::set<model::KnobKey> keys;
    for (const auto& [key, row] : state.ledger) keys.insert(key);
    const auto named_by = [&](const model::Request& request) {
        using model::Knob;
        keys.insert({.knob = Knob::numa_balancing});
        if (request.thp != "keep") keys.insert({.knob = Knob::thp_enabled});
        if (request.thp_defrag != "keep") keys.insert({.knob = Knob::thp_defrag});
        if (request.zone_reclaim != "keep") keys.insert({.knob = Knob::zone_reclaim_mode});
        const bool weighted = request.mempolicy == model::Mempolicy::weighted;
        if (weighted) keys.insert({.knob = Knob::weight_auto});
        for (const auto& [node, weight] : request.weights) keys.insert({.knob = Knob::weight, .node = node});
        for (const auto& node : topology.nodes) {
            if (weighted) keys.insert({.knob = Knob::weight, .node = node.id});
            for (const auto& item : request.hugepages)
                keys.insert({.knob = Knob::hugepages, .node = node.id, .page_size = item.page_size});
            if (request.page_cache == model::PageCache::reclaim) keys.insert({.knob = Knob::reclaim, .node = node.id});
        }
    };
    if (const auto* acquire = std::get_if<Acquire>(&input)) named_by(acquire->request);
    for (const auto& [id, lease] : state.leases)
        if (lease.state == LeaseState::queued || lease.state == LeaseState::preparing) named_by(lease.request);
    return {keys.begin(), keys.end()};
}

std::optional<model::Micros> next_deadline(const State& state) {
    std::optional<model::Micros> soonest = state.queue_retry_at;
    const auto at = [&](model::Micros when) { soonest = soonest ? std::min(*soonest, when) : when; };
    for (const auto& [key, row] : state.ledger)
        if (!row.in_flight && row.retry_at.count() > 0) at(row.retry_at);
    for (const auto& [id, retry] : state.unit_retries)
        if (retry.at.count() > 0) at(retry.at);
    for (const auto& [id, ask] : state.unit_asks)
        if (ask.op == 0) at(ask.at);
    for (const auto& [id, lease] : state.leases)
        if (const auto when = deadline_of(lease)) at(*when);
    return soonest;
}

bool idle(const State& state) {
    return state.ledger.empty() && state.lease_ops.empty() &&
           std::ranges::all_of(state.leases, [](const auto& item) { return model::is_over(item.second.state); });
}

}  // namespace numalease::core
