#include <algorithm>
#include <limits>

#include "core/placing.hpp"

namespace numalease::core::placing {

namespace {

using model::CpuSet;

Bytes add(Bytes a, Bytes b) {
    return a > std::numeric_limits<Bytes>::max() - b ? std::numeric_limits<Bytes>::max() : a + b;
}
Bytes minus(Bytes a, Bytes b) { return a > b ? a - b : 0; }

Bytes value_at(const std::map<unsigned, Bytes>& map, unsigned key) {
    const auto found = map.find(key);
    return found == map.end() ? 0 : found->second;
}

/// avail(n) = MemFree + clean unmapped cache − reserve − Σ over leases max(0, promise − used).
/// With the leases gone, what they hold comes back too.
Bytes available(const View& view, unsigned id, Bytes total, const NodeMemory& memory) {
    const Bytes reserve = view.occupancy.reserve;
    if (view.level == Level::all_gone) return minus(total, reserve);
    Bytes out = add(memory.free, memory.clean_cache);
    for (const auto& occupant : view.occupancy.occupants)
        if (occupant.over || view.level == Level::leases_gone)
            if (const auto used = view.observed.used.find(occupant.id); used != view.observed.used.end())
                out = add(out, value_at(used->second, id));
    out = minus(std::min(out, total), reserve);
    if (view.level == Level::leases_gone) return out;
    for (const auto& occupant : view.occupancy.occupants)
        if (!occupant.over) out = minus(out, value_at(occupant.outstanding, id));
    return out;
}

void look_at_memory(View& view) {
    for (const auto& node : view.topology().nodes) {
        NodeMemory memory{.total = node.total, .free = 0, .clean_cache = 0};
        if (const auto found = view.observed.memory.find(node.id); found != view.observed.memory.end()) {
            memory = found->second;
            if (memory.total == 0) memory.total = node.total;
        }
        const bool usable = memory.total > 0 && view.occupancy.allowed_nodes.contains(node.id);
        view.nodes.push_back({.id = node.id,
                              .memory = usable,
                              .total = memory.total,
                              .avail = usable ? available(view, node.id, memory.total, memory) : 0});
    }
}

/// A shield leaves the lowest core that runs to the kernel and to everybody without a lease: one a machine.
const model::Core* housekeeping_core(const model::Topology& topology) {
    for (const auto& core : topology.cores)
        if (!core.cpus.empty() && !core.cpus.intersects(topology.isolated)) return &core;
    return nullptr;
}

/// Cores that could ever be leased to this caller: all online threads allowed, none isolated.
/// A restricted caller may be allowed no whole core at all (`taskset 0` with two threads a core): then parts count.
void find_candidates(View& view) {
    const auto& flags = view.facts.cores;
    view.cores.assign(flags.size(), CoreState::out);
    for (const auto wanted : {Facts::kWhole, Facts::kPart}) {
        bool any = false;
        for (std::size_t i = 0; i < flags.size(); ++i) {
            if ((flags[i] & wanted) == 0 || ((flags[i] & Facts::kIsolated) != 0 && !view.request.isolated)) continue;
            if (&view.topology().cores[i] == view.held_back) continue;
            view.cores[i] = CoreState::idle;
            any = true;
        }
        view.partial = any && wanted == Facts::kPart;
        if (any) return;
    }
}

CoreState state_of(const View& view, std::uint8_t flags) {
    const bool foreign = (flags & Facts::kForeign) != 0;
    const bool exclusive = (flags & Facts::kExclusive) != 0;
    const bool shared = (flags & Facts::kShared) != 0;
    if (foreign && view.level != Level::all_gone) return CoreState::busy;
    if (exclusive || (shared && !view.request.share))
        return view.level == Level::now ? CoreState::busy : CoreState::taken;
    return shared ? CoreState::taken : CoreState::idle;
}

void look_at_cores(View& view) {
    find_candidates(view);
    bool first = true;
    for (std::size_t i = 0; i < view.cores.size(); ++i) {
        if (view.cores[i] == CoreState::out) continue;
        view.cores[i] = state_of(view, view.facts.cores[i]);
        const unsigned efficiency = view.topology().cores[i].efficiency;
        view.hybrid = view.hybrid || (!first && efficiency != view.fastest);
        view.fastest = first ? efficiency : std::max(view.fastest, efficiency);
        first = false;
    }
}

}  // namespace

bool conflicts(const Occupant& occupant, const model::Request& request) { return !(occupant.share && request.share); }

Facts facts_of(const Observed& observed, const Occupancy& occupancy) {
    const auto& topology = observed.topology;
    const auto node_ids = topology.node_ids();
    CpuSet exclusive;
    CpuSet shared;
    for (const auto& occupant : occupancy.occupants)
        if (!occupant.over) (occupant.share ? shared : exclusive) |= occupant.cpus;
    Facts out;
    for (const auto& core : topology.cores) {
        // A sibling that is offline now may be back before the lease ends, so it counts as held.
        const auto hit = [&](const CpuSet& set) { return set.intersects(core.cpus) || set.intersects(core.offline); };
        unsigned flags = 0;
        if (!core.cpus.empty() && node_ids.contains(core.node) && occupancy.allowed_cpus.intersects(core.cpus)) {
            flags = occupancy.allowed_cpus.covers(core.cpus) ? Facts::kWhole : Facts::kPart;
            if (core.cpus.intersects(topology.isolated)) flags |= Facts::kIsolated;
            if (hit(occupancy.foreign_cpus)) flags |= Facts::kForeign;
            if (hit(exclusive)) flags |= Facts::kExclusive;
            if (hit(shared)) flags |= Facts::kShared;
        }
        out.cores.push_back(static_cast<std::uint8_t>(flags));
    }
    const auto count = topology.nodes.size();
    out.distance.reserve(count * count);
    for (std::size_t from = 0; from < count; ++from)
        for (std::size_t to = 0; to < count; ++to) {
            const bool known = from < topology.distance.size() && to < topology.distance[from].size();
            out.distance.push_back(known ? topology.distance[from][to] : (from == to ? 10U : 20U));
        }
    return out;
}

View look_at(const Observed& observed, const Occupancy& occupancy, const model::Request& request, const Near& near,
             const Facts& facts, Level level) {
    View view{
        .observed = observed, .occupancy = occupancy, .request = request, .near = near, .facts = facts, .level = level};
    if (request.shield) view.held_back = housekeeping_core(observed.topology);
    look_at_memory(view);
    look_at_cores(view);
    return view;
}

std::vector<Bytes> spread(Bytes amount, const std::vector<Bytes>& caps) {
    std::vector<std::size_t> order(caps.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return caps[a] < caps[b]; });
    std::vector<Bytes> out(caps.size(), 0);
    for (std::size_t i = 0; i < order.size(); ++i) {
        const auto rest = order.size() - i;
        // Rounded down, so that what does not divide goes where most is left.
        out[order[i]] = std::min(caps[order[i]], amount / rest);
        amount -= out[order[i]];
    }
    return out;
}

namespace {

/// Parts by weight; each node's is rounded up, the last one takes what is left.
std::vector<Bytes> weighted_parts(const View& view, const std::vector<unsigned>& nodes, bool exact) {
    const bool weighted = view.request.mempolicy == model::Mempolicy::weighted;
    std::vector<Bytes> weights;
    Bytes sum = 0;
    for (const unsigned at : nodes) {
        const auto& given = view.request.weights;
        const auto found = given.find(view.nodes[at].id);
        weights.push_back(weighted && found != given.end() ? found->second : 1);
        sum += weights.back();
    }
    const Bytes need = view.request.memory.value_or(0);
    Bytes left = need;
    for (auto& weight : weights) {
        const Bytes part = need / sum * weight + (need % sum * weight + sum - 1) / sum;
        weight = exact ? std::min(left, part) : part;
        left -= std::min(left, part);
    }
    return weights;
}

bool takes_parts(const View& view) {
    return view.request.mempolicy == model::Mempolicy::interleave ||
           view.request.mempolicy == model::Mempolicy::weighted;
}

}  // namespace

bool memory_fits(const View& view, const std::vector<unsigned>& nodes) {
    const Bytes need = view.request.memory.value_or(0);
    if (need == 0) return true;
    if (nodes.empty()) return false;
    if (takes_parts(view)) {
        const auto parts = weighted_parts(view, nodes, false);
        for (std::size_t i = 0; i < nodes.size(); ++i)
            if (parts[i] > view.nodes[nodes[i]].avail) return false;
        return true;
    }
    Bytes sum = 0;
    for (const unsigned at : nodes) sum = add(sum, view.nodes[at].avail);
    return sum >= need;
}

std::vector<Bytes> memory_parts(const View& view, const std::vector<unsigned>& nodes) {
    if (takes_parts(view)) return weighted_parts(view, nodes, true);
    std::vector<Bytes> caps;
    for (const unsigned at : nodes) caps.push_back(view.nodes[at].avail);
    return spread(view.request.memory.value_or(0), caps);
}

}  // namespace numalease::core::placing
