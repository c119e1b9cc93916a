#include <algorithm>
#include <deque>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Errc;
using model::Error;
using model::Lease;
using model::LeaseId;
using model::LeaseState;

namespace {

constexpr std::size_t kOrdered = 1024;
constexpr std::size_t kLookedAt = 64;   ///< of those who wait, for room beside the first
constexpr std::size_t kRemembered = 8;  ///< kinds of requests that have no room

/// What decides whether there is room.
struct Kind {
    explicit Kind(const Lease& lease)
        : request(lease.request),
          uid(lease.caller.uid),
          allowed_cpus(lease.caller.allowed_cpus),
          allowed_nodes(lease.caller.allowed_nodes) {
        request.command.clear();
        request.reason.clear();
        request.wait = {};
        request.time.reset();
    }
    bool operator==(const Kind&) const = default;

    model::Request request;
    unsigned uid;
    model::CpuSet allowed_cpus;
    model::NodeSet allowed_nodes;
};

}  // namespace

bool may_wait(const NoPlace& why) {
    return why.error.code == Errc::not_now || (why.error.code == Errc::quota && !why.in_the_way.empty());
}

void Stepper::join_queue(Lease lease) {
    state_.queue.push_back(lease.id);
    state_.leases.add(std::move(lease));
}

/// Where thousands come and give up again, those who wait are not all looked at for each, but once a second.
bool Stepper::is_crowded() const { return state_.queue.size() > kLookedAt && !state_.first.empty(); }

/// One that goes without having been in anybody's way.
bool Stepper::waits_in_crowd(const LeaseId& id) const {
    return is_crowded() && id != state_.first && state_.leases.at(id).state == LeaseState::queued;
}

void Stepper::give(Choice choice) {
    std::erase(state_.queue, choice.lease.id);
    auto& lease = state_.leases[choice.lease.id];
    lease = std::move(choice.lease);
    if (lease.caller.parent.empty()) state_.usage[lease.caller.uid].served = now_.boot;
    begin_preparing(lease, std::move(choice.placement));
    for (const auto& lever : choice.levers)
        if (auto wanted = want(lease, lever); !wanted) {  // required ones were looked at before: this one is not
            lease.knobs.push_back({lever.key, lever.value, "", "", wanted.error().detail});
            lease.notes.push_back(lever.key.text() + " skipped: " + wanted.error().detail);
        }
}

/// Those inside another's lease: what is theirs to take is nobody else's.
void Stepper::serve_nested() {
    const auto waiting = state_.queue;
    for (const auto& id : waiting) {
        const auto& lease = std::as_const(state_.leases).at(id);
        if (lease.caller.parent.empty()) continue;
        auto choice = choose(lease);
        if (choice)
            give(std::move(*choice));
        else
            blocked(id, std::move(choice.error()));
    }
}

void Stepper::serve_queue() {
    serve_nested();
    struct Reserved {
        LeaseId id;
        Expected expected;
    };
    std::optional<Reserved> first;      // nobody may make it start later
    std::map<unsigned, Reserved> held;  // by uid: waits for its user's own limits, and its user may not either
    std::map<unsigned, std::size_t> looked_at_held;  // by uid: these must not use up the looks at others
    std::deque<std::pair<Kind, LeaseId>> failed;     // a request like one that has no room has none either
    std::size_t looked = 0;
    for (const auto& id : order_of(state_, observed_, now_.boot, kOrdered)) {
        if (looked == kLookedAt) break;
        const auto shared = state_.leases.share(id);
        const auto& lease = *shared;
        const auto uid = lease.caller.uid;
        Kind kind(lease);
        const auto like = std::ranges::find(failed, kind, [](const auto& it) -> const Kind& { return it.first; });
        if (like != failed.end()) {
            tell(id, "behind " + like->second);
            continue;
        }
        if (looked_at_held[uid] == kRemembered) continue;
        auto choice = choose(lease);
        const auto would_delay = [&](const Reserved& it) {
            return delays(it.expected, std::as_const(state_.leases).at(it.id), *choice);
        };
        if (choice) {
            ++looked;
            const auto own = held.find(uid);
            // A turn is not lost to its own user's next request, which would use up what the user may have.
            const auto takes_turn = [&](const Reserved& it) {
                const auto& turn = std::as_const(state_.leases).at(it.id);
                const auto other = given(*choice);
                return turn.caller.uid == uid && held_back(turn, &other);
            };
            const auto* before = first && (would_delay(*first) || takes_turn(*first)) ? &*first
                                 : own != held.end() && would_delay(own->second)      ? &own->second
                                                                                      : nullptr;
            if (before == nullptr)
                give(std::move(*choice));
            else
                tell(id, "behind " + before->id + ", which it would delay" +
                             (lease.request.time ? "" : "; with an end, --time, it might go before it"));
            continue;
        }
        if (!blocked(id, std::move(choice.error()))) continue;
        failed.emplace_front(std::move(kind), id);
        if (failed.size() > kRemembered) failed.pop_back();
        if (held_back(lease)) {  // what only its user's limits are in the way of does not hold up others
            ++looked_at_held[uid];
            if (!held.contains(uid)) held[uid] = {id, when(lease, {})};
            continue;
        }
        ++looked;
        if (!first) first = Reserved{id, when(lease, {})};
    }
    state_.first = first ? first->id : LeaseId();
}

/// Says why it waits; false where it does not wait any more.
bool Stepper::blocked(const LeaseId& id, NoPlace why) {
    const auto shared = state_.leases.share(id);
    const auto& lease = *shared;
    const auto on_ancestor = [&](const LeaseId& blocker) { return is_ancestor(blocker, lease); };
    if (!may_wait(why) || std::ranges::any_of(why.in_the_way, on_ancestor)) {
        why.error.detail += blockers_text(why.in_the_way);
        refuse(state_.leases.edit(id), why.error);
        return false;
    }
    tell(id, why.error.detail + blockers_text(why.in_the_way) +
                 (why.fits_now.empty() ? "" : "; fits now: " + why.fits_now));
    // Something else may be in the way, or in it too: memory of other programs. Nothing will tell when it has gone.
    const bool nothing_tells = why.in_the_way.empty();
    if (nothing_tells || lease.request.memory || !lease.request.hugepages.empty()) {
        const auto again = now_.boot + (nothing_tells ? kQueueRetry : kMemoryRetry);
        state_.queue_retry_at = std::min(state_.queue_retry_at.value_or(again), again);
    }
    return true;
}

void Stepper::tell(const LeaseId& id, std::string why) {
    const auto& now = std::as_const(state_.leases).at(id).in_the_way;
    if (now.size() != 1 || now.front() != why) state_.leases.edit(id).in_the_way = {std::move(why)};
}

void Stepper::refuse(Lease& lease, const Error& error) {
    std::erase(state_.queue, lease.id);
    lease.state = LeaseState::refused;
    lease.failure = error.code;
    lease.reason = error.detail;
    lease.in_the_way.clear();
    lease.ended = now_;
}

std::string Stepper::blockers_text(const std::vector<LeaseId>& ids) const {
    constexpr std::size_t kShown = 4;
    std::string out;
    for (std::size_t i = 0; i < ids.size() && i < kShown; ++i) {
        const auto found = state_.leases.find(ids[i]);
        if (found == state_.leases.end()) continue;
        const auto& lease = found->second;
        const auto since = lease.state == LeaseState::queued ? lease.queued : lease.started;
        out += out.empty() ? "; in the way: " : ", ";
        out += lease.id + " (" + (lease.request.command.empty() ? lease.caller.command : lease.request.command) +
               ", uid " + std::to_string(lease.caller.uid) + ", " +
               (lease.parked ? "parked" : std::string(text_of(lease.state))) +
               (since.boot.count() == 0 ? "" : " for " + model::duration_text(now_.boot - since.boot)) + ")";
    }
    if (ids.size() > kShown) out += " and " + std::to_string(ids.size() - kShown) + " more";
    return out;
}

bool Stepper::is_ancestor(const LeaseId& candidate, const Lease& lease) const {
    auto at = lease.caller.parent;
    for (std::size_t depth = 0; !at.empty() && depth <= state_.leases.size(); ++depth) {
        if (at == candidate) return true;
        const auto found = state_.leases.find(at);
        if (found == state_.leases.end()) return false;
        at = found->second.caller.parent;
    }
    return false;
}

}  // namespace numalease::core
