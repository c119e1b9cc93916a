#include <algorithm>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Confinement;
using model::ConfinementKind;
using model::Errc;
using model::fail;
using model::Lease;
using model::LeaseState;
using model::ShieldKind;
using model::Stage;

namespace {

/// Below Linux 6.7 a partition must be a child of the root cgroup. Without a dash, or systemd would nest it.
constexpr std::string_view kShieldSlice = "numaleaseshield.slice";

model::Result<void> in_own_slice(Confinement& it, const ShieldFacts& facts) {
    if (it.kind == ConfinementKind::unit)
        return fail(Errc::unsupported,
                    "shield: below Linux 6.7 only what a login session starts can be shielded, and " + it.unit +
                        " stays in its slice; ask without --shield");
    if (const auto limits = facts.limits.find(it.slice); limits != facts.limits.end())
        return fail(Errc::unsupported, "shield: below Linux 6.7 a shielded lease leaves " + it.slice +
                                           ", whose limits would no longer bind it (" + limits->second +
                                           "); lift them, or ask without --shield");
    it.slice = kShieldSlice;
    it.shield = {.kind = ShieldKind::slice, .cgroup = '/' + it.slice};
    it.why = "a scope inside " + it.slice + ", the partition of all shielded leases: nobody else runs on its CPUs";
    return {};
}

}  // namespace

model::Result<void> add_shield(Confinement& it, const model::Caller& caller, const ShieldFacts& facts) {
    if (it.kind == ConfinementKind::affinity || it.kind == ConfinementKind::none)
        return fail(Errc::unsupported, "shield: " + it.why);
    if (it.kind == ConfinementKind::slice)
        return fail(Errc::unsupported,
                    "shield: a named lease has none, its slice need not be running; use run --shield");
    switch (facts.kernel) {
        case ShieldKind::none:
            return fail(Errc::unsupported,
                        "shield: there are no cpuset partitions here (cgroup v2 with its cpuset "
                        "controller, Linux 6.1 or later)");
        case ShieldKind::slice: return in_own_slice(it, facts);
        case ShieldKind::path: break;
    }
    const bool unit = it.kind == ConfinementKind::unit;
    it.shield = {.kind = ShieldKind::path, .cgroup = unit ? caller.cgroup : "/user.slice/" + it.slice + '/' + it.unit};
    it.why += "; it is a cpuset partition: nobody else runs on its CPUs";
    return {};
}

/// As the lease would be confined now; with its shield, where it asks for one.
model::Result<Confinement> Stepper::confinement_of(const Lease& lease) const {
    auto out = choose_confinement(lease, observed_.systemd);
    if (!lease.request.shield) return out;
    if (const auto parent = state_.leases.find(lease.caller.parent); parent != state_.leases.end()) {
        if (!parent->second.confinement.shield.in_force)
            return fail(Errc::unsupported, "shield: " + parent->first + ", which this is nested in, has none");
        out.why += "; behind the shield of " + parent->first;
        return out;
    }
    if (auto added = add_shield(out, lease.caller, observed_.shield); !added) return std::unexpected(added.error());
    return out;
}

/// Whether a shield can be had is known at once: waiting would not bring it. One that a policy brought is left out.
std::optional<model::Error> Stepper::shield_refusal(Lease& lease) const {
    const auto confinement = confinement_of(lease);
    if (confinement || leave_shield_out(lease, confinement.error())) return std::nullopt;
    return confinement.error();
}

/// Returns whether the lease can go on without.
bool Stepper::leave_shield_out(Lease& lease, const model::Error& why) const {
    if (!lease.request.shield || model::is_required(lease.request, "shield")) return false;
    lease.request.shield = false;
    lease.notes.push_back(why.detail + "; left out");
    return true;
}

/// A unit that turned out not to be ours to confine has no shield either.
void Stepper::shield_settled(Lease& lease) {
    if (lease.confinement.shield.kind != ShieldKind::none) return;
    const auto text = "shield: " + lease.confinement.why;
    if (model::is_required(lease.request, "shield"))
        fail_lease(lease, {Errc::unsupported, text});
    else
        lease.notes.push_back(text);
}

/// What Confine brought: a shield that does not hold refuses a lease that was to have one.
void Stepper::shield_done(Lease& lease) {
    const auto& shield = lease.confinement.shield;
    if (shield.kind == ShieldKind::none || shield.in_force) return;
    const auto text = "shield: " + shield.cgroup + " is not a partition: " + shield.problem;
    if (model::is_required(lease.request, "shield"))
        fail_lease(lease, {Errc::not_now, text});
    else
        lease.notes.push_back(text);
}

void Stepper::operator()(const ShieldChanged& input) {
    const auto found = state_.leases.find(input.lease);
    if (found == state_.leases.end() || found->second.state != LeaseState::active) return;
    auto& lease = state_.leases.edit(input.lease);
    auto& shield = lease.confinement.shield;
    if (shield.kind == ShieldKind::none || shield.problem == input.problem) return;
    shield.in_force = input.problem.empty();
    shield.problem = input.problem;
    if (lease.signals_sent == 0)
        lease.reason = shield.in_force ? "its shield holds again" : model::degraded_text(lease);
}

model::CpuSet shielded_cpus(const State& state, const std::string& cgroup) {
    model::CpuSet out;
    for (const auto& [id, lease] : state.leases.begun())
        if (lease.confinement.shield.cgroup == cgroup && model::occupies(lease.state) && lease.stage >= Stage::confine)
            out |= lease.placement.cpus;
    return out;
}

std::vector<model::ThreadMask> masks_behind_shields(std::vector<model::ThreadMask> recorded,
                                                    const std::vector<model::ThreadMask>& now,
                                                    const model::CpuSet& shielded) {
    for (const auto& it : now) {
        const auto before = std::ranges::find(recorded, it.thread, &model::ThreadMask::thread);
        if (before == recorded.end())
            recorded.push_back(it);
        else if (model::CpuSet(before->cpus - shielded) != it.cpus)  // somebody chose another one meanwhile
            before->cpus = it.cpus;
    }
    return recorded;
}

model::CpuSet shielded_cpus(const State& state) {
    model::CpuSet out;
    for (const auto& [id, lease] : state.leases.begun())
        if (lease.confinement.shield.kind != ShieldKind::none && !model::is_over(lease.state))
            out |= lease.placement.cpus;
    return out;
}

bool has_touched_machine(const Lease& lease) {
    if (model::is_unit(lease.confinement.kind) && lease.confinement.prior_known) return true;
    if (!lease.confinement.masks.empty()) return true;
    return lease.confinement.shield.kind != ShieldKind::none && lease.stage >= Stage::confine;
}

}  // namespace numalease::core
