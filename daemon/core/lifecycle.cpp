#include <algorithm>
#include <csignal>

#include "core/stepper.hpp"

namespace numalease::core {

using model::ConfinementKind;
using model::Lease;
using model::LeaseState;
using model::Stage;

namespace {

constexpr unsigned kPatience = 4;  ///< tries to put a unit back, before whoever waits is told that it refuses

}  // namespace

bool is_stuck(const State& state, const model::LeaseId& id) {
    const auto retry = state.unit_retries.find(id);
    return retry != state.unit_retries.end() && retry->second.failures >= kPatience;
}

void Stepper::begin_preparing(Lease& lease, model::Placement placement) {
    lease.placement = std::move(placement);
    lease.state = LeaseState::preparing;
    lease.reason = "putting kernel state in place";
    lease.in_the_way.clear();
    lease.stage = Stage::knobs;
    lease.verified = {};  // taken up again: of another engine
}

/// Moves a preparing lease on as far as it goes. Returns whether anything changed.
bool Stepper::advance(Lease& lease) {
    bool changed = false;
    while (lease.state == LeaseState::preparing && stage_is_done(lease)) {
        enter_stage(lease, static_cast<Stage>(static_cast<int>(lease.stage) + 1));
        changed = true;
    }
    return changed;
}

bool Stepper::stage_is_done(const Lease& lease) const {
    const auto has_op = std::ranges::any_of(state_.lease_ops, [&](const auto& op) { return op.second == lease.id; });
    if (lease.stage != Stage::knobs && lease.stage != Stage::hugepages) return !has_op;
    if (lease.stage == Stage::hugepages && has_op) return false;  // its unit is being put back after its last run
    for (const auto& [key, row] : state_.ledger) {
        const auto wanted = row.wants.find(lease.id);
        if (wanted != row.wants.end() && (row.writing || row.written != wanted->second)) return false;
        const auto share = row.shares.find(lease.id);
        if (share != row.shares.end() && !share->second.done) return false;
    }
    if (lease.stage != Stage::hugepages) return true;
    if (is_unconfining(lease.id)) return false;  // taken up while its former run's masks are taken off
    const auto* owner = unit_owner(lease);
    return owner == nullptr || owner->state != LeaseState::ending || is_stuck(state_, owner->id);
}

/// The lease whose masks are on the unit that this one would confine, also while they are taken off again. What the
/// unit says meanwhile is ours and must not become a prior.
const Lease* Stepper::unit_owner(const Lease& lease) const {
    const auto wanted = choose_confinement(lease, observed_.systemd);
    if (!model::is_unit(wanted.kind)) return nullptr;
    for (const auto& [id, other] : state_.leases.begun())
        if (id != lease.id && !model::is_over(other.state) && other.confinement.kind == wanted.kind &&
            other.confinement.unit == wanted.unit)
            return &other;
    return nullptr;
}

void Stepper::enter_stage(Lease& lease, Stage stage) {
    lease.stage = stage;
    switch (stage) {
        case Stage::knobs: break;
        case Stage::page_cache:
            for (auto& knob : lease.knobs)
                if (const auto row = state_.ledger.find(knob.key);
                    row != state_.ledger.end() && row->second.wants.contains(lease.id))
                    knob.got = row->second.written.value_or("");
            enter_page_cache(lease);
            break;
        case Stage::hugepages:
            for (const auto& lever : pool_levers(lease.request, lease.placement))
                if (auto wanted = want_pages(lease, lever); !wanted) {
                    lever_failed(lease, lever.key, wanted.error());
                    if (lease.state != LeaseState::preparing) return;
                }
            break;
        case Stage::inspect:
            if (const auto* owner = unit_owner(lease); owner != nullptr) {
                fail_lease(lease, {model::Errc::not_now, owner->confinement.unit + " is confined for " + owner->id +
                                                             " already; ask again from inside it, or when it is over"});
                return;
            }
            if (lease.confinement.prior_known) return;  // never put back since its last run: the first prior wins
            if (auto refusal = shield_refusal(lease)) {
                fail_lease(lease, *refusal);
                return;
            }
            lease.confinement = *confinement_of(lease);
            choose_settings(lease);
            if (model::is_unit(lease.confinement.kind) || lease.confinement.shield.kind != model::ShieldKind::none ||
                (lease.confinement.kind == ConfinementKind::scope && observed_.loses_masks))
                effects_.push_back(InspectUnit{lease_op(lease.id), lease.id});
            break;
        case Stage::confine: effects_.push_back(Confine{lease_op(lease.id), lease.id, lease.caller.process}); break;
        case Stage::done: become_active(lease); break;
    }
}

void Stepper::enter_page_cache(Lease& lease) {
    using enum model::PageCache;
    if (lease.request.page_cache == drop || lease.request.page_cache == reclaim) state_.last_drop = now_.boot;
    if (lease.request.page_cache == drop) {
        effects_.push_back(DropPageCache{lease_op(lease.id), lease.id});
    }
    if (lease.request.page_cache != reclaim) return;
    for (const auto node : lease.placement.nodes.items()) {
        const auto memory = observed_.memory.find(node);
        if (memory == observed_.memory.end() || memory->second.clean_cache == 0) continue;
        effects_.push_back(ReclaimNode{lease_op(lease.id), lease.id, node, memory->second.clean_cache});
    }
}

void Stepper::become_active(Lease& lease) {
    lease.state = LeaseState::active;
    lease.reason = "granted";
    if (lease.started.boot.count() != 0) return;  // taken up again
    lease.started = now_;
    if (lease.request.time) lease.expires = now_.boot + *lease.request.time;
}

void Stepper::lever_failed(Lease& lease, const model::KnobKey& key, const model::Error& error) {
    if (model::is_required(lease.request, field_of(key.knob))) {
        fail_lease(lease, {error.code, std::string(field_of(key.knob)) + ": " + error.detail, error.err});
        return;
    }
    if (const auto row = state_.ledger.find(key); row != state_.ledger.end()) let_go(row->second, lease.id);
    bool known = false;
    for (auto& knob : lease.knobs)
        if (knob.key == key) {
            knob.note = error.detail;
            known = true;
        }
    if (!known) lease.knobs.push_back({key, "", "", "", error.detail});
    lease.notes.push_back(key.text() + " skipped: " + error.detail);
}

void Stepper::fail_lease(Lease& lease, const model::Error& error) {
    lease.failure = error.code;
    begin_ending(lease, error.detail);
}

void Stepper::begin_ending(Lease& lease, std::string reason) {
    if (lease.state == LeaseState::ending || model::is_over(lease.state)) return;
    const bool waits = lease.state == LeaseState::queued;
    if (waits) std::erase(state_.queue, lease.id);
    if (lease.started.boot.count() != 0 && lease.caller.parent.empty())
        add_use(state_.usage, lease, observed_, now_.boot);
    lease.state = LeaseState::ending;
    lease.reason = std::move(reason);
    lease.in_the_way.clear();
    lease.expires.reset();
    lease.parked.reset();
    state_.unit_asks.erase(lease.id);
    if (waits) return;  // it has nothing yet
    let_everything_go(lease);
    take_off(lease);
}

/// Its part of every knob, and its children, which are its parent's now. Can be done twice.
void Stepper::let_everything_go(const Lease& lease) {
    for (auto& [key, row] : state_.ledger) let_go(row, lease.id);
    for (const auto& id : state_.leases.where([&](const Lease& it) { return it.caller.parent == lease.id; }))
        state_.leases.edit(id).caller.parent = lease.caller.parent;
}

bool Stepper::finish_endings() {
    bool changed = false;
    for (const auto& id : state_.leases.begun_where([](const Lease& it) { return it.state == LeaseState::ending; })) {
        const auto settles = [&](const auto& item) { return item.second.settling.contains(id); };
        const auto owns = [&](const auto& op) { return op.second == id; };
        if (std::ranges::any_of(state_.ledger, settles) || std::ranges::any_of(state_.lease_ops, owns)) continue;
        if (state_.unit_retries.contains(id)) continue;
        auto& lease = state_.leases.edit(id);
        lease.state = lease.failure ? LeaseState::refused : LeaseState::ended;
        lease.ended = now_;
        changed = true;
    }
    return changed;
}

void Stepper::lease_op_done(const Done& done) {
    const auto op = state_.lease_ops.find(done.op);
    if (op == state_.lease_ops.end()) return;
    auto& lease = state_.leases.at(op->second);
    state_.lease_ops.erase(op);
    const bool unconfines = state_.unconfines.erase(done.op) != 0;
    if (const auto join = state_.joins.find(done.op); join != state_.joins.end()) {
        if (done.error) {
            refusal_ = done.error;
        } else if (lease.state == LeaseState::active &&
                   std::ranges::find(lease.holders, join->second) == lease.holders.end()) {
            lease.holders.push_back(join->second);
            if (lease.parked) unpark(lease);
        }
        state_.joins.erase(join);
        return;
    }
    if (!done.note.empty() && std::ranges::find(lease.notes, done.note) == lease.notes.end())
        lease.notes.push_back(done.note);
    if (unconfines) {
        if (done.error) return late_op_failed(lease, *done.error, true);
        state_.unit_retries.erase(lease.id);
        lease.confinement.prior_known = false;
        lease.confinement.shield = {};
        lease.confinement.masks.clear();
        return;
    }
    if (lease.state != LeaseState::preparing) {
        // It was ended, or parked, while it was being confined: what has come of that is taken off now.
        if (lease.stage == Stage::confine && done.confinement.kind != ConfinementKind::none)
            lease.confinement = done.confinement;
        if (done.error) late_op_failed(lease, *done.error, false);
        if (lease.state == LeaseState::ending || is_parked_unit(lease)) take_off(lease);
        return;
    }
    switch (lease.stage) {
        case Stage::page_cache:
            if (!done.error) break;
            if (model::is_required(lease.request, "page-cache"))
                fail_lease(lease, {done.error->code, "page-cache: " + done.error->detail, done.error->err});
            else
                lease.notes.push_back("page-cache skipped: " + done.error->detail);
            break;
        case Stage::inspect:
        case Stage::confine:
            if (done.error && lease.stage == Stage::inspect && leave_shield_out(lease, *done.error)) {
                lease.stage = Stage::hugepages;  // and look again
                break;
            }
            if (done.error) {
                fail_lease(lease, *done.error);
                break;
            }
            lease.confinement = done.confinement;
            if (lease.stage == Stage::inspect) {
                const bool shielded = lease.confinement.shield.kind != model::ShieldKind::none;
                settle_settings(lease, done.unit_memory);
                if (shielded) shield_settled(lease);
            }
            if (!lease.request.name.empty() && lease.confinement.kind != ConfinementKind::slice)
                fail_lease(lease, {model::Errc::unsupported, "name: " + lease.confinement.why});
            if (lease.confinement.kind == ConfinementKind::affinity && lease.request.memory_max &&
                model::is_required(lease.request, "memory-max"))
                fail_lease(lease, {model::Errc::unsupported, "memory-max: " + lease.confinement.why});
            if (lease.stage == Stage::confine) shield_done(lease);
            break;
        default: break;
    }
}

/// The fourth law holds for units too: an ending waits, in the journal, until systemd has put its unit back.
void Stepper::late_op_failed(Lease& lease, const model::Error& error, bool unconfines) {
    if ((lease.state == LeaseState::ending || lease.parked) && unconfines) {
        auto& retry = state_.unit_retries[lease.id];
        retry.failures += 1;
        retry.at = now_.boot + retry_delay(retry.failures);
        if (retry.failures == kPatience) lease.reason += "; " + error.detail + "; it is tried on";
    }
    if (std::ranges::find(lease.notes, error.detail) != lease.notes.end()) return;
    lease.notes.push_back(error.detail);
    reports_.push_back({{}, lease.id + ": " + error.detail});
}

void Stepper::retry_units() {
    for (auto& [id, retry] : state_.unit_retries) {
        if (retry.at.count() == 0 || retry.at > now_.boot) continue;
        retry.at = model::Micros(0);
        unconfine(id);
    }
}

/// What is under way for a lease might still confine it: taking off waits for that.
void Stepper::take_off(const Lease& lease) {
    const auto confines = [&](const auto& op) { return op.second == lease.id && !state_.joins.contains(op.first); };
    if (!has_touched_machine(lease) || is_unconfining(lease.id)) return;
    if (std::ranges::none_of(state_.lease_ops, confines)) unconfine(lease.id);
}

void Stepper::unconfine(const model::LeaseId& id) {
    const auto op = lease_op(id);
    state_.unconfines.insert(op);
    effects_.push_back(Unconfine{op, id});
}

bool Stepper::is_unconfining(const model::LeaseId& id) const {
    return state_.unit_retries.contains(id) || std::ranges::any_of(state_.unconfines, [&](std::uint64_t op) {
               const auto of = state_.lease_ops.find(op);
               return of != state_.lease_ops.end() && of->second == id;
           });
}

std::uint64_t Stepper::lease_op(const model::LeaseId& id) {
    const auto op = state_.next_op++;
    state_.lease_ops[op] = id;
    return op;
}

/// Ended leases stay for a while, for whoever asks what became of them. However many have ended in this step, they are
/// told of first: only those that were over before it go.
void Stepper::drop_old_ended() {
    constexpr std::size_t kKept = 64;
    std::size_t all = 0;
    std::vector<std::pair<model::Micros, model::LeaseId>> before;
    for (const auto& [id, lease] : state_.leases.begun()) {
        if (!model::is_over(lease.state)) continue;
        ++all;
        const auto* was = old_.leases.get(id);
        if (was != nullptr && model::is_over(was->state)) before.emplace_back(lease.ended.boot, id);
    }
    if (all <= kKept) return;
    std::ranges::sort(before);
    before.resize(std::min(before.size(), all - kKept));
    for (const auto& [ended, id] : before) state_.leases.erase(id);
}

}  // namespace numalease::core
