#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/place.hpp"

/// What any placement must satisfy, said again without the solver's code.
namespace numalease::test {

/// Broken rules, one line each; empty for a sound placement.
inline std::vector<std::string> broken_rules(const core::Observed& observed, const core::Occupancy& occupancy,
                                             const model::Request& request, const model::Placement& placement) {
    std::vector<std::string> out;
    const auto& topology = observed.topology;
    const auto rule = [&](bool holds, const std::string& text) {
        if (!holds) out.push_back(text + ": cpus " + placement.cpus.text() + " nodes " + placement.nodes.text());
    };
    rule(!placement.cpus.empty(), "a lease has CPUs");
    rule(!placement.nodes.empty(), "a lease has memory nodes");
    rule(topology.online.covers(placement.cpus), "only online CPUs");
    rule(occupancy.allowed_cpus.covers(placement.cpus), "only allowed CPUs");
    rule(!placement.cpus.intersects(occupancy.foreign_cpus), "no foreign CPUs");
    rule(request.isolated || !placement.cpus.intersects(topology.isolated), "no isolated CPUs");

    unsigned cores = 0;
    for (const auto& core : topology.cores) {
        if (!core.cpus.intersects(placement.cpus)) continue;
        ++cores;
        const auto allowed = core.cpus & occupancy.allowed_cpus;
        rule(placement.cpus.covers(allowed), "whole cores");
        for (const auto& occupant : occupancy.occupants)
            if (!(occupant.share && request.share))
                rule(!occupant.cpus.intersects(core.cpus | core.offline), "no core of " + occupant.id);
        if (request.nodes.kind == model::Choice::Kind::list)
            rule(request.nodes.items.contains(core.node), "cores of listed nodes only");
        if (request.sockets.kind == model::Choice::Kind::list)
            rule(request.sockets.items.contains(core.package), "cores of listed sockets only");
    }
    rule(cores == placement.cores, "cores are counted right");
    if (request.cores) rule(cores == *request.cores, "as many cores as asked");
    rule(placement.threads == (request.mode == model::Mode::all ? placement.cpus.size() : placement.cores), "threads");

    std::set<std::string> gpus;
    for (const auto& gpu : placement.gpus) {
        rule(gpus.insert(gpu.pci).second, "no GPU twice");
        rule(std::ranges::any_of(topology.devices,
                                 [&](const auto& it) { return it.kind == "gpu" && it.pci == gpu.pci; }),
             "GPUs exist");
        rule(!occupancy.allowed_gpus || occupancy.allowed_gpus->contains(gpu.pci), "only allowed GPUs");
        std::size_t others = 0;
        for (const auto& occupant : occupancy.occupants) {
            if (!occupant.gpus.contains(gpu.pci)) continue;
            ++others;
            rule(request.gpu_share > 1 && occupant.gpu_share > 1, "no GPU of " + occupant.id);
        }
        rule(others < request.gpu_share, "not more on a GPU than may be");
    }
    if (request.gpus.any > 0) rule(gpus.size() == request.gpus.any, "as many GPUs as asked");
    if (request.gpus.none()) rule(gpus.empty(), "no GPU unasked");

    model::Bytes promised = 0;
    for (const unsigned id : placement.nodes.items()) {
        const auto* node = topology.node(id);
        rule(node != nullptr, "nodes exist");
        if (node == nullptr) continue;
        const bool by_name = request.nodes.kind == model::Choice::Kind::list;
        rule(by_name || node->kind == model::NodeKind::dram, "memory-only nodes by name only");
    }
    for (const auto& [id, bytes] : placement.promise) {
        rule(placement.nodes.contains(id), "promises on leased nodes");
        rule(occupancy.allowed_nodes.contains(id), "promises on allowed nodes");
        const auto memory = observed.memory.find(id);
        model::Bytes taken = bytes + occupancy.reserve;
        for (const auto& occupant : occupancy.occupants)
            if (const auto part = occupant.outstanding.find(id); part != occupant.outstanding.end())
                taken += part->second;
        rule(memory != observed.memory.end() && taken <= memory->second.free + memory->second.clean_cache,
             "promises fit on node " + std::to_string(id));
        promised += bytes;
    }
    rule(promised == request.memory.value_or(0), "promises add up");
    return out;
}

}  // namespace numalease::test
