#pragma once

#include <vector>

#include "core/place.hpp"

/// Machines as literals, for tests of what only decides.
namespace numalease::test {

/// The regular machine that the builders below start from, before they bend it.
struct Shape {
    unsigned sockets = 1;
    unsigned nodes_per_socket = 1;
    unsigned cores_per_node = 4;
    unsigned threads_per_core = 1;
    unsigned cores_per_llc = 4;
    model::Bytes memory_per_node = 64 * model::kGiB;
};

/// CPUs numbered as Linux does on most x86 machines: first threads of all cores, then all second threads.
/// Distances: 10 to itself, 11 inside a socket, 21 across.
inline model::Topology regular(const Shape& shape) {
    model::Topology out;
    const unsigned node_count = shape.sockets * shape.nodes_per_socket;
    const unsigned core_count = node_count * shape.cores_per_node;
    for (unsigned id = 0; id < node_count; ++id)
        out.nodes.push_back({.id = id, .package = id / shape.nodes_per_socket, .total = shape.memory_per_node});
    for (unsigned id = 0; id < core_count; ++id) {
        model::Core core{.id = id, .node = id / shape.cores_per_node, .llc = id / shape.cores_per_llc};
        core.package = core.node / shape.nodes_per_socket;
        for (unsigned thread = 0; thread < shape.threads_per_core; ++thread) core.cpus.add(id + thread * core_count);
        out.nodes[core.node].cpus |= core.cpus;
        out.online |= core.cpus;
        out.cores.push_back(core);
    }
    for (const auto& from : out.nodes) {
        std::vector<unsigned> row;
        for (const auto& to : out.nodes) row.push_back(from.id == to.id ? 10 : from.package == to.package ? 11 : 21);
        out.distance.push_back(row);
    }
    return out;
}

/// One node, four cores, no hyper-threading.
inline model::Topology one_node() { return regular({}); }

/// Two sockets of two nodes; 4 cores × 2 threads and 64G a node; nodes 0-1 and 2-3; CPUs 0-15 and siblings 16-31.
inline model::Topology dual_socket_four_nodes() {
    return regular({.sockets = 2, .nodes_per_socket = 2, .threads_per_core = 2});
}

/// 64 nodes on 8 sockets, 32 cores × 2 threads each: 4096 CPUs.
inline model::Topology sixty_four_nodes() {
    return regular(
        {.sockets = 8, .nodes_per_socket = 8, .cores_per_node = 32, .threads_per_core = 2, .cores_per_llc = 8});
}

/// Node numbers with gaps (0, 8, 16, 24), as on POWER (CASES 20).
inline model::Topology sparse_nodes() {
    auto out = dual_socket_four_nodes();
    for (auto& node : out.nodes) node.id *= 8;
    for (auto& core : out.cores) core.node *= 8;
    return out;
}

/// Two ordinary nodes, a CXL-like node 2 without CPUs, a GPU's memory as node 3.
inline model::Topology with_memory_only_nodes() {
    auto out = regular({.nodes_per_socket = 2});
    out.nodes.push_back({.id = 2, .kind = model::NodeKind::memory_only, .total = 256 * model::kGiB});
    out.nodes.push_back({.id = 3, .kind = model::NodeKind::gpu_memory, .total = 80 * model::kGiB});
    out.distance = {{10, 11, 17, 40}, {11, 10, 28, 40}, {17, 28, 10, 40}, {40, 40, 40, 10}};
    return out;
}

/// One node with four fast cores of two threads (CPUs 0-7) and four slow ones (8-11).
inline model::Topology hybrid() {
    auto out = regular({.cores_per_node = 8, .cores_per_llc = 8});
    out.nodes[0].cpus = out.online = model::IndexSet::range(0, 11);
    for (unsigned id = 0; id < 8; ++id) {
        out.cores[id].efficiency = id < 4 ? 1 : 0;
        out.cores[id].cpus = id < 4 ? model::CpuSet{2 * id, 2 * id + 1} : model::CpuSet{id + 4};
    }
    return out;
}

/// Puts a CPU offline.
inline void take_offline(model::Topology& topology, unsigned cpu) {
    topology.online.remove(cpu);
    for (auto& node : topology.nodes) node.cpus.remove(cpu);
    for (auto& core : topology.cores)
        if (core.cpus.contains(cpu)) {
            core.cpus.remove(cpu);
            core.offline.add(cpu);
        }
}

/// The machine at rest: everything free.
inline core::Observed at_rest(const model::Topology& topology) {
    core::Observed out;
    out.topology = topology;
    for (const auto& node : topology.nodes) out.memory[node.id] = {.total = node.total, .free = node.total};
    return out;
}

/// Nobody there, and everything allowed. The reserve is 0 so that sums in tests stay round.
inline core::Occupancy nobody(const model::Topology& topology) {
    core::Occupancy out{.reserve = 0};
    for (const auto& core : topology.cores) out.allowed_cpus |= core.cpus | core.offline;
    out.allowed_nodes = topology.node_ids();
    return out;
}

}  // namespace numalease::test
