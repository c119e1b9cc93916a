#include <algorithm>

#include "core/stepper.hpp"

// When those who wait can start: the first time at which what they ask for fits, as leases end.

namespace numalease::core {

using model::Lease;
using model::LeaseId;
using model::LeaseState;
using model::Micros;

/// The first moment at which the lease fits, with `beside` given already. Leases that are no business of its own are
/// not looked at.
Expected Stepper::when(const Lease& lease, const std::vector<Lease>& beside) const {
    std::vector<std::pair<Micros, LeaseId>> ends;
    std::vector<LeaseId> endless;
    const auto consider = [&](const Lease& other) {
        if (other.id == lease.id || other.caller.parent != lease.caller.parent) return;
        if (const auto end = end_of(other, now_.boot))
            ends.emplace_back(*end, other.id);
        else
            endless.push_back(other.id);
    };
    for (const auto& [id, other] : state_.leases.begun())
        if (model::occupies(other.state) || other.state == LeaseState::ending) consider(other);
    for (const auto& other : beside) consider(other);
    std::ranges::sort(ends);

    World world{.over = {}, .beside = {}, .explain = false};
    for (const auto& other : beside) world.beside.push_back(&other);
    const auto after = [&](std::size_t over) {
        world.over.clear();
        for (std::size_t i = 0; i < over; ++i) world.over.insert(ends[i].second);
    };
    const auto fits_after = [&](std::size_t over) {
        after(over);
        return choose(lease, world).has_value();
    };
    std::size_t most = ends.size();
    if (!fits_after(most)) {
        Expected out{.world = world};
        world.explain = true;
        if (auto chosen = choose(lease, world); !chosen) out.after = std::move(chosen.error().in_the_way);
        out.world.over.insert(endless.begin(), endless.end());
        auto chosen = choose(lease, out.world);
        out.outside = !chosen;
        if (chosen) out.placement = std::move(chosen->placement);
        return out;
    }
    std::size_t least = 0;  // more room never fits worse: halving finds the first end that suffices
    while (least < most) {
        const auto middle = least + (most - least) / 2;
        fits_after(middle) ? most = middle : least = middle + 1;
    }
    after(most);
    Expected out{.world = world, .start = now_.boot};
    if (auto chosen = choose(lease, world)) out.placement = std::move(chosen->placement);
    if (most == 0) return out;
    out.start = ends[most - 1].first;
    out.after = {ends[most - 1].second};
    return out;
}

/// Would the lease that has the reservation start later if this one were given now?
bool Stepper::delays(const Expected& reservation, const Lease& first, const Choice& choice) const {
    const auto& request = choice.lease.request;
    if (request.time) {
        // What is over by then is in nobody's way. Where the start is not known, whatever has an end goes ahead.
        if (!reservation.start || now_.boot + *request.time + kExpiryGrace <= *reservation.start) return false;
    }
    if (reservation.outside) return false;  // no lease that ends would help it
    const auto other = given(choice);
    auto world = reservation.world;
    world.beside.push_back(&other);
    return !choose(first, world);
}

/// As it is when it has been given.
Lease Stepper::given(const Choice& choice) {
    auto out = choice.lease;
    out.placement = choice.placement;
    out.state = LeaseState::preparing;
    return out;
}

std::string Stepper::start_text(const Expected& it) const {
    if (it.outside) return "not known: what is missing is held outside numa-lease";
    const auto named = [&](const LeaseId& id) {
        const auto found = state_.leases.find(id);
        if (found == state_.leases.end()) return id;
        const auto& lease = found->second;
        const auto& command = lease.request.command.empty() ? lease.caller.command : lease.request.command;
        return id + " (" + command + ")";
    };
    std::string names;
    for (const auto& id : it.after) names += (names.empty() ? "" : " and ") + named(id);
    if (!it.start) return names.empty() ? "not known" : "never, unless " + names + " ends";
    if (names.empty()) return "at once";
    constexpr Micros kSecond{1'000'000};
    const auto left = std::chrono::duration_cast<std::chrono::seconds>(*it.start - now_.boot + kSecond);
    return "when " + names + " ends, at the latest in " + model::duration_text(left);
}

std::vector<Forecast> Stepper::forecast(std::size_t most) const {
    std::vector<Forecast> out;
    std::vector<Lease> beside;
    for (const auto& id : order_of(state_, observed_, now_.boot, most)) {
        auto lease = state_.leases.at(id);
        auto it = when(lease, beside);
        out.push_back({.lease = id, .position = out.size() + 1, .start = it.start, .text = start_text(it)});
        if (it.placement.cpus.empty()) continue;
        lease.placement = std::move(it.placement);
        lease.state = LeaseState::preparing;
        if (it.start && lease.request.time) {
            lease.state = LeaseState::active;
            constexpr auto kLong = model::kNever / 2;  // either may be as good as endless, and the sum must be a time
            lease.expires = std::min(*it.start, kLong) + std::min(*lease.request.time, kLong);
        } else {
            lease.request.time.reset();
        }
        beside.push_back(std::move(lease));
    }
    return out;
}

std::vector<Forecast> forecast(const State& state, const Observed& observed, model::Instant now, std::size_t most) {
    return Stepper(state, observed, now).forecast(most);
}

}  // namespace numalease::core
