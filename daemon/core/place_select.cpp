#include <algorithm>
#include <tuple>
#include <utility>

#include "core/placing.hpp"

namespace numalease::core::placing {

namespace {

/// Which unit joins a growing set next.
enum class Order {
    nearest,  ///< to the device, then to the set
    largest,  ///< the one that adds most of what is still missing
};

/// Distances between units, by position in Scope::units; of sockets with several nodes the farthest pair.
std::vector<unsigned> unit_distances(const View& view, const Scope& scope) {
    const auto count = scope.units.size();
    std::vector<unsigned> out(count * count, 0);
    for (std::size_t a = 0; a < count; ++a)
        for (std::size_t b = 0; b < count; ++b)
            for (const unsigned from : scope.units[a].nodes)
                for (const unsigned to : scope.units[b].nodes)
                    out[a * count + b] = std::max(out[a * count + b], view.between(from, to));
    return out;
}

/// A set of units while it grows, with its sums.
class Growth {
public:
    Growth(const View& view, const Scope& scope)
        : view_(view),
          scope_(scope),
          distance_(unit_distances(view, scope)),
          need_cores_(view.request.cores.value_or(0)),
          need_memory_(view.request.memory.value_or(0)),
          parts_(view.request.mempolicy == model::Mempolicy::interleave ||
                 view.request.mempolicy == model::Mempolicy::weighted),
          memory_exists_(std::ranges::any_of(scope.units, [](const Unit& unit) { return !unit.memory.empty(); })) {
        if (need_cores_ > 0) per_core_ = 1.0 / static_cast<double>(need_cores_);
        if (need_memory_ > 0) per_byte_ = 1.0 / static_cast<double>(need_memory_);
    }

    void start(unsigned seed);
    void add(unsigned unit);
    /// The next unit to add; empty where none is of use.
    [[nodiscard]] std::optional<unsigned> next(Order order) const;
    [[nodiscard]] bool holds() const;
    [[nodiscard]] std::size_t size() const { return members_.size(); }
    [[nodiscard]] Candidate candidate() const;
    /// A whole unit is asked for, so it must be free; one without a core may still give memory.
    [[nodiscard]] bool may_join(unsigned unit) const {
        const auto& it = scope_.units[unit];
        return need_cores_ > 0 || (it.usable == it.cores.size() && (it.usable > 0 || scope_.listed));
    }

private:
    [[nodiscard]] double gain(const Unit& unit) const;
    [[nodiscard]] bool lacks_a_core() const;

    const View& view_;
    const Scope& scope_;
    std::vector<unsigned> distance_;
    std::uint64_t need_cores_;
    Bytes need_memory_;
    double per_core_ = 0;  ///< the part of what is needed that one core, one byte is
    double per_byte_ = 0;
    bool parts_;          ///< each node takes a fixed part of the memory
    bool memory_exists_;  ///< a job must have some; where no node tells its memory there is none to choose

    std::vector<unsigned> members_;
    std::vector<char> in_;
    std::vector<char> node_in_;
    std::vector<unsigned> memory_;  ///< node positions
    std::vector<unsigned> to_set_;  ///< distance of each unit to the set, summed both ways
    std::uint64_t usable_ = 0;
    std::uint64_t idle_ = 0;
    std::uint64_t fast_ = 0;
    std::uint64_t near_ = 0;
    std::uint64_t apart_ = 0;
    std::vector<unsigned> packages_;
    Bytes avail_ = 0;
    unsigned starved_ = 0;
};

void Growth::start(unsigned seed) {
    members_.clear();
    memory_.clear();
    packages_.clear();
    in_.assign(scope_.units.size(), 0);
    node_in_.assign(view_.nodes.size(), 0);
    to_set_.assign(scope_.units.size(), 0);
    usable_ = idle_ = fast_ = near_ = apart_ = avail_ = 0;
    starved_ = 0;
    add(seed);
}

void Growth::add(unsigned unit) {
    const auto& it = scope_.units[unit];
    const auto count = scope_.units.size();
    apart_ += to_set_[unit];
    members_.push_back(unit);
    in_[unit] = 1;
    usable_ += it.usable;
    idle_ += it.idle;
    fast_ += it.fast;
    near_ += it.near;
    if (std::ranges::find(packages_, it.package) == packages_.end()) packages_.push_back(it.package);
    for (std::size_t other = 0; other < count; ++other)
        to_set_[other] += distance_[unit * count + other] + distance_[other * count + unit];
    for (const unsigned at : it.memory) {
        if (node_in_[at] != 0) continue;
        node_in_[at] = 1;
        memory_.push_back(at);
        avail_ += view_.nodes[at].avail;
        starved_ += view_.nodes[at].avail == 0 ? 1U : 0U;
    }
}

double Growth::gain(const Unit& unit) const {
    double out = 0;
    if (need_cores_ > usable_)
        out += static_cast<double>(std::min<std::uint64_t>(unit.usable, need_cores_ - usable_)) * per_core_;
    if (need_memory_ == 0) return out;
    Bytes adds = 0;
    for (const unsigned at : unit.memory)
        if (node_in_[at] == 0) adds += view_.nodes[at].avail;
    // Where each node takes its part, the fullest one decides: the roomiest first, whatever is missing.
    if (!parts_) adds = avail_ < need_memory_ ? std::min(adds, need_memory_ - avail_) : 0;
    return out + static_cast<double>(adds) * per_byte_;
}

std::optional<unsigned> Growth::next(Order order) const {
    std::optional<unsigned> best;
    double best_gain = 0;
    const auto other_package = [&](unsigned unit) {
        return std::ranges::find(packages_, scope_.units[unit].package) == packages_.end();
    };
    const auto nearness = [&](unsigned unit) { return std::tuple(scope_.units[unit].near, to_set_[unit]); };
    for (unsigned unit = 0; unit < scope_.units.size(); ++unit) {
        if (in_[unit] != 0 || !may_join(unit)) continue;
        double gained = gain(scope_.units[unit]);
        if (scope_.exactly == 0 && gained <= 0 && !memory_.empty()) continue;
        // By nearness only whether it adds anything counts.
        if (order == Order::nearest) gained = gained > 0 ? 1 : 0;
        const auto better = [&] {
            if (gained != best_gain) return gained > best_gain;
            if (nearness(unit) != nearness(*best)) return nearness(unit) < nearness(*best);
            return other_package(*best) && !other_package(unit);
        };
        if (!best || better()) {
            best = unit;
            best_gain = gained;
        }
    }
    return best;
}

bool Growth::holds() const {
    if (usable_ == 0 || usable_ < need_cores_) return false;
    if (memory_.empty() && memory_exists_) return false;
    return memory_fits(view_, memory_);
}

/// A whole unit was asked for, and this set of them has the core that a shield leaves to everybody else.
bool Growth::lacks_a_core() const {
    if (view_.held_back == nullptr || need_cores_ > 0) return false;
    const auto has_it = [&](unsigned at) { return view_.nodes[at].id == view_.held_back->node; };
    return std::ranges::any_of(members_,
                               [&](unsigned unit) { return std::ranges::any_of(scope_.units[unit].nodes, has_it); });
}

Candidate Growth::candidate() const {
    Candidate out;
    out.units = members_;
    std::ranges::sort(out.units);
    const auto cores = need_cores_ > 0 ? need_cores_ : usable_;
    const bool asked = view_.request.memory.has_value();
    out.score = {.size = members_.size(),
                 .occupied = cores - std::min(cores, idle_),
                 .held_back = lacks_a_core() ? 1U : 0U,
                 .starved = asked ? 0 : starved_,
                 .near = near_,
                 .slow = view_.hybrid ? cores - std::min(cores, fast_) : 0,
                 .apart = apart_,
                 .sockets = packages_.size(),
                 .spare_cores = usable_ - cores,
                 .spare_memory = asked ? avail_ - std::min(avail_, need_memory_) : ~avail_};
    return out;
}

}  // namespace

std::vector<unsigned> memory_nodes(const Scope& scope, const std::vector<unsigned>& units) {
    std::vector<unsigned> out;
    for (const unsigned unit : units)
        for (const unsigned at : scope.units[unit].memory)
            if (std::ranges::find(out, at) == out.end()) out.push_back(at);
    std::ranges::sort(out);
    return out;
}

std::vector<Candidate> select(const View& view, const Scope& scope) {
    std::vector<Candidate> found;
    Growth growth(view, scope);
    const auto count = scope.units.size();
    const bool fixed = scope.exactly == count;
    std::size_t most = scope.exactly > 0 ? scope.exactly : count;
    // Growing a large set by what it adds ends in the same set from nearly every seed: once is enough.
    const bool once = std::size_t{scope.exactly} * count > 1024;
    bool grown_by_size = false;
    for (unsigned seed = 0; seed < count; ++seed) {
        if (!growth.may_join(seed)) {
            if (fixed) return {};
            continue;
        }
        for (const auto order : {Order::nearest, Order::largest}) {
            if (order == Order::largest && once && std::exchange(grown_by_size, true)) continue;
            growth.start(seed);
            while (growth.size() <= most) {
                const bool counts = scope.exactly == 0 || growth.size() == scope.exactly;
                if (counts && growth.holds()) {
                    found.push_back(growth.candidate());
                    most = std::min(most, growth.size());  // a larger set is not looked for any more
                    break;
                }
                if (growth.size() == most) break;
                const auto next = growth.next(order);
                if (!next) break;
                growth.add(*next);
            }
            if (fixed || growth.size() == 1) break;  // one set only
        }
        if (fixed) break;
    }
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
    return found;
}

}  // namespace numalease::core::placing
