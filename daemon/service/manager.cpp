#include "service/manager.hpp"

#include <algorithm>

#include "bus/names.hpp"
#include "service/log.hpp"
#include "service/reply.hpp"

namespace numalease::service {

using model::Errc;
using model::Error;
using model::fail;
using model::Lease;
using model::LeaseId;
using model::LeaseState;
using model::Result;

namespace {

constexpr std::size_t kMaxWaits = 16384;
constexpr std::ptrdiff_t kMaxWaitsOfSender = 32;
constexpr std::size_t kMaxAskedOfUser = 16;
constexpr std::size_t kMaxWaitingOfUser = 256;

Result<std::string> read_text(const Held& call) {
    const char* text = nullptr;
    if (sd_bus_message_read(call.get(), "s", &text) < 0) return fail(Errc::invalid_request, "a lease id is expected");
    return std::string(text);
}

bool same_sender(const Held& one, const Held& other) {
    const auto sender = [](const Held& call) {
        const char* name = sd_bus_message_get_sender(call.get());
        return std::string_view(name != nullptr ? name : "");
    };
    return sd_bus_message_get_bus(one.get()) == sd_bus_message_get_bus(other.get()) && sender(one) == sender(other);
}

}  // namespace

std::optional<Result<model::Dict>> wait_answer(const Lease& lease, bool until_active, bool stuck) {
    if ((lease.state == LeaseState::refused || (stuck && lease.failure)) && until_active)
        return fail(lease.failure.value_or(Errc::not_now), lease.reason);
    if (model::is_over(lease.state) && !until_active) return to_dict(lease);
    if (!until_active) return std::nullopt;
    if (lease.state == LeaseState::active) return to_dict(lease);
    if (lease.state == LeaseState::ended || (lease.state == LeaseState::ending && !lease.failure))
        return fail(Errc::not_now, lease.id + " is over: " + lease.reason);
    return std::nullopt;
}

std::size_t Manager::pending() const {
    return waits_.size() + joins_.size() + static_cast<std::size_t>(token_.use_count() - 1);
}

void Manager::detach(sd_bus* connection) {
    connections_.erase(connection);
    std::erase_if(waits_, [&](const Wait& it) { return sd_bus_message_get_bus(it.call.get()) == connection; });
    std::erase_if(joins_, [&](const auto& it) { return sd_bus_message_get_bus(it.second.call.get()) == connection; });
}

// ── Decode ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// Site defaults fill what the client left out; socket and node are one question, so either answers it.
Result<model::Request> Manager::read_request(const Held& call) const {
    auto dict = bus::read_dict(call.get());
    if (!dict) return std::unexpected(dict.error());
    for (const auto& [name, text] : parts_.site->config.defaults) {
        const bool placed = dict->contains("socket") || dict->contains("node");
        if (dict->contains(name) || (placed && (name == "socket" || name == "node"))) continue;
        (*dict)[name] = text;
    }
    auto request = model::request_from_dict(*dict);
    if (!request) return request;
    if (auto valid = model::validate(*request); !valid) return std::unexpected(valid.error());
    return request;
}

/// By id or by name: of several that had the name, the one that is not over, else the last.
Result<const Lease*> Manager::find_lease(const LeaseId& id) const {
    const auto& leases = parts_.state().leases;
    const auto found = leases.find(id);
    if (found != leases.end()) return &found->second;
    const Lease* named = nullptr;
    for (const auto& [other, lease] : leases) {
        if (lease.request.name != id || id.empty()) continue;
        const auto rank = [](const Lease& it) { return std::pair(!model::is_over(it.state), it.queued.boot); };
        if (named == nullptr || rank(lease) > rank(*named)) named = &lease;
    }
    if (named == nullptr) return fail(Errc::no_such_lease, "there is no lease '" + id.substr(0, 64) + "'");
    return named;
}

/// The id of the lease that a call names.
Result<LeaseId> Manager::read_id(const Held& call) const {
    const auto lease = read_lease(call);
    if (!lease) return std::unexpected(lease.error());
    return (*lease)->id;
}

Result<const Lease*> Manager::read_lease(const Held& call) const {
    const auto id = read_text(call);
    if (!id) return std::unexpected(id.error());
    return find_lease(*id);
}

// ── Authorise, limit ─────────────────────────────────────────────────────────────────────────────────────────────

void Manager::identified(const Held& call, Known next) {
    parts_.identifier->identify(
        call, [call, next = std::move(next), busy = token_](const Result<std::shared_ptr<Identity>>& who) {
            if (!who) return reply_error(call, who.error());
            next(*who);
        });
}

void Manager::authorised(const Held& call, const std::shared_ptr<Identity>& who, const std::vector<Action>& actions,
                         std::function<void()> next) {
    if (parts_.daemon == nullptr)
        return reply_error(call, {Errc::denied, "this numa-leased only answers questions (--read-only)"});
    const auto uid = who->caller.uid;
    if (uid == 0 || actions.empty()) return next();
    in_turn(call, uid, [=, this, next = std::move(next), busy = token_] {
        parts_.authoriser->check(call, who->caller, actions, parts_.site->config.group,
                                 [=, this, busy = busy](Result<void> verdict) {
                                     // A question to polkit takes as long as a person does: whoever asked must still be
                                     // there.
                                     if (verdict && !host::pidfd_alive(who->pidfd.get()))
                                         verdict = fail(Errc::denied, "the caller is gone");
                                     if (verdict) {
                                         next();
                                     } else {
                                         parts_.denials->say(uid, "denied", verdict.error().detail);
                                         reply_error(call, verdict.error());
                                     }
                                     end_turn(uid);
                                 });
    });
}

/// No user keeps polkit, and through it everybody else, busy: so many of his calls are looked into at a time, and the
/// others wait for those.
void Manager::in_turn(const Held& call, unsigned uid, std::function<void()> ask) {
    auto& turn = turns_[uid];
    if (turn.waiting.size() >= kMaxWaitingOfUser)
        return reply_error(call,
                           {Errc::quota, parts_.accounts->user_name(uid) + " has " + std::to_string(kMaxWaitingOfUser) +
                                             " calls that wait for polkit already; answer or end one first"});
    turn.waiting.push_back(std::move(ask));
    begin_turns(uid);
}

void Manager::begin_turns(unsigned uid) {
    // Without polkit the verdict is there at once, and with it the turn may be over and gone.
    for (auto at = turns_.find(uid);
         at != turns_.end() && !at->second.waiting.empty() && at->second.asked < kMaxAskedOfUser;
         at = turns_.find(uid)) {
        const auto ask = std::move(at->second.waiting.front());
        at->second.waiting.pop_front();
        ++at->second.asked;
        ask();
    }
}

void Manager::end_turn(unsigned uid) {
    auto& turn = turns_[uid];
    --turn.asked;
    if (turn.asked == 0 && turn.waiting.empty()) turns_.erase(uid);
    begin_turns(uid);
}

/// Whoever holds a lease, and root, may end it or enter it; anybody else needs `manage`.
void Manager::as_owner(const Held& call, const LeaseId& id, Known next) {
    identified(call, [=, this, next = std::move(next)](const std::shared_ptr<Identity>& who) {
        const auto lease = find_lease(id);
        if (!lease) return reply_error(call, lease.error());
        std::vector<Action> actions;
        if ((*lease)->caller.uid != who->caller.uid) actions.push_back(Action::manage);
        authorised(call, who, actions, [next, who] { next(who); });
    });
}

// ── Methods that change something ────────────────────────────────────────────────────────────────────────────────

void Manager::acquire(const Held& call) {
    const auto request = read_request(call);
    if (!request) return reply_error(call, request.error());
    identified(call, [=, this](const std::shared_ptr<Identity>& who) {
        authorised(call, who, actions_of(*request), [=, this] { grant(call, *request, who); });
    });
}

void Manager::grant(const Held& call, const model::Request& request, const std::shared_ptr<Identity>& who) {
    parts_.holders->adopt(who->caller.process, std::move(who->pidfd));
    const auto outcome = parts_.daemon->handle(core::Acquire{.request = request, .caller = who->caller});
    if (outcome.refusal) return reply_error(call, *outcome.refusal);
    const auto lease = find_lease(outcome.lease);
    if (!lease) return reply_error(call, {Errc::internal, "the lease ended while it was being made"});
    if ((*lease)->state == LeaseState::refused)
        return reply_error(call, {(*lease)->failure.value_or(Errc::not_now), (*lease)->reason});
    // Who waits is told when its turn comes; in a long queue it is not near, and everybody would be looked at each
    // time.
    constexpr std::size_t kLong = 256;
    const bool waits = (*lease)->state == LeaseState::queued && parts_.state().queue.size() <= kLong;
    reply_named_dict(call, outcome.lease, waits ? dict_of(**lease) : to_dict(**lease));
}

void Manager::join(const Held& call) {
    const auto id = read_id(call);
    if (!id) return reply_error(call, id.error());
    as_owner(call, *id, [=, this](const std::shared_ptr<Identity>& who) {
        core::Join join{.lease = *id, .process = who->caller.process, .dead = {}};
        if (const auto found = parts_.daemon->state().leases.find(*id); found != parts_.daemon->state().leases.end())
            for (const auto& holder : found->second.holders)
                if (!host::is_alive(parts_.machine->proc, holder)) join.dead.push_back(holder);
        const auto outcome = parts_.daemon->handle(join);
        if (outcome.refusal) return reply_error(call, *outcome.refusal);
        if (outcome.op && parts_.state().joins.contains(*outcome.op)) {
            joins_[*outcome.op] = {.call = call, .lease = *id, .who = who};
            return;
        }
        const auto lease = find_lease(*id);
        if (!lease) return reply_error(call, lease.error());
        const auto& holders = (*lease)->holders;
        if (std::ranges::find(holders, who->caller.process) == holders.end())
            return reply_error(call, {Errc::not_now, *id + ": the process could not be taken in"});
        reply_dict(call, to_dict(**lease));
    });
}

void Manager::answer_join(const core::Done& done) {
    const auto found = joins_.find(done.op);
    if (found == joins_.end()) return;
    const auto join = std::move(found->second);
    joins_.erase(found);
    if (done.error) return reply_error(join.call, *done.error);
    parts_.holders->adopt(join.who->caller.process, std::move(join.who->pidfd));
    const auto lease = find_lease(join.lease);
    if (!lease) return reply_error(join.call, lease.error());
    reply_dict(join.call, to_dict(**lease));
}

void Manager::release(const Held& call) {
    const auto id = read_id(call);
    if (!id) return reply_error(call, id.error());
    as_owner(call, *id, [=, this](const std::shared_ptr<Identity>& who) {
        const auto lease = find_lease(*id);
        if (!lease) return reply_error(call, lease.error());
        const bool alive = parts_.holders->alive(**lease, who->caller.process);
        const auto outcome = parts_.daemon->handle(core::Release{.lease = *id, .alive = alive});
        if (outcome.refusal) return reply_error(call, *outcome.refusal);
        reply_empty(call);
    });
}

void Manager::stop(const Held& call) {
    const auto id = read_id(call);
    std::uint64_t grace = 0;
    if (!id) return reply_error(call, id.error());
    constexpr std::uint64_t kLongestGrace = 86'400'000'000;
    if (sd_bus_message_read(call.get(), "t", &grace) < 0 || grace > kLongestGrace)
        return reply_error(call, {Errc::invalid_request, "grace: at most a day"});
    as_owner(call, *id, [=, this](const std::shared_ptr<Identity>& who) {
        const auto outcome = parts_.daemon->handle(core::Stop{.lease = *id,
                                                              .grace = model::Micros(static_cast<std::int64_t>(grace)),
                                                              .by = parts_.accounts->user_name(who->caller.uid)});
        if (outcome.refusal) return reply_error(call, *outcome.refusal);
        reply_empty(call);
    });
}

void Manager::extend(const Held& call) {
    const auto id = read_id(call);
    std::uint64_t time = 0;
    if (!id) return reply_error(call, id.error());
    if (sd_bus_message_read(call.get(), "t", &time) < 0 || time > INT64_MAX)
        return reply_error(call, {Errc::invalid_request, "extend: a time in microseconds"});
    as_owner(call, *id, [=, this](const std::shared_ptr<Identity>& who) {
        const auto lease = find_lease(*id);
        if (!lease) return reply_error(call, lease.error());
        const bool administrator = who->caller.uid == 0 || who->caller.uid != (*lease)->caller.uid;
        const auto outcome = parts_.daemon->handle(core::Extend{.lease = (*lease)->id,
                                                                .by = model::Micros(static_cast<std::int64_t>(time)),
                                                                .may_pass_limits = administrator});
        if (outcome.refusal) return reply_error(call, *outcome.refusal);
        const auto now = find_lease(*id);
        if (!now) return reply_error(call, now.error());
        reply_dict(call, to_dict(**now));
    });
}

// ── Methods that only look ───────────────────────────────────────────────────────────────────────────────────────

void Manager::wait(const Held& call) {
    const auto lease = read_lease(call);
    if (!lease) return reply_error(call, lease.error());
    const auto until = read_text(call);
    if (!until || (*until != "active" && *until != "ended"))
        return reply_error(call, {Errc::invalid_request, "wait: until 'active' or 'ended'"});
    if (auto answer = wait_answer(**lease, *until == "active", core::is_stuck(parts_.state(), (*lease)->id)))
        return *answer ? reply_dict(call, **answer) : reply_error(call, answer->error());
    if (parts_.daemon == nullptr)
        return reply_error(call, {Errc::no_daemon, "no numa-leased runs that would change " + (*lease)->id});
    const auto of_sender = std::ranges::count_if(waits_, [&](const Wait& it) { return same_sender(it.call, call); });
    if (waits_.size() >= kMaxWaits || of_sender >= kMaxWaitsOfSender)
        return reply_error(call, {Errc::quota, "too many calls are waiting already"});
    Wait it{.call = call, .lease = (*lease)->id, .until_active = *until == "active", .sender = {}};
    if (sd_bus* connection = sd_bus_message_get_bus(call.get()); sd_bus_is_bus_client(connection) > 0) {
        sd_bus_track* track = nullptr;
        int r = sd_bus_track_new(connection, &track, on_waiter_gone, this);
        it.sender.reset(track);
        if (r >= 0) r = sd_bus_track_add_sender(track, call.get());
        if (r < 0) return reply_error(call, {Errc::denied, "the caller is gone already"});
    }
    waits_.push_back(std::move(it));
}

/// Runs inside the track, which keeps itself until it returns.
int Manager::on_waiter_gone(sd_bus_track* track, void* data) {
    std::erase_if(static_cast<Manager*>(data)->waits_, [&](const Wait& it) { return it.sender.get() == track; });
    return 0;
}

void Manager::answer_waits(const LeaseId& id, const Lease* lease) {
    std::erase_if(waits_, [&](const Wait& it) {
        if (it.lease != id) return false;
        auto answer = lease != nullptr ? wait_answer(*lease, it.until_active, core::is_stuck(parts_.state(), id))
                                       : std::optional<Result<model::Dict>>(fail(Errc::no_such_lease, id + " is over"));
        if (!answer) return false;
        *answer ? reply_dict(it.call, **answer) : reply_error(it.call, answer->error());
        return true;
    });
}

void Manager::plan(const Held& call) {
    const auto request = read_request(call);
    if (!request) return reply_error(call, request.error());
    identified(call, [=, this](const std::shared_ptr<Identity>& who) {
        const auto& state = parts_.state();
        const auto observed = parts_.observer->observe_for(state, *request, who->caller, parts_.about().systemd);
        const auto placement = core::plan(state, observed, *request, who->caller, now());
        if (placement) return reply_dict(call, to_dict(*placement));
        auto error = placement.error().error;
        if (!placement.error().fits_now.empty()) error.detail += "; fits now: " + placement.error().fits_now;
        reply_error(call, error);
    });
}

void Manager::list_leases(const Held& call) {
    std::vector<const Lease*> leases;  // as they came: ids are not in the order of their texts
    for (const auto& [id, lease] : parts_.state().leases) leases.push_back(&lease);
    std::ranges::stable_sort(leases, {}, [](const Lease* it) { return it->queued.boot; });
    model::Value::Dicts out;
    for (const auto* lease : leases) out.push_back(dict_of(*lease));
    reply_dicts(call, out);
}

void Manager::get_lease(const Held& call) {
    const auto lease = read_lease(call);
    lease ? reply_dict(call, dict_of(**lease)) : reply_error(call, lease.error());
}

void Manager::get_topology(const Held& call) { reply_dict(call, to_dict(parts_.observer->topology())); }

void Manager::get_knobs(const Held& call) { reply_dicts(call, knob_dicts(parts_.state(), *parts_.observer)); }

void Manager::get_status(const Held& call) {
    const auto& rivals = rivals_.get({}, now().boot, [this] { return running_rivals(parts_.machine->proc); });
    reply_dict(call,
               status_dict(parts_.state(), parts_.about(), *parts_.site, *parts_.machine, *parts_.observer, rivals));
}

/// By a descriptor, which says that the caller may read the file. What others use of it is for those who may lease.
void Manager::cache_residency(const Held& call) {
    int file = -1;  // the message's own
    if (sd_bus_message_read(call.get(), "h", &file) < 0)
        return reply_error(call, {Errc::invalid_request, "an open file is expected"});
    identified(call, [=, this](const std::shared_ptr<Identity>& who) {
        authorised(call, who, {Action::acquire}, [=, this] {
            parts_.residencies->ask(who->caller.uid, file,
                                    [call, busy = token_](const Result<model::Residency>& found) {
                                        found ? reply_dict(call, to_dict(*found)) : reply_error(call, found.error());
                                    });
        });
    });
}

}  // namespace numalease::service
