#include "model/levers.hpp"

#include <algorithm>
#include <array>

namespace numalease::model {

namespace {

/// `auto` turns balancing off under the local policy, and under no other.
bool sets_balancing(const Request& request) {
    if (request.numa_balancing == Balancing::automatic) return request.mempolicy == Mempolicy::local;
    return request.numa_balancing != Balancing::keep;
}

constexpr std::array kLevers{
    KernelLever{"weights", [](const Request& r) { return !r.weights.empty() || r.mempolicy == Mempolicy::weighted; }},
    KernelLever{"numa-balancing", sets_balancing},
    KernelLever{"thp", [](const Request& r) { return r.thp != "keep"; }},
    KernelLever{"thp-defrag", [](const Request& r) { return r.thp_defrag != "keep"; }},
    KernelLever{"zone-reclaim", [](const Request& r) { return r.zone_reclaim != "keep"; }},
    KernelLever{"hugepages", [](const Request& r) { return !r.hugepages.empty(); }},
    // Evicting a model's own pages is the client's doing, and nobody else's loss.
    KernelLever{"page-cache",
                [](const Request& r) { return r.page_cache == PageCache::reclaim || r.page_cache == PageCache::drop; }},
    KernelLever{"shield", [](const Request& r) { return r.shield; }},
};

}  // namespace

std::span<const KernelLever> kernel_levers() { return kLevers; }

bool is_kernel_lever(std::string_view field) {
    return std::ranges::find(kLevers, field, &KernelLever::field) != kLevers.end();
}

}  // namespace numalease::model
