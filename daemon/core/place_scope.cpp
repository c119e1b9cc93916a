#include <algorithm>
#include <map>
#include <set>

#include "core/placing.hpp"

namespace numalease::core::placing {

namespace {

using model::Choice;
using model::Errc;
using model::IndexSet;
using model::Node;
using model::NodeKind;

/// Nodes that come without being asked for. Memory-only and GPU memory are leased only by name (CASES 19).
bool ordinary(const Node& node) { return node.kind == NodeKind::dram && !node.cpus.empty(); }

Unit unit_of_node(const View& view, unsigned at) {
    const auto& node = view.topology().nodes[at];
    Unit unit{.id = node.id, .package = node.package, .nodes = {at}, .near = view.near.cost[at]};
    if (view.nodes[at].memory) unit.memory = {at};
    return unit;
}

void count_core(const View& view, Unit& unit, unsigned core) {
    unit.cores.push_back(core);
    const auto state = view.cores[core];
    const bool usable = state == CoreState::taken || state == CoreState::idle;
    unit.usable += usable ? 1U : 0U;
    unit.idle += state == CoreState::idle ? 1U : 0U;
    unit.fast += usable && view.topology().cores[core].efficiency == view.fastest ? 1U : 0U;
}

std::vector<Unit> node_units(const View& view) {
    std::vector<Unit> units;
    std::map<unsigned, unsigned> unit_of;
    for (unsigned at = 0; at < view.nodes.size(); ++at) {
        unit_of[view.nodes[at].id] = at;
        units.push_back(unit_of_node(view, at));
    }
    for (unsigned core = 0; core < view.cores.size(); ++core)
        if (view.cores[core] != CoreState::out)
            count_core(view, units[unit_of[view.topology().cores[core].node]], core);
    return units;
}

/// A socket has the nodes its cores are nearest to; on a machine with fewer nodes than sockets they share one.
std::vector<Unit> socket_units(const View& view) {
    const auto& topology = view.topology();
    std::map<unsigned, Unit> sockets;
    for (unsigned core = 0; core < view.cores.size(); ++core) {
        if (topology.cores[core].cpus.empty()) continue;
        auto& unit = sockets[topology.cores[core].package];
        unit.id = unit.package = topology.cores[core].package;
        for (unsigned at = 0; at < view.nodes.size(); ++at)
            if (view.nodes[at].id == topology.cores[core].node && std::ranges::find(unit.nodes, at) == unit.nodes.end())
                unit.nodes.push_back(at);
        if (view.cores[core] != CoreState::out) count_core(view, unit, core);
    }
    std::vector<Unit> units;
    for (auto& [id, unit] : sockets) {
        unit.near = ~0U;
        for (const unsigned at : unit.nodes) {
            unit.near = std::min(unit.near, view.near.cost[at]);
            if (view.nodes[at].memory) unit.memory.push_back(at);
        }
        if (!unit.nodes.empty()) units.push_back(std::move(unit));
    }
    return units;
}

IndexSet ids_of(const std::vector<Unit>& units) {
    IndexSet out;
    for (const auto& unit : units) out.add(unit.id);
    return out;
}

std::string ids_text(const Scope& scope, const IndexSet& ids) { return noun(scope, ids.size()) + " " + ids.text(); }

/// Why a unit that was asked for by name has no core for this caller.
std::string why_no_core(const View& view, const Unit& unit) {
    model::CpuSet cpus;
    for (const auto& core : view.topology().cores)
        for (const unsigned at : unit.nodes)
            if (core.node == view.nodes[at].id) cpus |= core.cpus;
    if (cpus.empty()) return "has no CPUs that are online";
    if (!view.request.isolated && view.topology().isolated.covers(cpus))
        return "has only CPUs in the kernel's isolcpus= list (" + cpus.text() + "); lease them with --isolated";
    return "has no CPUs this caller may use (it may use " + view.occupancy.allowed_cpus.text() + ")";
}

/// Nodes or sockets by number: each must exist and be of use.
model::Result<void> keep_listed(const View& view, Scope& scope, const IndexSet& wanted) {
    const auto existing = ids_of(scope.units);
    if (const auto missing = wanted - existing; !missing.empty())
        return model::fail(Errc::impossible, ids_text(scope, missing) + ": not on this machine, or offline; it has " +
                                                 ids_text(scope, existing));
    std::erase_if(scope.units, [&](const Unit& unit) { return !wanted.contains(unit.id); });
    bool cores = false;
    for (const auto& unit : scope.units) {
        cores = cores || !unit.cores.empty();
        const auto name = noun(scope, 1) + " " + std::to_string(unit.id);
        const auto& node = view.nodes[unit.nodes.front()];
        if (!scope.sockets && node.total > 0 && !node.memory)
            return model::fail(Errc::impossible, name + ": this caller may use memory of nodes " +
                                                     view.occupancy.allowed_nodes.text() + " only");
        const bool has_cpus = scope.sockets || !view.topology().nodes[unit.nodes.front()].cpus.empty();
        if (unit.cores.empty() && (has_cpus || unit.memory.empty()))
            return model::fail(Errc::impossible, name + " " + why_no_core(view, unit));
    }
    if (!cores)
        return model::fail(Errc::impossible, ids_text(scope, wanted) + " " + (wanted.size() == 1 ? "has" : "have") +
                                                 " memory but no CPUs; name a node with CPUs too, such as --node 0," +
                                                 wanted.text());
    scope.listed = true;
    scope.exactly = wanted.size();
    return {};
}

/// Without any memory among the units, each takes the nearest ordinary node's: a job must have some.
void borrow_memory(const View& view, Scope& scope) {
    if (std::ranges::any_of(scope.units, [](const Unit& unit) { return !unit.memory.empty(); })) return;
    for (auto& unit : scope.units) {
        std::optional<unsigned> best;
        for (unsigned at = 0; at < view.nodes.size(); ++at) {
            if (!view.nodes[at].memory || view.topology().nodes[at].kind != NodeKind::dram) continue;
            if (!best || view.between(unit.nodes.front(), at) < view.between(unit.nodes.front(), *best)) best = at;
        }
        if (!best) return;
        unit.memory = {*best};
        scope.borrowed = true;
    }
}

model::Result<void> check_cores_at_all(const View& view) {
    if (view.request.cores && *view.request.cores == 0)
        return model::fail(Errc::invalid_request, "cores: 0 cores cannot be leased; ask for 1 or more");
    if (std::ranges::any_of(view.cores, [](CoreState state) { return state != CoreState::out; })) return {};
    const auto usable = view.topology().online & view.occupancy.allowed_cpus;
    if (usable.empty())
        return model::fail(Errc::impossible, "no CPU may be leased: this caller is allowed '" +
                                                 view.occupancy.allowed_cpus.text() + "', online are '" +
                                                 view.topology().online.text() + "'");
    return model::fail(Errc::impossible, "no CPU may be leased: all that this caller may use (" + usable.text() +
                                             ") are in the kernel's isolcpus= list; lease them with --isolated");
}

}  // namespace

std::string noun(const Scope& scope, std::size_t count) {
    return std::string(scope.sockets ? "socket" : "node") + (count == 1 ? "" : "s");
}

std::string name_of(const Scope& scope, const std::vector<unsigned>& units) {
    IndexSet ids;
    for (const unsigned unit : units) ids.add(scope.units[unit].id);
    return ids_text(scope, ids);
}

model::Result<Scope> scope_of(const View& view) {
    const auto& request = view.request;
    if (auto cores = check_cores_at_all(view); !cores) return std::unexpected(cores.error());
    if (!request.share && !view.topology().contradictions.empty())
        return model::fail(Errc::impossible,
                           "whole cores cannot be kept from others here, the CPU map contradicts itself: " +
                               view.topology().contradictions.front() + "; --share does without");
    Scope scope;
    scope.sockets = request.sockets.kind != Choice::Kind::none;
    scope.units = scope.sockets ? socket_units(view) : node_units(view);
    const auto& choice = scope.sockets ? request.sockets : request.nodes;
    if (choice.kind == Choice::Kind::list) {
        if (auto kept = keep_listed(view, scope, choice.items); !kept) return std::unexpected(kept.error());
    } else {
        std::erase_if(scope.units, [&](const Unit& unit) {
            return unit.cores.empty() || (!scope.sockets && !ordinary(view.topology().nodes[unit.nodes.front()]));
        });
        if (choice.kind == Choice::Kind::any) scope.exactly = choice.count;
        if (choice.kind == Choice::Kind::all) scope.exactly = static_cast<unsigned>(scope.units.size());
        if (scope.exactly > scope.units.size())
            return model::fail(Errc::impossible, noun(scope, 2) + " any:" + std::to_string(choice.count) +
                                                     ": this caller may use CPUs of " +
                                                     std::to_string(scope.units.size()) + " (" +
                                                     ids_text(scope, ids_of(scope.units)) + ")");
    }
    borrow_memory(view, scope);
    return scope;
}

}  // namespace numalease::core::placing
