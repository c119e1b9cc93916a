#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/placing.hpp"

namespace numalease::core::placing {

namespace {

/// The free cores of one last-level cache, and how many it has in all.
struct Group {
    std::vector<unsigned> cores;
    std::size_t total = 0;
    [[nodiscard]] bool whole() const { return cores.size() == total; }
};

/// The group to take from when `want` cores are still missing: one that fits exactly, a whole one that is not too
/// large, the part that leaves the smallest rest, the largest. In this order, and the lowest number among equals.
std::map<unsigned, Group>::iterator best_group(std::map<unsigned, Group>& groups, std::size_t want) {
    const auto rank = [&](const Group& group) {
        const auto size = group.cores.size();
        if (size == want) return std::pair(group.whole() ? 0 : 1, std::size_t{0});
        if (group.whole() && size < want) return std::pair(2, ~size);
        if (size > want) return std::pair(3, size);
        return std::pair(4, ~size);
    };
    return std::ranges::min_element(groups, {}, [&](const auto& entry) { return rank(entry.second); });
}

/// Takes `want` of `cores`, which are alike but for their caches.
void take_by_cache(const View& view, const std::vector<unsigned>& cores, std::size_t want,
                   const std::unordered_map<unsigned, std::size_t>& cache_sizes, std::vector<unsigned>& out) {
    std::map<unsigned, Group> groups;
    for (const unsigned core : cores) {
        const unsigned llc = view.topology().cores[core].llc;
        groups[llc].cores.push_back(core);
        groups[llc].total = cache_sizes.at(llc);
    }
    while (want > 0 && !groups.empty()) {
        const auto group = best_group(groups, want);
        const auto count = std::min(want, group->second.cores.size());
        out.insert(out.end(), group->second.cores.begin(),
                   group->second.cores.begin() + static_cast<std::ptrdiff_t>(count));
        want -= count;
        groups.erase(group);
    }
}

/// Takes `want` cores of one unit: idle before shared, fast before slow, then by cache.
void take_from(const View& view, const Unit& unit, std::size_t want, std::vector<unsigned>& out) {
    const auto& cores = view.topology().cores;
    std::map<std::pair<bool, unsigned>, std::vector<unsigned>> classes;  // (shared, slowness) → cores
    std::unordered_map<unsigned, std::size_t> cache_sizes;
    for (const unsigned core : unit.cores) {
        cache_sizes[cores[core].llc] = 0;
        const auto state = view.cores[core];
        if (state == CoreState::idle || state == CoreState::taken)
            classes[{state == CoreState::taken, view.fastest - cores[core].efficiency}].push_back(core);
    }
    // A cache of which some cores are not this caller's is not whole.
    for (const auto& core : cores)
        if (const auto size = cache_sizes.find(core.llc); size != cache_sizes.end())
            size->second += core.cpus.empty() ? 0U : 1U;
    for (const auto& [kind, members] : classes) {
        const auto count = std::min(want, members.size());
        take_by_cache(view, members, count, cache_sizes, out);
        want -= count;
    }
}

}  // namespace

std::vector<unsigned> pick_cores(const View& view, const Scope& scope, const std::vector<unsigned>& units) {
    std::vector<unsigned> out;
    if (!view.request.cores) {
        for (const unsigned unit : units)
            out.insert(out.end(), scope.units[unit].cores.begin(), scope.units[unit].cores.end());
        std::ranges::sort(out);
        return out;
    }
    // Evenly over the units; from idle and fast cores alone where there are enough of them.
    const Bytes want = *view.request.cores;
    std::vector<Bytes> shares;
    for (const auto count : {&Unit::fast, &Unit::idle, &Unit::usable}) {
        if (count == &Unit::fast && (!view.hybrid || view.request.share)) continue;
        std::vector<Bytes> caps;
        Bytes sum = 0;
        for (const unsigned unit : units) {
            caps.push_back(scope.units[unit].*count);
            sum += caps.back();
        }
        shares = spread(want, caps);
        if (sum >= want) break;
    }
    for (std::size_t i = 0; i < units.size(); ++i)
        take_from(view, scope.units[units[i]], static_cast<std::size_t>(shares[i]), out);
    std::ranges::sort(out);
    return out;
}

}  // namespace numalease::core::placing
