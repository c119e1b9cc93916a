#include <algorithm>

#include "core/placing.hpp"

namespace numalease::core::placing {

namespace {

using model::bytes_text;

constexpr std::size_t kShownUnits = 8;  ///< a line for people, not a table
constexpr std::size_t kRunnersUp = 3;

std::string of(std::uint64_t part, std::uint64_t whole) {
    return std::to_string(part) + " of " + std::to_string(whole);
}

std::string counted(std::uint64_t count, const std::string& thing) {
    return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

std::string joined(const std::vector<std::string>& items) {
    std::string out;
    for (std::size_t i = 0; i < items.size() && i < kShownUnits; ++i) out += (i > 0 ? ", " : "") + items[i];
    return items.size() > kShownUnits ? out + " and " + std::to_string(items.size() - kShownUnits) + " more" : out;
}

std::string unit_name(const Scope& scope, const Unit& unit) { return noun(scope, 1) + " " + std::to_string(unit.id); }

std::string asked_memory(const View& view) {
    return (view.request.memory_is_estimate ? "an estimated " : "") + bytes_text(view.request.memory.value_or(0));
}

std::string needed_memory(const View& view) {
    return view.request.memory_is_estimate ? asked_memory(view) + " is needed" : asked_memory(view) + " is asked for";
}

/// "node 0 12G of 64G, node 1 …": what each can give at this level.
std::string memory_per_node(const View& view, const std::vector<unsigned>& nodes) {
    std::vector<std::string> items;
    for (const unsigned at : nodes) {
        const auto& node = view.nodes[at];
        items.push_back("node " + std::to_string(node.id) + " " + bytes_text(node.avail) + " of " +
                        bytes_text(node.total));
    }
    return joined(items);
}

std::string why_these_units(const View& view, const Scope& scope, const Candidate& chosen) {
    const auto name = name_of(scope, chosen.units);
    const auto& near = view.near;
    if (scope.listed) return name + ": as asked";
    std::string out = name + ": ";
    if (scope.exactly > 0)
        out += "any " + std::to_string(scope.exactly);
    else if (chosen.units.size() == scope.units.size())
        out += chosen.units.size() == 1 ? "the only one" : "all are needed";
    else
        out += "the fewest that hold it";
    if (near.decides())
        out += ", nearest to " + near.label;
    else if (chosen.units.size() > 1)
        out += ", nearest to each other";
    return out;
}

std::string why_near(const View& view, const Scope& scope) {
    const auto& near = view.near;
    if (!near.decides())
        return near.label + ": the firmware does not say which node it is on, so nearness decides nothing";
    const auto where = near.label +
                       (near.balanced ? ": the firmware does not say which node it is on; balanced over the nodes, it "
                                        "counts as on node "
                                      : ": on node ") +
                       near.nodes.text();
    if (scope.listed) return where + "; nodes were named, so nearness decides nothing";
    if (near.nodes.size() > 1) return where + ", all equally near";
    return where;
}

/// Where a candidate is worse than the chosen one: the first difference decides.
std::string why_not(const View& view, const Score& best, const Score& other) {
    if (other.occupied != best.occupied) return "would share " + counted(other.occupied, "core") + " with others";
    if (other.held_back != best.held_back) return "one core there is held back for everybody else";
    if (other.starved != best.starved) return "no free memory there";
    if (other.near != best.near)
        return "farther from " + view.near.label + " (distance " + std::to_string(other.near) + " against " +
               std::to_string(best.near) + ")";
    if (other.slow != best.slow) return counted(other.slow, "slower core");
    if (other.apart != best.apart) return "farther from each other";
    if (other.sockets != best.sockets) return "on " + counted(other.sockets, "socket");
    if (other.spare_cores != best.spare_cores)
        return "would cut into a larger hole (" + counted(other.spare_cores, "core") + " left over against " +
               std::to_string(best.spare_cores) + ")";
    if (other.spare_memory != best.spare_memory)
        return view.request.memory ? "would cut into a larger hole (" + bytes_text(other.spare_memory) +
                                         " left over against " + bytes_text(best.spare_memory) + ")"
                                   : "less free memory (" + bytes_text(~other.spare_memory) + " against " +
                                         bytes_text(~best.spare_memory) + ")";
    return "as good; the lower number wins";
}

/// Why one unit alone was no candidate at all.
std::string why_unfit(const View& view, const Unit& unit) {
    if (unit.usable < unit.cores.size() && (!view.request.cores || unit.usable < *view.request.cores))
        return of(unit.usable, unit.cores.size()) + " cores free";
    if (view.request.cores && unit.usable < *view.request.cores) return counted(unit.cores.size(), "core") + " only";
    if (unit.memory.empty()) return "no memory this caller may use";
    return "cannot hold " + asked_memory(view) + " (" + memory_per_node(view, unit.memory) + " available)";
}

}  // namespace

std::vector<std::string> reasons(const View& view, const Scope& scope, const Candidate& chosen,
                                 const model::Placement& placement) {
    std::vector<std::string> out{why_these_units(view, scope, chosen)};
    if (!view.near.label.empty() && !view.near.drawn) out.push_back(why_near(view, scope));
    std::size_t all = 0;
    for (const unsigned unit : chosen.units) all += scope.units[unit].cores.size();
    auto cores = of(placement.cores, all) + (all == 1 ? " core" : " cores");
    if (chosen.score.occupied > 0) cores += ", " + std::to_string(chosen.score.occupied) + " shared with others";
    if (view.hybrid)
        cores += ", " + std::to_string(placement.cores - std::min<std::uint64_t>(placement.cores, chosen.score.slow)) +
                 " of the fast kind";
    if (view.held_back != nullptr)
        cores += "; CPUs " + view.held_back->cpus.text() + " are held back from every shield, for everybody else";
    out.push_back(cores);
    if (view.partial)
        out.push_back("this caller is allowed only parts of cores (" + view.occupancy.allowed_cpus.text() +
                      "): the other threads of these cores are not in the lease");
    const auto memory = memory_nodes(scope, chosen.units);
    if (scope.borrowed)
        out.push_back("no memory there: it comes from node " + placement.nodes.text() + ", the nearest");
    if (view.request.memory)
        out.push_back((view.request.memory_is_estimate ? "fits an estimated " : "fits ") +
                      bytes_text(*view.request.memory) + " (" + memory_per_node(view, memory) + " available)");
    return out;
}

std::vector<std::string> runners_up(const View& view, const Scope& scope, const std::vector<Candidate>& found) {
    std::vector<std::string> out;
    if (scope.listed) return out;
    const auto& best = found.front();
    for (std::size_t i = 1; i < found.size() && out.size() < kRunnersUp; ++i) {
        if (found[i].score.size != best.score.size) break;
        out.push_back(name_of(scope, found[i].units) + ": " + why_not(view, best.score, found[i].score));
    }
    if (best.units.size() > 1 && scope.exactly == 0 && out.size() < kRunnersUp)
        out.push_back("fewer " + noun(scope, 2) + ": do not hold it");
    for (unsigned unit = 0; unit < scope.units.size() && out.size() < kRunnersUp && best.units.size() == 1; ++unit) {
        const bool candidate =
            std::ranges::any_of(found, [&](const Candidate& it) { return it.units == std::vector{unit}; });
        if (!candidate) out.push_back(unit_name(scope, scope.units[unit]) + ": " + why_unfit(view, scope.units[unit]));
    }
    return out;
}

std::string shortage(const View& view, const Scope& scope) {
    std::vector<unsigned> every(scope.units.size());
    std::vector<std::string> busy;
    std::vector<std::string> counts;
    std::uint64_t usable = 0;
    std::size_t free_units = 0;
    for (unsigned i = 0; i < scope.units.size(); ++i) {
        const auto& unit = scope.units[i];
        every[i] = i;
        usable += unit.usable;
        free_units += unit.usable == unit.cores.size() ? 1U : 0U;
        if (unit.cores.empty()) continue;
        counts.push_back(unit_name(scope, unit) + " " + of(unit.usable, unit.cores.size()));
        if (unit.usable < unit.cores.size()) busy.push_back(counts.back());
    }
    std::vector<std::string> out;
    const auto needed_units = std::max<std::size_t>(scope.exactly, 1);
    const std::string cores = view.level == Level::all_gone ? "" : " free";
    if (view.request.cores && usable < *view.request.cores)
        out.push_back(counted(*view.request.cores, "core") + " asked for, " + name_of(scope, every) + " " +
                      (scope.units.size() == 1 ? "has " : "have ") + std::to_string(usable) + cores +
                      " for this caller (" + joined(counts) + ")");
    if (!view.request.cores && free_units < needed_units)
        out.push_back(
            std::string("all cores of ") +
            (scope.listed ? name_of(scope, every) : std::to_string(needed_units) + " " + noun(scope, needed_units)) +
            " asked for, free are " + joined(busy));
    const auto memory = memory_nodes(scope, every);
    if (view.request.memory && (!memory_fits(view, memory) || out.empty()))
        out.push_back(needed_memory(view) + ", " + (view.level == Level::all_gone ? "in all" : "available") + ": " +
                      (memory.empty() ? "no memory this caller may use" : memory_per_node(view, memory)));
    if (out.empty()) out.push_back("no " + counted(needed_units, noun(scope, 1)) + " together can hold the request");
    if (view.held_back != nullptr)
        out.push_back("CPUs " + view.held_back->cpus.text() + " are held back from every shield, for everybody else");
    std::string text;
    for (const auto& item : out) text += (text.empty() ? "" : "; ") + item;
    return text;
}

}  // namespace numalease::core::placing
