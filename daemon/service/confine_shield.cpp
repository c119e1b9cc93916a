#include "host/partition.hpp"
#include "host/threads.hpp"
#include "service/confine.hpp"

namespace numalease::service {

// A shield is a cpuset partition around what confines a lease. Its files are the kernel's, not systemd's: systemd does
// not touch cpuset.cpus.partition and cpuset.cpus.exclusive, whatever it reloads or starts. The one top-level slice for
// older kernels is made together with the first scope in it and goes with the last (StopWhenUnneeded=).

namespace {

using model::Errc;
using model::Result;
using model::ShieldKind;

/// "/numaleaseshield.slice" → "numaleaseshield.slice".
std::string unit_of(const model::Shield& shield) { return shield.cgroup.substr(shield.cgroup.rfind('/') + 1); }

}  // namespace

/// Before anything of it is recorded as ours: nobody else holds these CPUs for himself. The last lease on them may just
/// be over, and its cgroup be on its way out.
void Confiner::await_room_for_shield(const JobPtr& job, const std::function<void()>& next) {
    const auto& shield = job->lease.confinement.shield;
    if (shield.kind == ShieldKind::none) return next();
    const auto why = host::in_the_way_of_partition(machine_.root, machine_.cgroup2, shield, job->lease.placement.cpus);
    if (why.empty()) return next();
    constexpr std::uint64_t kLookAgain = 50'000;
    if (job->polls_left-- > 0) return later_.after(kLookAgain, [=, this] { await_room_for_shield(job, next); });
    give_up(job, {Errc::not_now, "shield: " + why});
}

/// The shield's slice is made with the first scope in it. Later ones find it, and make it larger when they are in.
systemd::Surroundings Confiner::surroundings_of(const Job& job) const {
    systemd::Surroundings out{.tasks = host::tasks_limit_of(machine_.root, machine_.cgroup2, cgroup_of(job))};
    const auto& shield = job.lease.confinement.shield;
    if (shield.kind != ShieldKind::slice) return out;
    out.make_slice = !machine_.root.exists(machine_.cgroup2 + shield.cgroup);
    out.slice_cpus = core::shielded_cpus(state_(), shield.cgroup);
    return out;
}

model::CpuSet Confiner::cpus_of_slice(const model::Shield& shield) const {
    return host::read_own_cpus(machine_.root, machine_.cgroup2, shield.cgroup);
}

/// A scope cannot have CPUs that the slice it is to be in has not. One that the last shield has left is going.
void Confiner::await_shield_slice(const JobPtr& job) {
    const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, job->lease.confinement.shield.cgroup);
    if (!facts) return send_scope(job);
    if (facts->populated || job->polls_left == 0) return size_slice(job, [=, this] { send_scope(job); });
    --job->polls_left;
    later_.after(kPollUsec, [=, this] { await_shield_slice(job); });
}

/// Makes the shield's slice as large as all its leases are now, and waits until it is.
void Confiner::size_slice(const JobPtr& job, const std::function<void()>& next) {
    const auto& shield = job->lease.confinement.shield;
    const auto wanted = core::shielded_cpus(state_(), shield.cgroup);
    job->polls_left = kPolls;
    set_properties(
        unit_of(shield), {{model::UnitProperty::cpus, wanted.text()}}, [=, this](Result<sd_bus_message*> reply) {
            const auto& it = job->lease.confinement.shield;
            if (!reply && machine_.root.exists(machine_.cgroup2 + it.cgroup))
                return give_up(job, {Errc::io, unit_of(it) + " could not be given its CPUs: " + reply.error().detail,
                                     reply.error().err});
            await_slice(job, next);
        });
}

void Confiner::await_slice(const JobPtr& job, const std::function<void()>& next) {
    const auto& shield = job->lease.confinement.shield;
    const bool there = machine_.root.exists(machine_.cgroup2 + shield.cgroup);
    if (!there || cpus_of_slice(shield) == core::shielded_cpus(state_(), shield.cgroup)) return next();
    if (job->polls_left-- == 0)
        return give_up(job, {Errc::io, unit_of(shield) + " has CPUs " + cpus_of_slice(shield).text() + " although " +
                                           core::shielded_cpus(state_(), shield.cgroup).text() + " were set"});
    later_.after(kPollUsec, [=, this] { await_slice(job, next); });
}

/// Of a lease whose confinement is in force: the last thing before it is granted.
void Confiner::raise_shield(const JobPtr& job) {
    auto& shield = job->lease.confinement.shield;
    const bool joins = job->lease.state == model::LeaseState::active;
    if (shield.kind == ShieldKind::none || joins) return finish(job);
    if (shield.kind == ShieldKind::slice && !cpus_of_slice(shield).covers(job->lease.placement.cpus))
        return size_slice(job, [=, this] { begin_shield(job); });
    begin_shield(job);
}

void Confiner::begin_shield(const JobPtr& job) {
    auto& shield = job->lease.confinement.shield;
    const auto& cpus = job->lease.placement.cpus;
    Result<void> ready;
    if (shield.kind == ShieldKind::path) ready = host::hand_down(machine_.root, machine_.cgroup2, shield.cgroup, cpus);
    const auto says = ready ? host::begin_partition(machine_.root, machine_.cgroup2, shield.cgroup)
                            : Result<std::string>(std::unexpected(ready.error()));
    shield.in_force = says && *says == "root";
    shield.problem = shield.in_force ? std::string() : says ? *says : says.error().detail;
    (void)host::restore_thread_masks(machine_.root, machine_.proc, machine_.cgroup2, job->lease.confinement.masks, "");
    if (shield.in_force) {
        const auto left = host::what_still_runs_on(machine_.proc, cpus);
        if (!left.empty()) job->note += (job->note.empty() ? "" : "; ") + left;
    }
    finish(job);
}

/// What threads had before the shields that stand already is not what they have now. Durable before this one rises.
void Confiner::add_masks_of_shields(const model::Lease& lease, host::ThreadMasks& masks) const {
    if (lease.confinement.shield.kind == ShieldKind::none || !machine_.is_real()) return;
    auto now = host::read_kernel_thread_masks(machine_.root, machine_.proc, machine_.cgroup2);
    now.insert(now.end(), masks.kept.begin(), masks.kept.end());
    for (const auto& [id, other] : state_().leases)
        if (id != lease.id && !model::is_over(other.state) && other.confinement.shield.kind != ShieldKind::none)
            now = core::masks_behind_shields(other.confinement.masks, now, other.placement.cpus);
    // Of one shield after the other they would become ever more, with those of threads that have ended.
    auto living = host::living_masks(machine_.proc, std::move(now));
    masks = {.kept = std::move(living.kept), .left_out = masks.left_out + living.left_out};
}

/// Takes the shield down, which can be done twice, and goes on when that has been read back.
void Confiner::lower_shield(const JobPtr& job, const std::function<void()>& next) {
    const auto& shield = job->lease.confinement.shield;
    const bool last = shield.kind == ShieldKind::path || core::shielded_cpus(state_(), shield.cgroup).empty();
    if (shield.kind == ShieldKind::none) return next();
    if (machine_.is_real()) {
        job->masks_now = host::read_kernel_thread_masks(machine_.root, machine_.proc, machine_.cgroup2);
        if (host::loses_thread_masks(machine_.root))
            for (auto& it : host::read_thread_masks(machine_.root, machine_.proc, machine_.cgroup2).kept)
                job->masks_now.push_back(std::move(it));
    }
    if (last)
        if (auto ended = host::end_partition(machine_.root, machine_.cgroup2, shield.cgroup); !ended)
            return give_up(job, ended.error());
    job->polls_left = kPolls;
    const auto released = [=, this] { await_released(job, next); };
    if (shield.kind == ShieldKind::path) {
        const auto back = host::take_back(machine_.root, machine_.cgroup2, shield.cgroup, job->lease.placement.cpus);
        return back ? released() : give_up(job, back.error());
    }
    // The last one's slice stops by itself with the last scope in it.
    if (last || !machine_.root.exists(machine_.cgroup2 + shield.cgroup)) return released();
    size_slice(job, released);
}

/// Somebody else's partition may have them by now: then the deadline ends the wait, and nothing is lost by it.
void Confiner::await_released(const JobPtr& job, const std::function<void()>& next) {
    const model::CpuSet cpus = job->lease.placement.cpus & job->online;
    if (!host::is_released(machine_.root, machine_.cgroup2, cpus) && job->polls_left-- > 0)
        return later_.after(kPollUsec, [=, this] { await_released(job, next); });
    host::await_cpusets(machine_.root, machine_.cgroup2, job->lease.caller.cgroup);
    next();
}

}  // namespace numalease::service
