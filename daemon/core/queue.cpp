#include <algorithm>
#include <set>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Errc;
using model::Error;
using model::Lease;
using model::LeaseId;
using model::LeaseState;

namespace {

constexpr model::Micros kQueueRetry{1'000'000};

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

std::expected<model::Placement, NoPlace> Stepper::try_place(const Lease& lease) const {
    Occupancy occupancy{.allowed_cpus = lease.caller.allowed_cpus,
                        .allowed_nodes = lease.caller.allowed_nodes,
                        .foreign_cpus = observed_.foreign_cpus,
                        .reserve = observed_.reserve};
    const auto parent = state_.leases.find(lease.caller.parent);
    if (parent != state_.leases.end()) {
        const auto& bounds = parent->second.placement;
        occupancy.allowed_cpus &= bounds.cpus;
        occupancy.allowed_nodes &= bounds.nodes;
        occupancy.allowed_gpus = model::gpu_addresses(bounds);
    }
    for (const auto& [id, other] : state_.leases) {
        // A child lives inside its parent: only siblings are in each other's way.
        if (!model::occupies(other.state) || id == lease.id || other.caller.parent != lease.caller.parent) continue;
        occupancy.occupants.push_back({.id = id,
                                       .cpus = other.placement.cpus,
                                       .share = other.request.share,
                                       .outstanding = outstanding(other, observed_),
                                       .gpus = model::gpu_addresses(other.placement),
                                       .gpu_share = other.request.gpu_share});
    }
    return place(observed_, occupancy, lease.request);
}

std::expected<model::Placement, NoPlace> Stepper::plan(Lease lease) const {
    if (auto missing = missing_lever(lease.request)) return std::unexpected(NoPlace{.error = std::move(*missing)});
    if (auto refusal = shield_refusal(lease)) return std::unexpected(NoPlace{.error = std::move(*refusal)});
    auto placement = try_place(lease);
    if (!placement) return placement;
    choose_weights(lease, *placement);
    if (auto levers = agree_on_levers(lease, *placement); !levers) return std::unexpected(std::move(levers.error()));
    placement->why.insert(placement->why.end(), lease.notes.begin(), lease.notes.end());
    return placement;
}

void Stepper::operator()(const Acquire& input) {
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
    if (auto refusal = shield_refusal(lease)) {
        refusal_ = std::move(refusal);
        return;
    }
    const auto ahead = lease.caller.parent.empty() && !state_.queue.empty();
    auto answer = ahead ? std::unexpected(no(Errc::not_now, state_.queue.front() + " is first in the queue",
                                             {state_.queue.front()}))
                        : admit(lease);
    if (ahead)
        if (const auto possible = try_place(lease); !possible && possible.error().error.code != Errc::not_now)
            answer = std::unexpected(possible.error());
    if (!answer) {
        auto& why = answer.error();
        const auto waits = lease.request.wait.forever || lease.request.wait.time.count() > 0;
        // A lease that is ending holds no CPUs any more, but perhaps still memory.
        const bool ending = std::ranges::any_of(
            state_.leases, [](const auto& item) { return item.second.state == LeaseState::ending; });
        const bool can_end =
            (!why.in_the_way.empty() || ending) &&
            std::ranges::none_of(why.in_the_way, [&](const LeaseId& id) { return is_ancestor(id, lease); });
        why.error.detail += blockers_text(why.in_the_way);
        if (!why.fits_now.empty()) why.error.detail += "; fits now: " + why.fits_now;
        if (why.error.code == Errc::not_now && can_end && !waits) why.error.detail += "; or wait: --wait=forever";
        if (why.error.code != Errc::not_now || !waits || !can_end) {
            refusal_ = why.error;
            return;
        }
        lease.reason = why.error.detail;
        lease.in_the_way = {why.error.detail};
        state_.queue.push_back(lease.id);
    }
    state_.next_id += 1;
    acquired_ = lease.id;
    state_.leases.emplace(lease.id, std::move(lease));
}

std::expected<void, NoPlace> Stepper::admit(Lease& lease) {
    auto placement = try_place(lease);
    if (!placement) return std::unexpected(std::move(placement.error()));
    auto refusal = page_cache_refusal(lease, placement->nodes);
    if (refusal && model::is_required(lease.request, "page-cache"))
        return std::unexpected(NoPlace{.error = std::move(*refusal)});
    // Last: these leave notes. What was chosen for a lease that goes on waiting is chosen again.
    auto chosen = lease;
    choose_weights(chosen, *placement);
    auto levers = agree_on_levers(chosen, *placement);
    if (!levers) return std::unexpected(std::move(levers.error()));
    lease = std::move(chosen);
    if (refusal) {  // from a policy: best effort
        lease.request.page_cache = model::PageCache::keep;
        lease.notes.push_back(refusal->detail + "; left as it is");
    }
    begin_preparing(lease, std::move(*placement));
    for (const auto& lever : *levers)
        if (auto wanted = want(lease, lever); !wanted) {  // required ones were looked at before: this one is not
            lease.knobs.push_back({lever.key, lever.value, "", "", wanted.error().detail});
            lease.notes.push_back(lever.key.text() + " skipped: " + wanted.error().detail);
        }
    return {};
}

/// The levers that can be pulled now. A required one that others hold at another value blocks; any other is left out.
std::expected<std::vector<Lever>, NoPlace> Stepper::agree_on_levers(Lease& lease,
                                                                    const model::Placement& placement) const {
    std::vector<Lever> out;
    std::vector<std::string> skipped;
    for (auto& lever : shared_levers(lease.request, placement, observed_)) {
        const auto row = state_.ledger.find(lever.key);
        if (row == state_.ledger.end() || row->second.wants.empty() ||
            row->second.wants.begin()->second == lever.value) {
            out.push_back(std::move(lever));
            continue;
        }
        std::vector<LeaseId> holders;
        for (const auto& [id, value] : row->second.wants) holders.push_back(id);
        const auto& held = row->second.wants.begin()->second;
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
    for (const auto& [id, other] : state_.leases)
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

void Stepper::serve_queue() {
    bool blocked = false;
    std::size_t position = 0;
    const auto waiting = state_.queue;
    for (const auto& id : waiting) {
        auto& lease = state_.leases.at(id);
        const bool nested = !lease.caller.parent.empty();
        if (!nested) ++position;
        if (!nested && blocked) {
            lease.in_the_way = {"position " + std::to_string(position) + ", behind " + waiting.front()};
            continue;
        }
        const auto answer = admit(lease);
        if (answer) {
            std::erase(state_.queue, id);
            continue;
        }
        const auto& why = answer.error();
        const auto on_ancestor = [&](const LeaseId& blocker) { return is_ancestor(blocker, lease); };
        if (why.error.code != Errc::not_now || std::ranges::any_of(why.in_the_way, on_ancestor)) {
            auto error = why.error;
            error.detail += blockers_text(why.in_the_way);
            refuse(lease, error);
            continue;
        }
        lease.in_the_way = {why.error.detail + blockers_text(why.in_the_way) +
                            (why.fits_now.empty() ? "" : "; fits now: " + why.fits_now)};
        // No lease is in the way, something else is (memory of other programs): nothing will tell when it has gone.
        if (why.in_the_way.empty()) state_.queue_retry_at = now_.boot + kQueueRetry;
        if (!nested) blocked = true;
    }
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
