#include <algorithm>

#include "core/stepper.hpp"

// Whether a request gets what it asks for, now or in another world, and what becomes of it where it does not.

namespace numalease::core {

using model::Errc;
using model::Error;
using model::Lease;
using model::LeaseId;
using model::LeaseState;

namespace {

NoPlace no(Errc code, std::string detail, std::vector<LeaseId> in_the_way = {}) {
    return {.error = {code, std::move(detail)}, .in_the_way = std::move(in_the_way)};
}

}  // namespace

std::map<unsigned, model::Bytes> outstanding(const Lease& lease, const Observed& observed) {
    auto out = lease.placement.promise;
    const auto used = observed.used.find(lease.id);
    if (used == observed.used.end()) return out;
    for (auto& [node, bytes] : out)
        if (const auto have = used->second.find(node); have != used->second.end())
            bytes -= std::min(bytes, have->second);
    return out;
}

std::expected<model::Placement, NoPlace> Stepper::try_place(const Lease& lease, const World& world) const {
    Occupancy occupancy{.allowed_cpus = lease.caller.allowed_cpus,
                        .allowed_nodes = lease.caller.allowed_nodes,
                        .foreign_cpus = observed_.foreign_cpus,
                        .reserve = observed_.reserve,
                        .explain = world.explain};
    const auto parent = state_.leases.find(lease.caller.parent);
    if (parent != state_.leases.end()) {
        const auto& bounds = parent->second.placement;
        occupancy.allowed_cpus &= bounds.cpus;
        occupancy.allowed_nodes &= bounds.nodes;
        occupancy.allowed_gpus = model::gpu_addresses(bounds);
    }
    const auto add = [&](const Lease& other) {
        // A child lives inside its parent: only siblings are in each other's way.
        if (!model::occupies(other.state) || other.id == lease.id || other.caller.parent != lease.caller.parent) return;
        const bool over = world.over.contains(other.id);
        occupancy.occupants.push_back({.id = other.id,
                                       .cpus = other.placement.cpus,
                                       .share = other.request.share,
                                       .over = over,
                                       .outstanding = outstanding(other, observed_),
                                       .gpus = over ? std::set<std::string>() : model::gpu_addresses(other.placement),
                                       .gpu_share = other.request.gpu_share});
    };
    for (const auto& [id, other] : state_.leases.begun()) add(other);
    for (const auto* other : world.beside) add(*other);
    return place(observed_, occupancy, lease.request);
}

std::expected<model::Placement, NoPlace> Stepper::plan(Lease lease) const {
    if (auto missing = missing_lever(lease.request)) return std::unexpected(NoPlace{.error = std::move(*missing)});
    if (auto refusal = limit_refusal(lease)) return std::unexpected(NoPlace{.error = std::move(*refusal)});
    if (auto refusal = shield_refusal(lease)) return std::unexpected(NoPlace{.error = std::move(*refusal)});
    auto choice = choose(std::move(lease));
    if (!choice) return std::unexpected(std::move(choice.error()));
    auto& placement = choice->placement;
    placement.why.insert(placement.why.end(), choice->lease.notes.begin(), choice->lease.notes.end());
    return std::move(placement);
}

void Stepper::operator()(const Acquire& input) {
    serve_later_ = is_crowded();
    if (state_.stopping) {
        refusal_ = Error{Errc::not_now, "the daemon is stopping; ask again when it is back"};
        return;
    }
    if (auto missing = missing_lever(input.request)) {
        refusal_ = std::move(missing);
        return;
    }
    Lease lease{.id = "c" + std::to_string(state_.next_id),
                .caller = input.caller,
                .request = input.request,
                .holders = {input.caller.process},
                .queued = now_};
    start_new_run(lease.caller);
    if (take_up({.request = input.request, .caller = lease.caller})) return;
    if (!lease.request.name.empty()) lease.caller.parent.clear();  // its slice is in nobody's cgroup
    // A parent can end while polkit is asked: a child of what is over would be placed as if it were alone.
    while (!lease.caller.parent.empty()) {
        const auto parent = state_.leases.find(lease.caller.parent);
        if (parent != state_.leases.end() && parent->second.state == LeaseState::active) break;
        lease.caller.parent = parent == state_.leases.end() ? LeaseId() : parent->second.caller.parent;
    }
    if (auto refusal = limit_refusal(lease)) {
        refusal_ = std::move(refusal);
        return;
    }
    if (auto refusal = shield_refusal(lease)) {
        refusal_ = std::move(refusal);
        return;
    }
    acquired_ = lease.id;
    const bool others_wait = lease.caller.parent.empty() && !state_.queue.empty();
    auto choice = choose(lease);
    if (choice && !others_wait) {
        state_.next_id += 1;
        return give(std::move(*choice));
    }
    std::optional<NoPlace> why;
    if (!choice) why = std::move(choice.error());
    if (why && may_wait(*why))
        if (auto refusal = never(lease)) {
            acquired_.clear();
            refusal_ = std::move(refusal);
            return;
        }
    bool told = false;
    if (others_wait && !why) {
        // Whether it goes before those who wait, or beside them, is for the queue to say: tried on a copy, since what
        // it would be in the way of must not move for one that does not stay.
        auto trial = *this;
        trial.join_queue(lease);
        trial.serve_queue();
        const auto& then = std::as_const(trial.state_.leases).at(lease.id);
        if (then.state != LeaseState::queued) {
            join_queue(std::move(lease));
            state_.next_id += 1;
            return serve_queue();
        }
        const auto text = then.in_the_way.empty() ? "others wait before it" : then.in_the_way.front();
        why = no(Errc::not_now, text, {state_.queue.front()});
        told = true;
    }
    if (wait_for_room(std::move(lease), std::move(*why), told)) state_.next_id += 1;
}

/// Puts it into the queue, or refuses it: at once where nothing that can end is in its way, or it does not wait.
bool Stepper::wait_for_room(Lease lease, NoPlace why, bool told) {
    const auto& wait = lease.request.wait;
    const bool waits = wait.forever || wait.time.count() > 0;
    // A lease that is ending holds no CPUs any more, but perhaps still memory.
    const bool ending = std::ranges::any_of(state_.leases.begun(),
                                            [](const auto& item) { return item.second.state == LeaseState::ending; });
    const bool can_end =
        (!why.in_the_way.empty() || ending) &&
        std::ranges::none_of(why.in_the_way, [&](const LeaseId& id) { return is_ancestor(id, lease); });
    if (!told) why.error.detail += blockers_text(why.in_the_way);
    if (!why.fits_now.empty()) why.error.detail += "; fits now: " + why.fits_now;
    if (may_wait(why) && can_end && !waits) why.error.detail += "; or wait: --wait=forever";
    if (!may_wait(why) || !waits || !can_end) {
        acquired_.clear();
        refusal_ = std::move(why.error);
        return false;
    }
    if (auto refusal = queue_refusal(lease)) {
        acquired_.clear();
        refusal_ = std::move(refusal);
        return false;
    }
    lease.reason = why.error.detail;
    lease.in_the_way = {why.error.detail};
    join_queue(std::move(lease));
    return true;
}

/// What the lease would get in this world. Changes nothing.
std::expected<Choice, NoPlace> Stepper::choose(Lease lease, const World& world) const {
    auto placement = try_place(lease, world);
    if (!placement) placement = place_estimate(lease, world, std::move(placement.error()));
    const auto& most = limits_of(lease.caller.uid).cores;
    if (placement && most && placement->cores > *most && !lease.request.cores) {
        lease.request.cores = most;
        lease.notes.push_back("cores: " + std::to_string(*most) + ", the most for uid " +
                              std::to_string(lease.caller.uid) + " here");
        placement = try_place(lease, world);
    }
    if (!placement) return std::unexpected(std::move(placement.error()));
    if (auto over = over_limit(lease, *placement, world)) return std::unexpected(std::move(*over));
    if (auto refusal = page_cache_refusal(lease, placement->nodes)) {
        if (model::is_required(lease.request, "page-cache"))
            return std::unexpected(NoPlace{.error = std::move(*refusal)});
        lease.request.page_cache = model::PageCache::keep;  // from a policy: best effort
        lease.notes.push_back(refusal->detail + "; left as it is");
    }
    if (auto full = no_room_for_pages(lease, *placement, world)) return std::unexpected(std::move(*full));
    choose_weights(lease, *placement);
    auto levers = agree_on_levers(lease, *placement, world);
    if (!levers) return std::unexpected(std::move(levers.error()));
    return Choice{.lease = std::move(lease), .placement = std::move(*placement), .levers = std::move(*levers)};
}

/// Another value that is held of this knob, and by whom.
std::pair<std::string, std::vector<LeaseId>> Stepper::wanted_otherwise(const Lever& lever, const World& world) const {
    std::pair<std::string, std::vector<LeaseId>> out;
    const auto add = [&](const LeaseId& id, const std::string& value) {
        if (value == lever.value || world.over.contains(id)) return;
        out.first = value;
        out.second.push_back(id);
    };
    if (const auto row = state_.ledger.find(lever.key); row != state_.ledger.end())
        for (const auto& [id, value] : row->second.wants) add(id, value);
    for (const auto* other : world.beside)
        for (const auto& it : shared_levers(other->request, other->placement, observed_))
            if (it.key == lever.key) add(other->id, it.value);
    return out;
}

/// The levers that can be pulled in this world. A required one that others hold at another value blocks; any other is
/// left out.
std::expected<std::vector<Lever>, NoPlace> Stepper::agree_on_levers(Lease& lease, const model::Placement& placement,
                                                                    const World& world) const {
    std::vector<Lever> out;
    std::vector<std::string> skipped;
    for (auto& lever : shared_levers(lease.request, placement, observed_)) {
        const auto [held, holders] = wanted_otherwise(lever, world);
        if (holders.empty()) {
            out.push_back(std::move(lever));
            continue;
        }
        const auto text = lever.key.text() + ": held at " + held + ", asked for " + lever.value;
        if (lever.required) return std::unexpected(no(Errc::not_now, text, holders));
        skipped.push_back(text + blockers_text(holders) + "; left as it is");
    }
    for (const auto& lever : pool_levers(lease.request, placement)) {
        const auto* node = observed_.topology.node(lever.key.node);
        if (!lever.required) continue;
        if (node == nullptr || lever.pages > node->total / lever.key.page_size)
            return std::unexpected(
                no(Errc::impossible, lever.key.text() + ": " + std::to_string(lever.pages) + " pages asked, node " +
                                         std::to_string(lever.key.node) + " has room for " +
                                         std::to_string(node == nullptr ? 0 : node->total / lever.key.page_size)));
    }
    lease.notes.insert(lease.notes.end(), skipped.begin(), skipped.end());
    return out;
}

/// A required lever that this kernel does not have. Seen before queueing: waiting would not bring it.
std::optional<Error> Stepper::missing_lever(const model::Request& request) const {
    const auto lacks = [&](const model::KnobKey& key) {
        const auto found = observed_.knobs.find(key);
        return found == observed_.knobs.end() || !found->second.present();
    };
    for (const auto& lever : shared_levers(request, {}, observed_))
        if (lever.required && lacks(lever.key))
            return Error{Errc::unsupported, std::string(field_of(lever.key.knob)) + ": this kernel has no " +
                                                lever.key.text() + " (" + lever.key.path() + ")"};
    for (const auto& item : request.hugepages) {
        if (std::ranges::count(observed_.topology.hugepage_sizes, item.page_size) != 0) continue;
        std::string sizes;
        for (const auto size : observed_.topology.hugepage_sizes)
            sizes += (sizes.empty() ? "" : ", ") + model::bytes_text(size);
        return Error{Errc::impossible, "hugepages: no pages of " + model::bytes_text(item.page_size) +
                                           " here; this machine has " + (sizes.empty() ? "none" : sizes)};
    }
    if (request.page_cache == model::PageCache::reclaim && model::is_required(request, "page-cache"))
        for (const auto& node : observed_.topology.nodes)
            if (lacks({.knob = model::Knob::reclaim, .node = node.id}))
                return Error{Errc::unsupported,
                             "page-cache: this kernel has no per-node reclaim; use --page-cache evict, for the model's "
                             "files alone, or drop, for everything"};
    return std::nullopt;
}

/// Others may be reading what is dropped: once a minute, and never under another user's lease; for a node's own cache,
/// never under one on that node. Evicting a model's pages is the client's own doing, and no business of ours.
std::optional<Error> Stepper::page_cache_refusal(const Lease& lease, const model::NodeSet& nodes) const {
    constexpr model::Micros kInterval{60'000'000};
    using enum model::PageCache;
    const auto action = lease.request.page_cache;
    if (action != drop && action != reclaim) return std::nullopt;
    for (const auto& [id, other] : state_.leases.begun())
        if (model::occupies(other.state) && other.caller.uid != lease.caller.uid &&
            (action == drop || other.placement.nodes.intersects(nodes)))
            return Error{Errc::not_now,
                         "page-cache: " + std::string(action == drop ? "dropping caches" : "reclaiming these nodes") +
                             " would slow another user's lease" + blockers_text({id}) + "; use --page-cache " +
                             (action == drop ? "reclaim, or evict" : "evict")};
    if (state_.last_drop && now_.boot - *state_.last_drop < kInterval)
        return Error{Errc::not_now, "page-cache: caches were dropped or reclaimed " +
                                        model::duration_text(now_.boot - *state_.last_drop) +
                                        " ago; once a minute is the limit"};
    return std::nullopt;
}

}  // namespace numalease::core
