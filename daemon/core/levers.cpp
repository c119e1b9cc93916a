#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Balancing;
using model::Bytes;
using model::Knob;
using model::KnobKey;
using model::Mempolicy;

namespace {

std::optional<std::string> value_of(const Observed& observed, const KnobKey& key) {
    const auto found = observed.knobs.find(key);
    return found == observed.knobs.end() ? std::nullopt : found->second.value;
}

/// The integer to write; empty: keep. The knob is a bit mask on newer kernels, and any non-zero value is on.
std::string balancing_value(const model::Request& request, Mempolicy mempolicy, const Observed& observed) {
    switch (request.numa_balancing) {
        case Balancing::keep: return {};
        case Balancing::off: return "0";
        case Balancing::on: {
            const auto now = value_of(observed, {.knob = Knob::numa_balancing});
            return now && *now != "0" ? *now : "1";
        }
        case Balancing::automatic: return mempolicy == Mempolicy::local ? "0" : "";
    }
    return {};
}

}  // namespace

std::string_view field_of(Knob knob) {
    switch (knob) {
        case Knob::numa_balancing: return "numa-balancing";
        case Knob::thp_enabled: return "thp";
        case Knob::thp_defrag: return "thp-defrag";
        case Knob::zone_reclaim_mode: return "zone-reclaim";
        case Knob::weight:
        case Knob::weight_auto: return "weights";
        case Knob::hugepages: return "hugepages";
        case Knob::drop_caches:
        case Knob::reclaim: return "page-cache";
    }
    return "";
}

Mempolicy resolve_mempolicy(const model::Request& request, const model::Placement& placement) {
    if (request.mempolicy != Mempolicy::automatic) return request.mempolicy;
    return placement.nodes.size() > 1 ? Mempolicy::interleave : Mempolicy::bind;
}

std::map<unsigned, unsigned> weights_by_free_memory(const model::NodeSet& nodes,
                                                    const std::map<unsigned, NodeMemory>& memory) {
    // Small ones: so many pages go to a node in a row, and nodes that are about as free get the same.
    constexpr model::Bytes kLargest = 16;
    std::map<unsigned, model::Bytes> free;
    model::Bytes most = 1;
    for (const auto node : nodes.items()) {
        const auto found = memory.find(node);
        free[node] = found == memory.end() ? 0 : found->second.free + found->second.clean_cache;
        most = std::max(most, free[node]);
    }
    std::map<unsigned, unsigned> out;
    unsigned divisor = 0;
    for (const auto& [node, bytes] : free) {
        const auto sixteenths = static_cast<double>(bytes) / static_cast<double>(most) * static_cast<double>(kLargest);
        out[node] = std::max(1U, static_cast<unsigned>(std::lround(sixteenths)));
        divisor = std::gcd(divisor, out[node]);
    }
    for (auto& [node, weight] : out) weight /= divisor;
    return out;
}

/// `weighted` without weights: by free memory where the kernel can, evenly where it cannot.
void Stepper::choose_weights(model::Lease& lease, const model::Placement& placement) const {
    auto& request = lease.request;
    if (request.mempolicy != Mempolicy::weighted || !request.weights.empty()) return;
    const auto nodes = placement.nodes.items();
    const auto can = [&](unsigned node) {
        return value_of(observed_, {.knob = Knob::weight, .node = node}).has_value();
    };
    if (nodes.empty() || !std::ranges::all_of(nodes, can)) {
        request.mempolicy = Mempolicy::interleave;
        lease.notes.emplace_back(
            "mempolicy: this kernel has no weighted interleave (Linux 6.9 has): interleaves evenly instead");
        return;
    }
    if (nodes.size() < 2) return;
    request.weights = weights_by_free_memory(placement.nodes, observed_.memory);
    std::string text;
    for (const auto& [node, weight] : request.weights)
        text += (text.empty() ? "" : ",") + std::to_string(node) + '=' + std::to_string(weight);
    lease.notes.push_back("weights: " + text + ", by free memory");
}

std::vector<Lever> shared_levers(const model::Request& request, const model::Placement& placement,
                                 const Observed& observed) {
    std::vector<Lever> out;
    const auto add = [&](KnobKey key, std::string value) {
        if (value.empty() || value == "keep") return;
        out.push_back(
            {.key = key, .value = std::move(value), .required = model::is_required(request, field_of(key.knob))});
    };
    add({.knob = Knob::numa_balancing}, balancing_value(request, resolve_mempolicy(request, placement), observed));
    add({.knob = Knob::thp_enabled}, request.thp);
    add({.knob = Knob::thp_defrag}, request.thp_defrag);
    add({.knob = Knob::zone_reclaim_mode}, request.zone_reclaim);
    for (const auto& [node, weight] : request.weights)
        add({.knob = Knob::weight, .node = node}, std::to_string(weight));
    // Writing a weight makes the kernel stop keeping them itself: that switch is state to put back, too.
    if (!request.weights.empty() && value_of(observed, {.knob = Knob::weight_auto}))
        add({.knob = Knob::weight_auto}, "false");
    return out;
}

std::vector<Lever> pool_levers(const model::Request& request, const model::Placement& placement) {
    std::map<KnobKey, Lever> out;
    const bool required = model::is_required(request, "hugepages");
    for (const auto& item : request.hugepages) {
        const auto nodes = (item.nodes.empty() ? placement.nodes : item.nodes).items();
        auto left = item.amount / item.page_size;
        auto least_left = item.at_least / item.page_size;
        for (std::size_t i = 0; i < nodes.size(); ++i) {
            const auto shares = nodes.size() - i;  // evenly, the first nodes take what does not divide
            const auto pages = (left + shares - 1) / shares;
            const auto least = (least_left + shares - 1) / shares;
            left -= pages;
            least_left -= least;
            if (pages == 0) continue;
            const KnobKey key{.knob = Knob::hugepages, .node = nodes[i], .page_size = item.page_size};
            auto& lever = out[key];
            lever.key = key;
            lever.pages += pages;
            lever.at_least += required ? least : 0;
            lever.required = required;
        }
    }
    std::vector<Lever> levers;
    levers.reserve(out.size());
    for (auto& [key, lever] : out) levers.push_back(std::move(lever));
    return levers;
}

/// Huge pages for which other leases leave no memory now. What else is in their way the kernel says when they are asked
/// for, and how many it then gives.
std::optional<NoPlace> Stepper::no_room_for_pages(const model::Lease& lease, const model::Placement& placement,
                                                  const World& world) const {
    std::map<unsigned, Bytes> wanted;
    for (const auto& lever : pool_levers(lease.request, placement))
        if (lever.required) wanted[lever.key.node] += lever.at_least * lever.key.page_size;
    for (const auto& [node, bytes] : wanted) {
        const auto memory = observed_.memory.find(node);
        if (memory == observed_.memory.end()) continue;
        Bytes room = memory->second.free + memory->second.clean_cache;
        Bytes taken = observed_.reserve;
        std::vector<model::LeaseId> holders;
        const auto at = [&](const std::map<unsigned, Bytes>& map) {
            const auto found = map.find(node);
            return found == map.end() ? Bytes{0} : found->second;
        };
        const auto look = [&](const model::Lease& other) {
            if (other.id == lease.id || !other.caller.parent.empty()) return;
            Bytes pages = 0;
            for (const auto& lever : pool_levers(other.request, other.placement))
                if (lever.key.node == node) pages += lever.pages * lever.key.page_size;
            const auto promised = at(outstanding(other, observed_));
            if (world.over.contains(other.id)) {
                const auto used = observed_.used.find(other.id);
                room += pages + (used == observed_.used.end() ? 0 : at(used->second));
                return;
            }
            taken += promised;
            if (pages + promised > 0) holders.push_back(other.id);
        };
        for (const auto& [id, other] : state_.leases.begun())
            if (model::occupies(other.state)) look(other);
        for (const auto* other : world.beside)
            if (!world.over.contains(other->id)) {
                look(*other);
                for (const auto& lever : pool_levers(other->request, other->placement))
                    if (lever.key.node == node) taken += lever.pages * lever.key.page_size;
            }
        if (holders.empty() || bytes + taken <= room) continue;
        return NoPlace{.error = {model::Errc::not_now, "hugepages: " + model::bytes_text(bytes) + " asked on node " +
                                                           std::to_string(node) + ", which has " +
                                                           model::bytes_text(room > taken ? room - taken : 0) +
                                                           " that is not promised"},
                       .in_the_way = std::move(holders)};
    }
    return std::nullopt;
}

}  // namespace numalease::core
