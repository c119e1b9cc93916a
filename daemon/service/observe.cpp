#include "service/observe.hpp"

#include <algorithm>
#include <set>

#include "host/gpus.hpp"
#include "host/knobs.hpp"
#include "host/partition.hpp"
#include "host/process.hpp"
#include "host/threads.hpp"
#include "host/topology.hpp"
#include "service/log.hpp"

namespace numalease::service {

namespace {

constexpr int kScopeDepth = 4;  ///< /user.slice/user-1001.slice/numalease-c1.scope, with one to spare

bool may_place(const core::State& state, const core::Input& input) {
    if (std::holds_alternative<core::Acquire>(input) || std::holds_alternative<core::Extend>(input)) return true;
    return std::ranges::any_of(state.leases, [](const auto& item) {
        return item.second.state == model::LeaseState::queued || item.second.state == model::LeaseState::preparing;
    });
}

bool may_place_gpus(const core::State& state, const core::Input& input) {
    if (const auto* acquire = std::get_if<core::Acquire>(&input); acquire != nullptr && !acquire->request.gpus.none())
        return true;
    return std::ranges::any_of(state.leases, [](const auto& item) {
        return item.second.state == model::LeaseState::queued && !item.second.request.gpus.none();
    });
}

/// Where nobody wants memory, what leases without a promise use makes no difference to anybody.
bool wants_memory(const core::State& state, const core::Input& input) {
    const auto wants = [](const model::Request& it) { return it.memory || !it.hugepages.empty(); };
    if (const auto* acquire = std::get_if<core::Acquire>(&input); acquire != nullptr && wants(acquire->request))
        return true;
    return std::ranges::any_of(state.leases, [&](const auto& item) {
        return item.second.state == model::LeaseState::queued && wants(item.second.request);
    });
}

}  // namespace

std::string Observer::fingerprint() const {
    return host::topology_fingerprint(machine_.root) + host::gpu_fingerprint(machine_.gpus);
}

model::Result<void> Observer::probe(std::string fingerprint) {
    auto probed = host::probe_topology(machine_.root);
    if (!probed) return std::unexpected(probed.error());
    topology_ = std::move(*probed);
    host::name_gpus(machine_.gpus, topology_.devices);
    fingerprint_ = std::move(fingerprint);
    return {};
}

model::Result<void> Observer::start() {
    if (auto probed = probe(fingerprint()); !probed) return probed;
    loses_masks_ = host::loses_thread_masks(machine_.root);
    if (!machine_.cgroup2.empty()) find_scopes("", 0);
    return {};
}

void Observer::find_scopes(const std::string& directory, int depth) {
    for (const auto& name : machine_.root.list(machine_.cgroup2 + directory)) {
        const auto path = directory + '/' + name;
        if (name.starts_with("numalease-") && name.ends_with(".scope"))
            scopes_.push_back(path);
        else if (depth + 1 < kScopeDepth && name.ends_with(".slice"))
            find_scopes(path, depth + 1);
    }
}

const model::Topology& Observer::topology() {
    look_at_topology();
    return topology_;
}

void Observer::look_at_topology() {
    auto now = fingerprint();
    if (now == fingerprint_) return;
    if (auto probed = probe(std::move(now)); !probed)
        log::event(log::Level::warning, log::kDegraded, "the changed topology cannot be read; the former one stays",
                   {{"REASON", probed.error().detail}});
}

/// A driver may learn a card's UUID only when the card is first used: who leases one gets what is known by now.
void Observer::look_for_uuids() {
    const auto unnamed = [](const model::Device& it) { return it.kind == "gpu" && it.uuid.empty(); };
    if (std::ranges::any_of(topology_.devices, unnamed)) host::name_gpus(machine_.gpus, topology_.devices);
}

core::KnobReading Observer::read(const model::KnobKey& key) const {
    core::KnobReading out;
    switch (key.row().kind) {
        case model::KnobKind::pool:
            if (auto pool = host::read_pool(machine_.root, key))
                out.pool = *pool;
            else
                out.error = pool.error();
            break;
        case model::KnobKind::shared:
            if (auto value = host::read_knob(machine_.root, key))
                out.value = std::move(*value);
            else
                out.error = value.error();
            break;
        case model::KnobKind::one_shot:  // write-only: that the file is there is all there is to know
            if (machine_.root.exists(key.path()))
                out.value = "";
            else
                out.error = {model::Errc::unsupported, "this kernel has no " + key.path()};
            break;
    }
    return out;
}

std::vector<model::KnobKey> Observer::all_knobs() {
    using model::Knob;
    std::vector<model::KnobKey> out{{.knob = Knob::numa_balancing},
                                    {.knob = Knob::thp_enabled},
                                    {.knob = Knob::thp_defrag},
                                    {.knob = Knob::zone_reclaim_mode},
                                    {.knob = Knob::weight_auto}};
    for (const auto& node : topology().nodes) {
        out.push_back({.knob = Knob::weight, .node = node.id});
        for (const auto size : topology_.hugepage_sizes)
            out.push_back({.knob = Knob::hugepages, .node = node.id, .page_size = size});
        out.push_back({.knob = Knob::reclaim, .node = node.id});
    }
    out.push_back({.knob = Knob::drop_caches});
    std::ranges::sort(out);
    return out;
}

model::CpuSet Observer::foreign_cpus(const core::State& state) const {
    model::CpuSet out;
    for (const auto& scope : scopes_) {
        const bool ours = std::ranges::any_of(state.leases.begun(), [&](const auto& item) {
            return !model::is_over(item.second.state) && (host::is_inside(scope, item.second.confinement.cgroup) ||
                                                          scope.ends_with("/numalease-" + item.first + ".scope"));
        });
        if (ours) continue;
        const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, scope);
        if (facts && facts->populated) out |= facts->effective_cpus;
    }
    return out;
}

core::NamedFacts Observer::named_facts(const model::Lease& lease) const {
    core::NamedFacts out;
    out.held = std::ranges::any_of(lease.holders, [&](const auto& it) { return host::is_alive(machine_.proc, it); });
    if (lease.confinement.cgroup.empty() || machine_.cgroup2.empty()) return out;
    const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, lease.confinement.cgroup);
    out.inhabited = facts && facts->populated;
    return out;
}

/// Only where somebody asks for a shield. The limits are those of the slices that the callers of it are in.
core::ShieldFacts Observer::shield_facts(const core::State& state, const core::Input& input) const {
    std::vector<std::string> callers;
    if (const auto* acquire = std::get_if<core::Acquire>(&input); acquire != nullptr && acquire->request.shield)
        callers.push_back(acquire->caller.cgroup);
    for (const auto& [id, lease] : state.leases)
        if (lease.request.shield &&
            (lease.state == model::LeaseState::queued || lease.state == model::LeaseState::preparing))
            callers.push_back(lease.caller.cgroup);
    core::ShieldFacts out;
    if (callers.empty()) return out;
    out.kernel = host::shields_of_kernel(machine_.root, machine_.cgroup2);
    for (const auto& cgroup : callers) {
        auto limits = host::limits_of_user(machine_.root, machine_.cgroup2, cgroup);
        const auto slice = host::user_slice_of(cgroup);  // "/user.slice/user-1001.slice"
        if (!limits.empty()) out.limits[slice.substr(slice.rfind('/') + 1)] = std::move(limits);
    }
    return out;
}

/// Of everybody who has a lease or asks for one.
std::map<unsigned, model::Limits> Observer::limits(const core::State& state, const core::Input& input) const {
    std::set<unsigned> users;
    if (const auto* acquire = std::get_if<core::Acquire>(&input)) users.insert(acquire->caller.uid);
    for (const auto& [id, lease] : state.leases)
        if (!model::is_over(lease.state)) users.insert(lease.caller.uid);
    std::map<unsigned, model::Limits> out;
    for (const auto uid : users) out.emplace(uid, limits_of_(uid));
    return out;
}

core::Observed Observer::observe(const core::State& state, const core::Input& input, bool systemd) {
    look_at_topology();
    if (may_place_gpus(state, input)) look_for_uuids();
    core::Observed out{.topology = topology_,
                       .reserve = site_.config.reserve,
                       .overcommit = site_.config.overcommit,
                       .loses_masks = loses_masks_,
                       .systemd = systemd,
                       .scheduling = site_.config.scheduling};
    for (const auto& key : core::watched(state, input, out.topology)) out.knobs.emplace(key, read(key));
    for (const auto& [id, lease] : state.leases.begun())
        if (!lease.request.name.empty() && !model::is_over(lease.state)) out.named[id] = named_facts(lease);
    if (!may_place(state, input)) return out;
    out.limits = limits(state, input);
    out.shield = shield_facts(state, input);
    for (const auto& node : out.topology.nodes)
        if (const auto memory = host::read_node_memory(machine_.root, node.id))
            out.memory[node.id] = {.total = memory->total, .free = memory->free, .clean_cache = memory->clean_cache};
    const bool of_all = wants_memory(state, input);
    for (const auto& [id, lease] : state.leases.begun()) {
        if (lease.state != model::LeaseState::active || lease.confinement.cgroup.empty()) continue;
        if (!of_all && lease.placement.promise.empty()) continue;
        if (auto used = host::read_memory_by_node(machine_.root, machine_.cgroup2, lease.confinement.cgroup))
            out.used[id] = std::move(*used);
    }
    out.foreign_cpus = foreign_cpus(state);
    return out;
}

core::Observed Observer::observe_for(const core::State& state, const model::Request& request,
                                     const model::Caller& caller, bool systemd) {
    return observe(state, core::Acquire{.request = request, .caller = caller}, systemd);
}

}  // namespace numalease::service
