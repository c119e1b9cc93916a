#pragma once

#include <functional>

#include "core/schedule.hpp"
#include "core/step.hpp"

namespace numalease::core {

/// From SIGTERM to SIGKILL, when a lease's time is up.
inline constexpr model::Micros kExpiryGrace{10'000'000};

/// When to look again at those who wait, where no event will tell.
inline constexpr model::Micros kQueueRetry{1'000'000};
/// The same where a lease's end will tell, too: memory that a lease has, and other programs have, may be freed by
/// either.
inline constexpr model::Micros kMemoryRetry{30'000'000};

/// One lever a request pulls, with the value resolved for its placement.
struct Lever {
    model::KnobKey key;
    std::string value;           ///< shared
    std::uint64_t pages = 0;     ///< pool
    std::uint64_t at_least = 0;  ///< pool
    bool required = false;
};

/// The shared and pool levers of a request on a placement. Pure.
/// `auto` turns balancing off only where it would touch this job: the kernel does not scan tasks under an interleave or
/// bind policy (seen: hint faults default 24,600, interleave 1, bind 0).
/// 1 to 16 for each node: its part of what is free or can be at once.
std::map<unsigned, unsigned> weights_by_free_memory(const model::NodeSet& nodes,
                                                    const std::map<unsigned, NodeMemory>& memory);
std::vector<Lever> shared_levers(const model::Request& request, const model::Placement& placement,
                                 const Observed& observed);
std::vector<Lever> pool_levers(const model::Request& request, const model::Placement& placement);

/// What `auto` means on this placement: bind on one node, interleave on several.
model::Mempolicy resolve_mempolicy(const model::Request& request, const model::Placement& placement);

/// The request field by which a knob is asked for, for messages and for `required`.
std::string_view field_of(model::Knob knob);

/// When to try again what refused `failures` times in a row: soon at first, then every half minute.
model::Micros retry_delay(unsigned failures);

/// How this caller can be confined, by where the kernel says it is. Pure; DESIGN "Confinement" table.
model::Confinement choose_confinement(const model::Caller& caller, const model::LeaseId& id, bool systemd);

/// The same for a lease; one with a name is a slice.
model::Confinement choose_confinement(const model::Lease& lease, bool systemd);
/// Makes a chosen confinement a cpuset partition, or moves it into the slice that is one. Pure.
/// Errors: unsupported, with the reason.
model::Result<void> add_shield(model::Confinement& it, const model::Caller& caller, const ShieldFacts& facts);

/// True where the confinement of a lease has left something that its end must undo.
bool has_touched_machine(const model::Lease& lease);

/// The reason of an end: that memory ran out, where it did.
std::string why_it_ended(const model::Lease& lease, const std::string& otherwise);

/// What must be durable before the effects of a step: one record for each entity that differs.
std::vector<model::Record> changes(const State& from, const State& to);

/// What a lease still has to get of its promise, per node.
std::map<unsigned, model::Bytes> outstanding(const model::Lease& lease, const Observed& observed);

/// Can waiting bring what is missing?
bool may_wait(const NoPlace& why);

/// Who holds what at some moment: now, but for these.
struct World {
    std::set<model::LeaseId> over;            ///< are no more
    std::vector<const model::Lease*> beside;  ///< have been given, too; each with its placement
    bool explain = true;                      ///< where there is no room: why
};

/// What a request gets, before it has it.
struct Choice {
    model::Lease lease;  ///< with what was left out or filled in, and notes about it
    model::Placement placement;
    std::vector<Lever> levers;
};

/// When a request fits, and what it waits for.
struct Expected {
    World world;                         ///< as it is then
    std::optional<model::Micros> start;  ///< boot clock; nothing: not known
    std::vector<model::LeaseId> after;   ///< whose end it waits for
    bool outside = false;                ///< what is missing is not held by a lease
    model::Placement placement;          ///< where it would be; empty with `outside`
};

/// The work of one step: a copy of the state that is changed in place, and what came of it.
class Stepper {
public:
    Stepper(const State& state, const Observed& observed, model::Instant now);

    void operator()(const Acquire& input);
    void operator()(const Join& input);
    void operator()(const HoldersGone& input);
    void operator()(const OutOfMemory& input);
    void operator()(const Release& input);
    void operator()(const Stop& input);
    void operator()(const Extend& input);
    void operator()(const Done& input);
    void operator()(const Verified& input);  // verify.cpp
    void operator()(const ShieldChanged& input);
    void operator()(const Tick& input);
    void operator()(const Recover& input);
    void operator()(const Shutdown& input);

    /// Everything that follows: rows reconciled, leases advanced, endings ended, the queue served.
    Step finish() &&;

    /// What stands between a lease and its place: nothing (empty error), or a reason.
    std::expected<model::Placement, NoPlace> try_place(const model::Lease& lease, const World& world = {}) const;
    /// The same with its levers looked at, too: what an Acquire would meet.
    std::expected<model::Placement, NoPlace> plan(model::Lease lease) const;
    std::vector<Forecast> forecast(std::size_t most) const;
    /// The first moment at which the lease fits, with `beside` given already.
    Expected when(const model::Lease& lease, const std::vector<model::Lease>& beside) const;

private:
    // ledger.cpp: rows
    model::Result<void> want(model::Lease& lease, const Lever& lever);
    model::Result<void> want_pages(model::Lease& lease, const Lever& lever);
    void let_go(Row& row, const model::LeaseId& id);
    bool has_row(model::Knob knob) const;
    bool reconcile_rows();
    bool reconcile_shared(Row& row, const KnobReading& reading);
    bool reconcile_pool(Row& row, const model::PoolReading& pool);
    void settle_resize(Row& row, const model::PoolReading& pool, bool seen_to_end, const std::string& note);
    bool restore_shared(Row& row, const std::string& current);
    void charge_missing_pages(Row& row, std::uint64_t persistent);
    void give_back(Row& row, const model::LeaseId& id, const PoolShare& share, const model::PoolReading& pool);
    void growth_done(Row& row, const model::LeaseId& id, PoolShare& share, std::uint64_t gained,
                     const std::string& note);
    void start_write(Row& row, std::string value);
    void start_resize(Row& row, const model::LeaseId& id, std::uint64_t target, std::uint64_t to_surplus,
                      const model::PoolReading& pool);
    void row_done(Row& row, const Done& done);
    void shared_done(Row& row, const Done& done);
    void pool_done(Row& row, const Done& done);
    void stuck(Row& row, std::string why);
    void report(const Row& row, std::string text);

    // lifecycle.cpp: leases
    void begin_preparing(model::Lease& lease, model::Placement placement);
    bool advance(model::Lease& lease);
    bool stage_is_done(const model::Lease& lease) const;
    // confinement.cpp: what is set on its unit
    void choose_settings(model::Lease& lease) const;
    std::optional<model::Bytes> memory_limit(const model::Lease& lease) const;
    void settle_settings(model::Lease& lease, model::Bytes unit_memory);
    void start_new_run(model::Caller& caller);
    const model::Lease* unit_owner(const model::Lease& lease) const;
    void enter_stage(model::Lease& lease, model::Stage stage);
    void enter_page_cache(model::Lease& lease);
    void become_active(model::Lease& lease);
    void lever_failed(model::Lease& lease, const model::KnobKey& key, const model::Error& error);
    void fail_lease(model::Lease& lease, const model::Error& error);
    void begin_ending(model::Lease& lease, std::string reason);
    void let_everything_go(const model::Lease& lease);
    bool finish_endings();
    void lease_op_done(const Done& done);
    void late_op_failed(model::Lease& lease, const model::Error& error, bool unconfines);
    void retry_units();
    void time_has_come(model::Lease& lease);
    void holder_gone(model::Lease& lease);
    void look_for_offline_cpus();
    void drop_old_ended();
    void take_off(const model::Lease& lease);
    void unconfine(const model::LeaseId& id);
    bool is_unconfining(const model::LeaseId& id) const;
    std::uint64_t lease_op(const model::LeaseId& id);

    // parking.cpp: leases whose holder may come back
    static bool may_come_back(const model::Lease& lease);
    static bool is_parked_unit(const model::Lease& lease);
    void park(model::Lease& lease, const std::string& why);
    void unpark(model::Lease& lease);
    void recover_active(model::Lease& lease, bool alive);
    void ask_unit(const model::LeaseId& id);
    bool unit_answered(const Done& done);
    void look_at_parked(model::Lease& lease);
    bool take_up(const Acquire& input);
    bool take_up_named(const Acquire& input);

    // shield.cpp
    model::Result<model::Confinement> confinement_of(const model::Lease& lease) const;
    std::optional<model::Error> shield_refusal(model::Lease& lease) const;
    bool leave_shield_out(model::Lease& lease, const model::Error& why) const;
    void shield_settled(model::Lease& lease);
    void shield_done(model::Lease& lease);

    // admit.cpp: what a request gets
    std::expected<Choice, NoPlace> choose(model::Lease lease, const World& world = {}) const;
    // overcommit.cpp
    std::expected<model::Placement, NoPlace> place_estimate(model::Lease& lease, const World& world, NoPlace why) const;
    bool wait_for_room(model::Lease lease, NoPlace why, bool told);
    std::pair<std::string, std::vector<model::LeaseId>> wanted_otherwise(const Lever& lever, const World& world) const;
    void choose_weights(model::Lease& lease, const model::Placement& placement) const;
    std::expected<std::vector<Lever>, NoPlace> agree_on_levers(model::Lease& lease, const model::Placement& placement,
                                                               const World& world) const;
    std::optional<model::Error> missing_lever(const model::Request& request) const;
    std::optional<model::Error> page_cache_refusal(const model::Lease& lease, const model::NodeSet& nodes) const;

    // queue.cpp: who waits
    void join_queue(model::Lease lease);
    bool is_crowded() const;
    bool waits_in_crowd(const model::LeaseId& id) const;
    void give(Choice choice);
    void serve_queue();
    void serve_nested();
    bool blocked(const model::LeaseId& id, NoPlace why);
    void tell(const model::LeaseId& id, std::string why);
    void refuse(model::Lease& lease, const model::Error& error);
    std::string blockers_text(const std::vector<model::LeaseId>& ids) const;
    bool is_ancestor(const model::LeaseId& candidate, const model::Lease& lease) const;

    // reserve.cpp: when it will fit
    bool delays(const Expected& reservation, const model::Lease& first, const Choice& choice) const;
    static model::Lease given(const Choice& choice);
    std::string start_text(const Expected& it) const;

    // limits.cpp: what a user may have
    std::optional<model::Micros> most_time(const model::Lease& lease) const;
    std::optional<model::Error> extension_refusal(const model::Lease& lease, const Extend& input) const;
    const model::Limits& limits_of(unsigned uid) const;
    std::optional<model::Error> limit_refusal(model::Lease& lease) const;
    std::optional<model::Error> queue_refusal(const model::Lease& lease) const;
    bool held_back(const model::Lease& lease, const model::Lease* beside = nullptr) const;
    std::optional<model::Error> never(const model::Lease& lease) const;
    World without(const std::function<bool(const model::Lease&)>& gone) const;
    // levers.cpp
    std::optional<NoPlace> no_room_for_pages(const model::Lease& lease, const model::Placement& placement,
                                             const World& world) const;
    std::optional<NoPlace> over_limit(const model::Lease& lease, const model::Placement& placement,
                                      const World& world) const;

    State state_;
    const State& old_;
    const Observed& observed_;
    model::Instant now_;
    std::vector<Effect> effects_;
    std::vector<Report> reports_;
    std::optional<model::Error> refusal_;
    model::LeaseId acquired_;
    bool serve_later_ = false;  ///< this step gave no room to those who wait
};

}  // namespace numalease::core
