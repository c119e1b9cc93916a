#include <algorithm>

#include "core/stepper.hpp"
#include "model/levers.hpp"

// What the site lets a user have.

namespace numalease::core {

using model::Errc;
using model::Error;
using model::Lease;
using model::LeaseId;

namespace {

/// What counts against a user's limits.
struct Held {
    unsigned leases = 0;
    unsigned cores = 0;
    unsigned nodes = 0;
    std::size_t gpus = 0;
    model::Bytes memory = 0;
    model::Bytes hugepages = 0;

    void add(const model::Request& request, const model::Placement& placement) {
        leases += 1;
        cores += placement.cores;
        nodes += placement.nodes.size();
        gpus += placement.gpus.size();
        for (const auto& [node, bytes] : placement.promise) memory += bytes;
        for (const auto& item : request.hugepages) hugepages += item.amount;
    }
};

std::string names(const std::set<std::string>& all) {
    std::string out;
    for (const auto& name : all) out += (out.empty() ? "" : ", ") + (name.empty() ? "none" : name);
    return out.empty() ? "none" : out;
}

Error denied(const std::string& what, const std::set<std::string>& allowed) {
    return {Errc::quota, what + " is not allowed for you here; allowed: " + names(allowed)};
}

}  // namespace

const model::Limits& Stepper::limits_of(unsigned uid) const {
    static const model::Limits kNone;
    const auto found = observed_.limits.find(uid);
    return found == observed_.limits.end() ? kNone : found->second;
}

/// The most that a lease of this class and user may last; nothing: for ever.
std::optional<model::Micros> Stepper::most_time(const Lease& lease) const {
    const auto& limits = limits_of(lease.caller.uid);
    const auto its_class = observed_.scheduling.classes.find(lease.request.job_class);
    auto most = its_class == observed_.scheduling.classes.end() ? std::nullopt : its_class->second.time;
    if (limits.time) most = most ? std::min(*most, *limits.time) : limits.time;
    return most;
}

std::optional<Error> Stepper::extension_refusal(const Lease& lease, const Extend& input) const {
    if (!lease.expires) return Error{Errc::invalid_request, lease.id + " has no end that could be put off"};
    if (lease.signals_sent != 0) return Error{Errc::not_now, lease.id + " is being ended: " + lease.reason};
    constexpr model::Micros kLongest{std::int64_t{10} * 365 * 24 * 3600 * 1'000'000};
    if (input.by.count() <= 0 || input.by > kLongest)
        return Error{Errc::invalid_request, "extend: a time between 0 and 10 years"};
    if (input.may_pass_limits) return std::nullopt;
    const auto all = *lease.expires + input.by - lease.started.boot;
    if (const auto most = most_time(lease); most && all > *most)
        return Error{Errc::quota, "extend: that would be " + model::duration_text(all) + " in all, at most " +
                                      model::duration_text(*most) + " for class " + lease.request.job_class + " here"};
    const auto reserved = std::ranges::find(state_.queue, state_.first) != state_.queue.end();
    for (const auto& id : reserved ? std::vector{state_.first} : order_of(state_, observed_, now_.boot, 1)) {
        const auto& first = state_.leases.at(id);
        const auto promised = when(first, {});
        if (!promised.start || !promised.world.over.contains(lease.id)) continue;
        auto later = lease;
        later.expires = *lease.expires + input.by;
        if (*end_of(later, now_.boot) <= *promised.start) continue;
        auto world = promised.world;
        world.over.erase(lease.id);
        if (!choose(first, world))
            return Error{Errc::not_now, "extend: " + id + " (uid " + std::to_string(first.caller.uid) +
                                            ") waits first in the queue, and what this lease has was promised to it " +
                                            start_text(promised)};
    }
    return std::nullopt;
}

/// What waiting would not bring. Fills in the end of a lease that has none of its own.
std::optional<Error> Stepper::limit_refusal(Lease& lease) const {
    auto& request = lease.request;
    const auto& limits = limits_of(lease.caller.uid);
    const auto& classes = observed_.scheduling.classes;
    const auto its_class = classes.find(request.job_class);
    if (its_class == classes.end()) {
        std::set<std::string> known;
        for (const auto& [name, it] : classes) known.insert(name);
        return Error{Errc::invalid_request, "class: no '" + request.job_class + "' here; there are " + names(known)};
    }
    if (limits.classes && !limits.classes->contains(request.job_class))
        return denied("class: " + request.job_class, *limits.classes);
    if (limits.policies && !limits.policies->contains(request.policy))
        return denied("policy: " + (request.policy.empty() ? "none" : request.policy), *limits.policies);
    if (limits.levers)
        for (const auto& lever : model::kernel_levers())
            if (lever.pulled(request) && !limits.levers->contains(std::string(lever.field)))
                return denied(std::string(lever.field), *limits.levers);
    const auto most = most_time(lease);
    if (most && request.time && *request.time > *most)
        return Error{Errc::quota, "time: " + model::duration_text(*request.time) + " asked, at most " +
                                      model::duration_text(*most) + " for class " + request.job_class + " here"};
    if (most && !request.time) {
        request.time = most;
        lease.notes.push_back("ends after " + model::duration_text(*most) + ", the most for class " +
                              request.job_class + " here");
    }
    return std::nullopt;
}

/// For one that would have to wait.
std::optional<Error> Stepper::queue_refusal(const Lease& lease) const {
    const auto& most = limits_of(lease.caller.uid).queued;
    if (!most) return std::nullopt;
    const auto waiting = std::ranges::count_if(
        state_.queue, [&](const LeaseId& id) { return state_.leases.at(id).caller.uid == lease.caller.uid; });
    if (waiting < *most) return std::nullopt;
    return Error{Errc::quota, "uid " + std::to_string(lease.caller.uid) + " has " + std::to_string(waiting) +
                                  " requests in the queue, the most allowed here; wait for one, or cancel one"};
}

/// By the user's own limits, even if everybody else were gone; with `beside` given to the same user, too.
bool Stepper::held_back(const Lease& lease, const Lease* beside) const {
    const auto& limits = limits_of(lease.caller.uid);
    if (limits == model::Limits{.weight = limits.weight}) return false;
    auto world = without([&](const Lease& it) { return it.caller.uid != lease.caller.uid; });
    if (beside != nullptr) world.beside.push_back(beside);
    const auto choice = choose(lease, world);
    return !choice && choice.error().error.code == Errc::quota;
}

/// A limit that the request passes even if nobody had anything: waiting would not bring it.
std::optional<Error> Stepper::never(const Lease& lease) const {
    auto choice = choose(lease, without([](const Lease&) { return true; }));
    if (choice || choice.error().error.code != Errc::impossible) return std::nullopt;
    return std::move(choice.error().error);
}

World Stepper::without(const std::function<bool(const Lease&)>& gone) const {
    World out{.over = {}, .beside = {}, .explain = false};
    for (const auto& [id, lease] : state_.leases.begun())
        if (model::occupies(lease.state) && gone(lease)) out.over.insert(id);
    return out;
}

/// Whether the placement is too much beside what the user has. `quota` where it can be had when some of that has ended,
/// `impossible` where it never can.
std::optional<NoPlace> Stepper::over_limit(const Lease& lease, const model::Placement& placement,
                                           const World& world) const {
    const auto& limits = limits_of(lease.caller.uid);
    if (limits == model::Limits{.weight = limits.weight}) return std::nullopt;
    // What is inside a lease is that one's already, but for being one more.
    const bool nested = !lease.caller.parent.empty();
    Held asked;
    asked.add(lease.request, placement);
    Held all = asked;
    std::vector<LeaseId> own;
    const auto count = [&](const Lease& other) {
        if (other.caller.uid != lease.caller.uid || other.id == lease.id) return;
        if (other.caller.parent.empty())
            all.add(other.request, other.placement);
        else
            all.leases += 1;
        own.push_back(other.id);
    };
    for (const auto& [id, other] : state_.leases.begun())
        if (model::occupies(other.state) && !world.over.contains(id)) count(other);
    for (const auto* other : world.beside)
        if (!world.over.contains(other->id)) count(*other);

    std::optional<NoPlace> out;
    const auto check = [&](const char* what, auto limit, auto of_this, auto of_all, auto text) {
        if (out || !limit || of_all <= *limit) return;
        const bool never = of_this > *limit;
        const auto uid = "uid " + std::to_string(lease.caller.uid);
        out = NoPlace{.error = {never ? Errc::impossible : Errc::quota,
                                std::string(what) + ": " + text(of_this) + " asked, " +
                                    (never ? "" : uid + " has " + text(of_all - of_this) + " already, and ") +
                                    text(*limit) + " is the most for " + uid + " here"},
                      .in_the_way = never ? std::vector<LeaseId>() : own};
    };
    const auto plain = [](auto number) { return std::to_string(number); };
    check("leases", limits.leases, asked.leases, all.leases, plain);
    if (nested) return out;
    check("cores", limits.cores, asked.cores, all.cores, plain);
    check("nodes", limits.nodes, asked.nodes, all.nodes, plain);
    check("gpus", limits.gpus, asked.gpus, all.gpus, plain);
    check("memory", limits.memory, asked.memory, all.memory, model::bytes_text);
    check("hugepages", limits.hugepages, asked.hugepages, all.hugepages, model::bytes_text);
    return out;
}

}  // namespace numalease::core
