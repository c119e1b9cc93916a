#include <filesystem>

#include "host/threads.hpp"
#include "service/confine.hpp"

// A keeper is a service without a process and with all CPUs: as long as it stands in a slice, the cpuset controller
// neither comes nor goes there.

namespace numalease::service {

namespace {

/// Older kernels take threads' own masks whenever the controller comes or goes. All of them forget a CPU that is
/// offline when it goes: the threads below do not get that CPU back with the others (seen on 6.12).
bool loses_masks(const host::Root& root) {
    if (host::loses_thread_masks(root)) return true;
    const auto present = root.read("sys/devices/system/cpu/present");
    const auto online = root.read("sys/devices/system/cpu/online");
    return present && online && *present != *online;
}

}  // namespace

/// One on each level: a user's slice goes with his last session.
void Confiner::ensure_keepers(const JobPtr& job, const std::function<void()>& next) {
    if (!available_ || !machine_.is_real() || !loses_masks(machine_.root)) return next();
    const auto& it = job->lease.confinement;
    if (it.kind != model::ConfinementKind::scope && !model::is_unit(it.kind)) return next();
    // A shield's own slice, and a named one, are not the caller's.
    const bool system = it.kind == model::ConfinementKind::slice || it.shield.kind == model::ShieldKind::slice;
    if (system) return ensure_keeper(job, {"system.slice"}, next);
    // What is below the first unit is not the system manager's, and its names are the user's.
    std::vector<std::string> slices;
    for (const auto& level : std::filesystem::path(job->lease.caller.cgroup).relative_path()) {
        if (level.extension() != ".slice") break;
        slices.push_back(level);
    }
    ensure_keeper(job, std::move(slices), next);
}

/// Without one a lease is granted all the same: threads' masks are recorded, and given back where they were taken.
void Confiner::ensure_keeper(const JobPtr& job, std::vector<std::string> slices, const std::function<void()>& next) {
    if (slices.empty()) return next();
    const auto slice = std::move(slices.back());
    slices.pop_back();
    const auto others = [=, this] { ensure_keeper(job, slices, next); };
    const auto keeper = systemd::keeper_of(slice);
    read_facts(
        keeper, [others](const systemd::UnitFacts&) { others(); },
        [=, this](const model::Error&) {
            auto call = systemd::start_keeper(bus_, slice, possible_cpus(machine_.root, {}).text());
            if (!call) return others();
            await_start(job, keeper, std::move(*call), others, [others](const model::Error&) { others(); });
        });
}

void Confiner::keep_controller() {
    for (const auto& [id, lease] : state_().leases)
        if (lease.state == model::LeaseState::active) ensure_keepers(std::make_shared<Job>(Job{.lease = lease}), [] {});
}

}  // namespace numalease::service
