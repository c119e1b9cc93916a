#include "service/shield_watch.hpp"

#include <sys/inotify.h>

#include <algorithm>
#include <set>

#include "host/partition.hpp"
#include "host/threads.hpp"

namespace numalease::service {

namespace {

constexpr std::uint64_t kAskAgainUsec = 10'000'000;

}  // namespace

void ShieldWatch::sync(const core::State& state) {
    shielded_.clear();
    masks_.clear();
    cpus_ = core::shielded_cpus(state);
    std::set<std::string> cgroups;
    for (const auto& [id, lease] : state.leases.begun()) {
        const auto& shield = lease.confinement.shield;
        if (lease.state != model::LeaseState::active || lease.parked || shield.kind == model::ShieldKind::none)
            continue;
        shielded_.push_back({id, shield.cgroup, shield.problem});
        cgroups.insert(shield.cgroup);
        masks_.insert(masks_.end(), lease.confinement.masks.begin(), lease.confinement.masks.end());
    }
    std::erase_if(partitions_, [&](const auto& item) { return !cgroups.contains(item.first); });
    for (const auto& cgroup : cgroups) {
        if (partitions_.contains(cgroup)) continue;
        const auto path = machine_.root.directory() + '/' + machine_.cgroup2 + cgroup + "/cpuset.cpus.partition";
        sd_event_source* source = nullptr;
        if (sd_event_add_inotify(event_, &source, path.c_str(), IN_MODIFY, on_event, this) < 0) source = nullptr;
        partitions_[cgroup].reset(source);
    }
    check();
}

void ShieldWatch::check() {
    const auto shielded = shielded_;  // `changed_` may come back here through `sync`
    for (const auto& it : shielded) {
        const auto now = host::read_partition(machine_.root, machine_.cgroup2, it.cgroup);
        if (!now) continue;  // its cgroup is gone, and so will the lease be
        const auto problem = *now == "root" ? std::string() : *now;
        if (problem == it.problem) continue;
        restore_masks({});
        changed_({.lease = it.lease, .problem = problem});
    }
    arm();
}

/// Only what the kernel calls invalid: a partition that somebody made a member is his.
void ShieldWatch::ask_again() {
    std::set<std::string> invalid;
    for (const auto& it : shielded_)
        if (it.problem.starts_with("root invalid")) invalid.insert(it.cgroup);
    const auto now = masks_.empty() ? std::vector<model::ThreadMask>()
                                    : host::read_thread_masks(machine_.root, machine_.proc, machine_.cgroup2).kept;
    for (const auto& cgroup : invalid) {
        // An invalid root that is made one again stays invalid: it must have been a member in between.
        (void)host::end_partition(machine_.root, machine_.cgroup2, cgroup);
        (void)host::begin_partition(machine_.root, machine_.cgroup2, cgroup);
    }
    if (!invalid.empty()) restore_masks(now);
    check();
}

void ShieldWatch::restore_masks(const std::vector<model::ThreadMask>& now) const {
    if (masks_.empty()) return;
    host::await_cpusets(machine_.root, machine_.cgroup2, "/user.slice");
    (void)host::restore_thread_masks(machine_.root, machine_.proc, machine_.cgroup2,
                                     core::masks_behind_shields(masks_, now, cpus_), "");
}

void ShieldWatch::arm() {
    const bool invalid =
        std::ranges::any_of(shielded_, [](const Shielded& it) { return it.problem.starts_with("root invalid"); });
    if (!invalid) return timer_.reset();
    if (timer_) return;
    sd_event_source* source = nullptr;
    if (sd_event_add_time_relative(event_, &source, CLOCK_BOOTTIME, kAskAgainUsec, 0, on_time, this) >= 0)
        timer_.reset(source);
}

int ShieldWatch::on_event(sd_event_source* /*source*/, const inotify_event* /*event*/, void* data) {
    static_cast<ShieldWatch*>(data)->check();
    return 0;
}

int ShieldWatch::on_time(sd_event_source* /*source*/, std::uint64_t /*usec*/, void* data) {
    auto* self = static_cast<ShieldWatch*>(data);
    self->timer_.reset();
    self->ask_again();
    return 0;
}

}  // namespace numalease::service
