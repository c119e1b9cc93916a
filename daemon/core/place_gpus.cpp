#include <algorithm>
#include <tuple>

#include "core/placing.hpp"

namespace numalease::core::placing {

namespace {

using model::Errc;
using model::IndexSet;
using model::NodeSet;
using model::Placement;
using model::Request;

constexpr std::size_t kShown = 8;
constexpr std::size_t kTried = 8;  ///< sets of GPUs for which cores are looked for

/// One GPU as a request sees it.
struct Card {
    HomedGpu gpu;
    unsigned package = 0;
    bool allowed = true;
    bool busy = false;                    ///< another's, or as many share it as may
    std::vector<model::LeaseId> holders;  ///< who has it
};

/// Smaller is better; compared from the top. This order is the policy of choosing among GPUs.
struct GpuSet {
    std::uint64_t busy = 0;
    std::uint64_t untold = 0;  ///< no variable can tell a command of them: no UUID
    std::uint64_t kinds = 0;   ///< vendors
    std::uint64_t shared = 0;  ///< others have them too
    std::uint64_t sockets = 0;
    std::uint64_t away = 0;      ///< distance to the nodes or the device that the request names, summed
    std::uint64_t apart = 0;     ///< distance among them, summed
    std::uint64_t spare = 0;     ///< best fit: free ones left over on their sockets
    std::vector<unsigned> gpus;  ///< positions in bus order, ascending

    auto operator<=>(const GpuSet&) const = default;
    /// As good as it before anything that the lease's cores could change.
    [[nodiscard]] bool ties_with(const GpuSet& it) const {
        return std::tie(busy, untold, kinds, shared, sockets) ==
               std::tie(it.busy, it.untold, it.kinds, it.shared, it.sockets);
    }
};

struct GpuView {
    const model::Topology& topology;
    const Occupancy& occupancy;
    const Request& request;
    NodeSet named;  ///< nodes that the request names, or a device's it wants to be near to
    std::vector<Card> cards;
    std::vector<unsigned> distance;  ///< cards × cards

    [[nodiscard]] unsigned between(const NodeSet& from, const NodeSet& to) const {
        unsigned best = ~0U;
        for (const unsigned a : from.items())
            for (const unsigned b : to.items()) best = std::min(best, topology.distance_between(a, b));
        return best == ~0U ? 0 : best;
    }
    [[nodiscard]] unsigned between_cards(unsigned a, unsigned b) const { return distance[a * cards.size() + b]; }
    [[nodiscard]] unsigned away(unsigned card) const { return between(cards[card].gpu.home, named); }
};

/// The newcomer and everybody who is there must put up with that many.
bool is_busy(const Occupancy& occupancy, const Card& card, unsigned share) {
    if (card.holders.empty()) return false;
    auto most = share;
    for (const auto& occupant : occupancy.occupants)
        if (occupant.gpus.contains(card.gpu.device->pci)) most = std::min(most, occupant.gpu_share);
    return card.holders.size() + 1 > most;
}

NodeSet named_nodes(const model::Topology& topology, const Request& request, const Near& near) {
    using Kind = model::Choice::Kind;
    NodeSet out;
    for (const auto& node : topology.nodes)
        if ((request.nodes.kind == Kind::list && request.nodes.items.contains(node.id)) ||
            (request.sockets.kind == Kind::list && request.sockets.items.contains(node.package)))
            out.add(node.id);
    return out.empty() ? near.nodes : out;
}

GpuView look_at_gpus(const model::Topology& topology, const Occupancy& occupancy, const Request& request,
                     const Near& near) {
    GpuView view{.topology = topology,
                 .occupancy = occupancy,
                 .request = request,
                 .named = named_nodes(topology, request, near),
                 .cards = {},
                 .distance = {}};
    for (auto& gpu : homed_gpus(topology)) {
        Card card{.gpu = std::move(gpu)};
        const auto& pci = card.gpu.device->pci;
        if (!card.gpu.home.empty())
            if (const auto* node = topology.node(card.gpu.home.first())) card.package = node->package;
        card.allowed = !occupancy.allowed_gpus || occupancy.allowed_gpus->contains(pci);
        for (const auto& occupant : occupancy.occupants)
            if (occupant.gpus.contains(pci)) card.holders.push_back(occupant.id);
        card.busy = is_busy(occupancy, card, request.gpu_share);
        view.cards.push_back(std::move(card));
    }
    for (const auto& from : view.cards)
        for (const auto& to : view.cards) view.distance.push_back(view.between(from.gpu.home, to.gpu.home));
    return view;
}

GpuSet scored(const GpuView& view, std::vector<unsigned> gpus) {
    std::ranges::sort(gpus);
    GpuSet out{.gpus = std::move(gpus)};
    std::set<std::string> vendors;
    IndexSet packages;
    for (std::size_t i = 0; i < out.gpus.size(); ++i) {
        const auto& card = view.cards[out.gpus[i]];
        out.busy += card.busy ? 1U : 0U;
        out.untold += card.gpu.device->uuid.empty() ? 1U : 0U;
        out.shared += card.holders.empty() ? 0U : 1U;
        out.away += view.away(out.gpus[i]);
        for (std::size_t j = 0; j < i; ++j) out.apart += view.between_cards(out.gpus[j], out.gpus[i]);
        vendors.insert(card.gpu.device->vendor);
        packages.add(card.package);
    }
    out.kinds = vendors.size();
    out.sockets = packages.size();
    for (unsigned i = 0; i < view.cards.size(); ++i) {
        const auto& card = view.cards[i];
        const bool is_free = card.allowed && card.holders.empty() && !std::ranges::binary_search(out.gpus, i);
        out.spare += is_free && packages.contains(card.package) ? 1U : 0U;
    }
    return out;
}

/// `count` GPUs around one: each time the one that goes best with those that are there.
std::vector<unsigned> grow(const GpuView& view, unsigned seed, unsigned count) {
    const auto& vendor = view.cards[seed].gpu.device->vendor;
    std::vector<unsigned> members;
    std::vector<std::uint64_t> distance;  // of each to what is named and to the set
    std::vector<char> in(view.cards.size(), 0);
    IndexSet packages;
    for (unsigned at = 0; at < view.cards.size(); ++at) distance.push_back(view.away(at));
    const auto add = [&](unsigned member) {
        members.push_back(member);
        in[member] = 1;
        packages.add(view.cards[member].package);
        for (unsigned at = 0; at < view.cards.size(); ++at) distance[at] += view.between_cards(member, at);
    };
    const auto rank = [&](unsigned at) {
        const auto& card = view.cards[at];
        return std::tuple(card.busy, card.gpu.device->uuid.empty(), card.gpu.device->vendor != vendor,
                          !card.holders.empty(), !packages.contains(card.package), distance[at], at);
    };
    add(seed);
    while (members.size() < count) {
        std::optional<decltype(rank(seed))> best;
        for (unsigned at = 0; at < view.cards.size(); ++at)
            if (view.cards[at].allowed && in[at] == 0) best = best ? std::min(*best, rank(at)) : rank(at);
        add(std::get<unsigned>(*best));
    }
    return members;
}

std::string joined(const GpuView& view, const std::vector<unsigned>& gpus) {
    std::string out;
    for (std::size_t i = 0; i < gpus.size() && i < kShown; ++i)
        out += (out.empty() ? "" : ", ") + view.cards[gpus[i]].gpu.device->pci;
    return gpus.size() > kShown ? out + " and " + std::to_string(gpus.size() - kShown) + " more" : out;
}

std::string label_of(const GpuView& view, const std::vector<unsigned>& gpus) {
    return (gpus.size() == 1 ? "GPU " : "GPUs ") + joined(view, gpus);
}

/// What there is to choose from: the machine's, or those of the lease that asks for a part of its own.
std::string what_there_is(const GpuView& view) {
    if (!view.occupancy.allowed_gpus) return existing(view.topology, "gpu");
    std::vector<unsigned> allowed;
    for (unsigned at = 0; at < view.cards.size(); ++at)
        if (view.cards[at].allowed) allowed.push_back(at);
    return "the lease that this is asked from has " + (allowed.empty() ? std::string("none") : joined(view, allowed));
}

/// Sets that are as good as each other, best first; with busy ones only where there is none without.
model::Result<std::vector<GpuSet>> choose_gpus(const GpuView& view) {
    const auto& wanted = view.request.gpus;
    const auto impossible = [&](const std::string& what) {
        return model::fail(Errc::impossible, "gpu " + what + "; " + what_there_is(view));
    };
    if (wanted.any == 0) {
        std::vector<unsigned> gpus;
        for (const auto& item : wanted.items) {
            const auto at = find_gpu(view.topology, item);
            if (!at) return impossible(item + ": no such GPU");
            if (!view.cards[*at].allowed) return impossible(item + ": not one of ours");
            if (std::ranges::count(gpus, *at) == 0) gpus.push_back(*at);
        }
        return std::vector{scored(view, std::move(gpus))};
    }
    const auto there = static_cast<std::size_t>(std::ranges::count(view.cards, true, &Card::allowed));
    if (wanted.any > there) return impossible("any:" + std::to_string(wanted.any) + ": there are not as many");
    std::vector<GpuSet> out;
    for (unsigned seed = 0; seed < view.cards.size(); ++seed)
        if (view.cards[seed].allowed) out.push_back(scored(view, grow(view, seed, wanted.any)));
    std::ranges::sort(out);
    out.erase(std::ranges::unique(out).begin(), out.end());
    std::erase_if(out, [best = out.front()](const GpuSet& it) { return !it.ties_with(best); });
    if (out.size() > kTried) out.resize(kTried);
    return out;
}

/// The request's own wish, or where it has none, to be where its GPUs are.
Near near_gpus(const GpuView& view, const GpuSet& set) {
    Near near{.label = label_of(view, set.gpus), .nodes = {}, .cost = {}, .drawn = true};
    std::vector<NodeSet> homes;
    for (const unsigned at : set.gpus)
        if (const auto& home = view.cards[at].gpu.home; !home.empty()) homes.push_back(home);
    for (const auto& home : homes) near.nodes |= home;
    for (const auto& node : view.topology.nodes) {
        unsigned sum = 0;
        for (const auto& home : homes) sum += view.between(NodeSet{node.id}, home);
        near.cost.push_back(homes.empty() ? 0 : sum / static_cast<unsigned>(homes.size()));
    }
    return near;
}

std::string list_of(const IndexSet& ids, const std::string& noun) {
    return noun + (ids.size() == 1 ? " " : "s ") + ids.text();
}

std::string why_this_one(const GpuView& view, const Card& card, const Placement& placement) {
    const auto& device = *card.gpu.device;
    auto out = "GPU " + device.pci + (device.uuid.empty() ? "" : " (" + device.uuid + ")") + ": ";
    if (card.gpu.home.empty())
        out += "nothing says where it is";
    else if (card.gpu.balanced)
        out += "the firmware does not say which node it is on; balanced over the nodes, it counts as on " +
               list_of(card.gpu.home, "node");
    else
        out += "on " + list_of(card.gpu.home, "node");
    if (!card.gpu.home.empty() && !card.gpu.home.intersects(placement.nodes))
        out += ", away from the lease (distance " + std::to_string(view.between(card.gpu.home, placement.nodes)) + ")";
    if (!card.holders.empty()) {
        out += ", shared with";
        for (std::size_t i = 0; i < card.holders.size() && i < kShown; ++i) out += " " + card.holders[i];
    }
    return out;
}

/// The placement with its GPUs, and why these.
Placement with_gpus(const GpuView& view, const GpuSet& set, Placement placement) {
    IndexSet sockets;
    for (const unsigned at : set.gpus) {
        const auto& card = view.cards[at];
        const auto& device = *card.gpu.device;
        placement.gpus.push_back({.pci = device.pci,
                                  .uuid = device.uuid,
                                  .vendor = device.vendor,
                                  .name = device.name,
                                  .nodes = card.gpu.home});
        if (!card.gpu.home.empty()) sockets.add(card.package);
        if (placement.gpus.size() <= kShown) placement.why.push_back(why_this_one(view, card, placement));
    }
    if (set.gpus.size() > 1 && !sockets.empty())
        placement.why.push_back(
            std::to_string(set.gpus.size()) + " GPUs: " +
            (sockets.size() == 1 ? "all on " + list_of(sockets, "socket")
                                 : "they span " + list_of(sockets, "socket") +
                                       (view.request.gpus.any > 0 ? ", no socket has as many free" : ", as asked")));
    return placement;
}

/// Fewer GPUs, others, or sharing them: what would be granted at once.
std::string fitting_now(const Observed& observed, const GpuView& view, const GpuSet& set) {
    const auto is_free = [](const Card& card) { return card.allowed && !card.busy; };
    const auto free = static_cast<std::size_t>(std::ranges::count_if(view.cards, is_free));
    const auto fits = [&](const Request& request) { return place(observed, view.occupancy, request).has_value(); };
    std::string out;
    Request other = view.request;
    other.gpus = {.items = {}, .any = static_cast<unsigned>(std::min(free, set.gpus.size()))};
    if (other.gpus.any > 0 && fits(other)) out = "--gpu any:" + std::to_string(other.gpus.any);
    other = view.request;
    for (const unsigned at : set.gpus)
        other.gpu_share = std::max(other.gpu_share, static_cast<unsigned>(view.cards[at].holders.size()) + 1);
    if (other.gpu_share != view.request.gpu_share && fits(other))
        out += (out.empty() ? "" : " or ") + std::string("--gpu-share ") + std::to_string(other.gpu_share);
    return out;
}

/// Somebody has them. What else is missing is said too: a request that can never be placed must not wait for them.
NoPlace busy_gpus(const Observed& observed, const GpuView& view, const GpuSet& set, const Near& near) {
    const auto rest = place_near(observed, view.occupancy, view.request, near);
    if (!rest && rest.error().error.code != Errc::not_now) return rest.error();
    NoPlace out{.error = {Errc::not_now, ""}};
    std::vector<unsigned> busy;
    for (const unsigned at : set.gpus) {
        const auto& card = view.cards[at];
        if (!card.busy) continue;
        busy.push_back(at);
        for (const auto& holder : card.holders)
            if (std::ranges::count(out.in_the_way, holder) == 0) out.in_the_way.push_back(holder);
    }
    out.error.detail = "no room now: " + label_of(view, busy) + (busy.size() == 1 ? " is leased" : " are leased") +
                       (view.request.gpu_share > 1 ? " and not to be shared by more" : "");
    if (rest) {
        out.fits_now = fitting_now(observed, view, set);
        return out;
    }
    out.error.detail += "; " + rest.error().error.detail;
    for (const auto& id : rest.error().in_the_way)
        if (std::ranges::count(out.in_the_way, id) == 0) out.in_the_way.push_back(id);
    return out;
}

}  // namespace

std::vector<HomedGpu> homed_gpus(const model::Topology& topology) {
    std::vector<HomedGpu> out;
    std::map<unsigned, unsigned> on_node;
    std::map<unsigned, unsigned> on_package;
    const auto settle = [&](const NodeSet& home) {
        for (const unsigned id : home.items()) {
            ++on_node[id];
            if (const auto* node = topology.node(id)) ++on_package[node->package];
        }
    };
    for (const auto* device : of_kind(topology, "gpu")) {
        out.push_back({.device = device, .home = device->nodes & topology.node_ids()});
        settle(out.back().home);
    }
    for (auto& gpu : out) {
        if (!gpu.home.empty()) continue;
        const model::Node* best = nullptr;
        const auto load = [&](const model::Node& node) {
            return std::tuple(on_package[node.package], on_node[node.id], node.id);
        };
        for (const auto& node : topology.nodes) {
            if (node.kind != model::NodeKind::dram || node.cpus.empty()) continue;
            if (best == nullptr || load(node) < load(*best)) best = &node;
        }
        if (best == nullptr) continue;
        gpu.home = NodeSet{best->id};
        gpu.balanced = true;
        settle(gpu.home);
    }
    return out;
}

std::expected<Placement, NoPlace> place_with_gpus(const Observed& observed, const Occupancy& occupancy,
                                                  const Request& request, const Near& near) {
    const auto view = look_at_gpus(observed.topology, occupancy, request, near);
    const auto sets = choose_gpus(view);
    if (!sets) return std::unexpected(NoPlace{.error = sets.error()});
    const bool draws = view.named.empty();
    const auto near_to = [&](const GpuSet& set) { return draws ? near_gpus(view, set) : near; };
    if (sets->front().busy > 0)
        return std::unexpected(busy_gpus(observed, view, sets->front(), near_to(sets->front())));
    std::optional<Placement> best;
    unsigned best_away = 0;
    for (const auto& set : *sets) {
        const auto wish = near_to(set);
        auto found = place_near(observed, occupancy, request, wish);
        if (!found && !best) return found;
        if (!found) continue;
        const auto away = view.between(found->nodes, wish.nodes);
        const bool local = !draws || wish.nodes.covers(found->nodes);
        if (!best || away < best_away) {
            best = with_gpus(view, set, std::move(*found));
            best_away = away;
        }
        if (local) break;
    }
    return *best;
}

}  // namespace numalease::core::placing
