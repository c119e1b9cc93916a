#include "model/topology.hpp"

namespace numalease::model {

const Node* Topology::node(unsigned id) const {
    for (const auto& node : nodes)
        if (node.id == id) return &node;
    return nullptr;
}

unsigned Topology::distance_between(unsigned from, unsigned to) const {
    constexpr unsigned kLocal = 10;
    constexpr unsigned kRemote = 20;
    std::size_t row = nodes.size();
    std::size_t column = nodes.size();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].id == from) row = i;
        if (nodes[i].id == to) column = i;
    }
    if (row < distance.size() && column < distance[row].size()) return distance[row][column];
    return from == to ? kLocal : kRemote;
}

NodeSet Topology::node_ids() const {
    NodeSet out;
    for (const auto& node : nodes) out.add(node.id);
    return out;
}

namespace {

std::string_view kind_text(NodeKind kind) {
    switch (kind) {
        case NodeKind::dram: return "dram";
        case NodeKind::memory_only: return "memory-only";
        case NodeKind::gpu_memory: return "gpu-memory";
    }
    return "";
}

}  // namespace

Dict to_dict(const Topology& topology) {
    Value::Dicts nodes;
    for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
        const auto& node = topology.nodes[i];
        Value::Strings distances;
        if (i < topology.distance.size())
            for (const auto value : topology.distance[i]) distances.push_back(std::to_string(value));
        nodes.push_back({{"id", node.id},
                         {"socket", node.package},
                         {"kind", kind_text(node.kind)},
                         {"cpus", node.cpus.text()},
                         {"total", node.total},
                         {"distances", distances}});
    }
    Value::Dicts cores;
    for (const auto& core : topology.cores)
        cores.push_back({{"id", core.id},
                         {"socket", core.package},
                         {"node", core.node},
                         {"cache_group", core.llc},
                         {"efficiency", core.efficiency},
                         {"cpus", core.cpus.text()},
                         {"offline", core.offline.text()}});
    Value::Dicts devices;
    for (const auto& device : topology.devices) {
        devices.push_back(
            {{"kind", device.kind}, {"pci", device.pci}, {"name", device.name}, {"nodes", device.nodes.text()}});
        if (device.kind != "gpu") continue;
        devices.back().insert({{"vendor", device.vendor}, {"driver", device.driver}, {"uuid", device.uuid}});
    }
    Value::Strings sizes;
    for (const auto size : topology.hugepage_sizes) sizes.push_back(bytes_text(size));
    return {{"nodes", nodes},
            {"cores", cores},
            {"devices", devices},
            {"online", topology.online.text()},
            {"isolated", topology.isolated.text()},
            {"hugepage_sizes", sizes},
            {"contradictions", topology.contradictions}};
}

}  // namespace numalease::model
