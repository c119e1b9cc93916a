#include "service/use.hpp"

#include <algorithm>

#include "host/use.hpp"
#include "service/daemon.hpp"

namespace numalease::service {

std::string counting_cgroup(const model::Lease& lease, const Machine& machine) {
    if (machine.cgroup2.empty()) return {};
    if (!lease.confinement.cgroup.empty()) return lease.confinement.cgroup;
    return lease.confinement.kind == model::ConfinementKind::unit ? lease.caller.cgroup : std::string();
}

std::optional<model::Use> read_use(const model::Lease& lease, const Machine& machine) {
    const auto cgroup = counting_cgroup(lease, machine);
    auto use = cgroup.empty() ? host::read_process_use(machine.proc, lease.holders)
                              : host::read_cgroup_use(machine.root, machine.cgroup2, cgroup);
    if (!use) return std::nullopt;
    use->at = now().boot;
    return *use;
}

model::Dict Uses::dict_of(const model::Lease& lease) {
    if (lease.state == model::LeaseState::active)
        if (const auto& use = recent_.get(lease.id, now().boot, [&] { return read_use(lease, machine_); }))
            last_[lease.id] = *use;
    const auto found = last_.find(lease.id);
    if (found == last_.end()) return {};
    const auto& before = lease.confinement.use_before;
    const auto use = model::since(before, found->second);
    auto out = to_dict(use);
    const auto began = std::max(before.at, lease.started.boot);
    const auto cpus = std::max(lease.placement.threads, lease.placement.cores);
    if (const auto busy = model::busy_permille(use.cpu, use.at - began, cpus)) out["busy_permille"] = *busy;
    if (lease.confinement.kind == model::ConfinementKind::slice) out["at_least"] = true;
    return out;
}

void Uses::changed(const core::State& before, const core::State& after) {
    const auto active = [](const model::Lease* lease) {
        return lease != nullptr && lease->state == model::LeaseState::active;
    };
    for (const auto& id : after.leases.changed_since(before.leases)) {
        const auto* was = before.leases.get(id);
        if (active(was) && !active(after.leases.get(id)))
            if (const auto use = read_use(*was, machine_)) last_[id] = *use;
    }
    std::erase_if(last_, [&](const auto& item) { return !after.leases.contains(item.first); });
}

}  // namespace numalease::service
