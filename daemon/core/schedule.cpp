#include "core/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numbers>
#include <queue>
#include <tuple>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Lease;
using model::LeaseId;
using model::LeaseState;
using model::Micros;

namespace {

/// What a user holds counts as if it were held for so long already, and each request before another of the same user
/// as a node for so long: who has nothing yet is before who has something, and nobody's hundredth before anybody's
/// first.
constexpr double kCredit = 60;  // s

double seconds(Micros time) { return std::chrono::duration<double>(time).count(); }

/// Node-seconds left of `amount` after `time`.
double decayed(double amount, double time, double half_life) {
    return half_life > 0 ? amount * std::exp2(-time / half_life) : 0;
}

/// Node-seconds of a steady `nodes` over the last `time`, decayed while they were used.
double of_steady_use(double nodes, double time, double half_life) {
    if (half_life <= 0) return 0;
    return nodes * half_life / std::numbers::ln2 * -std::expm1(-time / half_life * std::numbers::ln2);
}

/// A rough size of what is asked, in nodes, before it has a place.
double nodes_asked(const model::Request& request, const model::Topology& topology) {
    using enum model::Choice::Kind;
    const auto all_nodes = static_cast<double>(std::max<std::size_t>(topology.nodes.size(), 1));
    if (request.nodes.kind == all || request.sockets.kind == all) return all_nodes;
    if (request.nodes.kind == list) return request.nodes.items.size();
    if (request.nodes.kind == any) return request.nodes.count;
    return 1;
}

/// One user's turn within a class.
struct Turn {
    double used = 0;       ///< for the weight
    std::size_t next = 0;  ///< place of the user's next request in the queue
    unsigned uid = 0;

    bool operator>(const Turn& other) const { return std::tie(used, next) > std::tie(other.used, other.next); }
};

/// The queue, sorted out.
class Order {
public:
    Order(const State& state, const Observed& observed, Micros now)
        : state_(state), observed_(observed), usage_(usage_by_user(state, observed, now)) {
        leases_.reserve(state.queue.size());
        for (const auto& id : state.queue) leases_.push_back(&state.leases.at(id));
        for (std::size_t at = 0; at < leases_.size(); ++at)
            if (lease(at).caller.parent.empty())
                classes_[priority_of(lease(at).request, observed.scheduling)][lease(at).caller.uid].push_back(at);
        take_aged(now);
    }

    std::vector<LeaseId> up_to(std::size_t most) && {
        for (auto& [priority, by_user] : classes_) append(by_user, most);
        if (out_.size() > most) out_.resize(most);
        return std::move(out_);
    }

private:
    using ByUser = std::map<unsigned, std::deque<std::size_t>>;

    [[nodiscard]] const Lease& lease(std::size_t at) const { return *leases_[at]; }
    [[nodiscard]] double used(unsigned uid) const {
        const auto found = usage_.find(uid);
        const auto taken = taken_.find(uid);
        return (found == usage_.end() ? 0 : found->second / weight(uid)) + (taken == taken_.end() ? 0 : taken->second);
    }
    [[nodiscard]] double weight(unsigned uid) const {
        const auto found = observed_.limits.find(uid);
        return found == observed_.limits.end() ? 1 : std::max(found->second.weight, 1U);
    }

    /// Of each user the next request, where neither it nor the user has been served for so long.
    void take_aged(Micros now) {
        std::map<unsigned, std::pair<Micros, ByUser*>> next;
        for (auto& [priority, by_user] : classes_)
            for (const auto& [uid, waiting] : by_user) {
                const auto served = state_.usage.find(uid);
                const auto since = std::max(lease(waiting.front()).queued.boot,
                                            served == state_.usage.end() ? Micros(0) : served->second.served);
                next.try_emplace(uid, since, &by_user);
            }
        std::vector<std::tuple<Micros, std::size_t, unsigned>> aged;
        for (const auto& [uid, it] : next)
            if (now - it.first >= observed_.scheduling.aging)
                aged.emplace_back(it.first, (*it.second)[uid].front(), uid);
        std::ranges::sort(aged);
        for (const auto& [since, at, uid] : aged) take(*next.at(uid).second, uid);
    }

    void charge(std::size_t at) {
        const auto uid = lease(at).caller.uid;
        taken_[uid] += nodes_asked(lease(at).request, observed_.topology) * kCredit / weight(uid);
    }

    void take(ByUser& by_user, unsigned uid) {
        auto& waiting = by_user[uid];
        charge(waiting.front());
        out_.push_back(state_.queue[waiting.front()]);
        waiting.pop_front();
        if (waiting.empty()) by_user.erase(uid);
    }

    /// Whoever has been told when to start keeps the turn, whatever has been used since, and whoever may start again.
    void take_first(ByUser& by_user) {
        for (auto& [uid, waiting] : by_user) {
            const auto at =
                std::ranges::find_if(waiting, [&](std::size_t it) { return state_.queue[it] == state_.first; });
            if (at == waiting.end()) continue;
            charge(*at);
            out_.push_back(state_.first);
            waiting.erase(at);
            if (waiting.empty()) by_user.erase(uid);
            return;
        }
    }

    void append(ByUser& by_user, std::size_t most) {
        take_first(by_user);
        std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
        for (const auto& [uid, waiting] : by_user) turns.push({used(uid), waiting.front(), uid});
        while (!turns.empty() && out_.size() < most) {
            const auto uid = turns.top().uid;
            turns.pop();
            take(by_user, uid);
            if (const auto more = by_user.find(uid); more != by_user.end())
                turns.push({used(uid), more->second.front(), uid});
        }
    }

    const State& state_;
    const Observed& observed_;
    std::vector<const Lease*> leases_;  ///< in the order of the queue
    std::map<unsigned, double> usage_;
    std::map<int, ByUser, std::greater<>> classes_;
    std::map<unsigned, double> taken_;  ///< by uid: what is in `out_` already, for the weight
    std::vector<LeaseId> out_;
};

}  // namespace

int priority_of(const model::Request& request, const model::Scheduling& scheduling) {
    const auto found = scheduling.classes.find(request.job_class);
    return found == scheduling.classes.end() ? 0 : found->second.priority;
}

double nodes_of(const Lease& lease, const model::Topology& topology) {
    if (topology.nodes.empty()) return 0;
    double memory = 0;
    for (const auto& node : topology.nodes) memory += static_cast<double>(node.total);
    double promised = 0;
    for (const auto& [node, bytes] : lease.placement.promise) promised += static_cast<double>(bytes);
    const auto of_cores =
        topology.cores.empty() ? 0 : lease.placement.cores / static_cast<double>(topology.cores.size());
    return std::max(of_cores, memory > 0 ? promised / memory : 0) * static_cast<double>(topology.nodes.size());
}

std::map<unsigned, double> usage_by_user(const State& state, const Observed& observed, Micros now) {
    std::map<unsigned, double> out;
    for (const auto& [uid, before] : state.usage)
        out[uid] = decayed(before.node_seconds, seconds(now - before.at), seconds(observed.scheduling.half_life));
    for (const auto& [id, lease] : state.leases.begun())
        if (model::occupies(lease.state) && lease.caller.parent.empty())
            out[lease.caller.uid] += use_of(lease, observed, now) + nodes_of(lease, observed.topology) * kCredit;
    return out;
}

double use_of(const Lease& lease, const Observed& observed, Micros now) {
    if (lease.started.boot.count() == 0) return 0;
    return of_steady_use(nodes_of(lease, observed.topology), seconds(now - lease.started.boot),
                         seconds(observed.scheduling.half_life));
}

void add_use(std::map<unsigned, Usage>& usage, const Lease& lease, const Observed& observed, Micros now) {
    auto& it = usage[lease.caller.uid];
    it.node_seconds = decayed(it.node_seconds, seconds(now - it.at), seconds(observed.scheduling.half_life)) +
                      use_of(lease, observed, now);
    it.at = now;
    constexpr double kForgotten = 1;
    std::erase_if(usage, [&](const auto& item) {
        return now - item.second.served >= observed.scheduling.aging &&
               decayed(item.second.node_seconds, seconds(now - item.second.at),
                       seconds(observed.scheduling.half_life)) < kForgotten;
    });
}

double remembered(double node_seconds, Micros ran, Micros ago, Micros half_life) {
    const auto time = std::max(seconds(ran), 1e-6);
    return decayed(of_steady_use(node_seconds / time, time, seconds(half_life)), std::max(seconds(ago), 0.0),
                   seconds(half_life));
}

std::vector<LeaseId> order_of(const State& state, const Observed& observed, Micros now, std::size_t most) {
    return Order(state, observed, now).up_to(most);
}

std::optional<Micros> end_of(const Lease& lease, Micros now) {
    if (lease.state == LeaseState::ending || lease.signals_sent > 1) return now;
    if (lease.signals_sent == 1 && lease.expires) return std::max(*lease.expires, now);
    if (lease.expires) return std::max(*lease.expires, now) + kExpiryGrace;
    if (lease.state == LeaseState::active || !lease.request.time) return std::nullopt;
    return now + *lease.request.time + kExpiryGrace;
}

}  // namespace numalease::core
