#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "core/stepper.hpp"

// The four laws:
//   1. record before write      start_write/start_resize set `writing`; the daemon makes the row durable, then acts.
//   2. first prior wins         `prior` is set when a row is made, from a value that nobody of us wrote.
//   3. compare before restore   restore_shared leaves a value alone that is not ours; a pool gives back only its own.
//   4. forget after verify      a row goes only when a reading shows the prior, or a foreign value.

namespace numalease::core {

using model::Errc;
using model::LeaseId;
using model::LeaseState;
using model::Micros;

namespace {

constexpr Micros kFirstRetry{50'000};
constexpr Micros kLastRetry{30'000'000};

std::uint64_t number(const std::string& text) {
    std::uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

}  // namespace

Micros retry_delay(unsigned failures) {
    Micros delay = kFirstRetry;
    for (unsigned i = 1; i < failures && delay < kLastRetry; ++i) delay *= 2;
    return std::min(delay, kLastRetry);
}

model::Result<void> Stepper::want(model::Lease& lease, const Lever& lever) {
    const auto found = observed_.knobs.find(lever.key);
    if (found == observed_.knobs.end() || !found->second.value)
        return model::fail(Errc::unsupported, lever.key.text() + ": this kernel does not have it");
    const auto& current = *found->second.value;
    auto [at, fresh] = state_.ledger.try_emplace(lever.key, Row{.key = lever.key, .prior = current});
    auto& row = at->second;
    // Somebody else set it while a lease held it: for the newcomer it is written again.
    if (!fresh && !row.in_flight && !row.writing && current != row.written) row.written.reset();
    row.wants[lease.id] = lever.value;
    row.settling.clear();
    row.retry_at = Micros(0);  // the newcomer does not wait for the next try of an earlier restore
    lease.knobs.push_back({lever.key, lever.value, row.prior, "", ""});
    return {};
}

model::Result<void> Stepper::want_pages(model::Lease& lease, const Lever& lever) {
    const auto found = observed_.knobs.find(lever.key);
    if (found == observed_.knobs.end() || !found->second.pool)
        return model::fail(Errc::unsupported, lever.key.text() + ": this machine has no such huge pages");
    const auto persistent = found->second.pool->persistent();
    auto [at, fresh] = state_.ledger.try_emplace(
        lever.key, Row{.key = lever.key, .prior = std::to_string(persistent), .pool_expected = persistent});
    at->second.shares[lease.id] = PoolShare{.asked = lever.pages, .at_least = lever.at_least};
    at->second.retry_at = Micros(0);
    lease.knobs.push_back({lever.key, std::to_string(lever.pages), std::to_string(persistent), "", ""});
    return {};
}

void Stepper::let_go(Row& row, const LeaseId& id) {
    if (row.wants.erase(id) != 0 && row.wants.empty()) row.settling.insert(id);
    const auto share = row.shares.find(id);
    if (share == row.shares.end()) return;
    const bool in_flight = row.in_flight && row.pool_for == id;
    if (!in_flight && !row.writing && share->second.got == 0 && (row.shares.size() > 1 || row.taken_over == 0)) {
        row.shares.erase(share);
        return;
    }
    share->second.releasing = true;
    row.settling.insert(id);
    row.retry_at = Micros(0);
    if (in_flight && row.writing && number(*row.writing) > row.pool_expected) effects_.push_back(CancelResize{row.key});
}

bool Stepper::has_row(model::Knob knob) const {
    return std::ranges::any_of(state_.ledger, [&](const auto& item) { return item.first.knob == knob; });
}

bool Stepper::reconcile_rows() {
    bool changed = false;
    for (auto at = state_.ledger.begin(); at != state_.ledger.end();) {
        auto& row = at->second;
        const auto found = observed_.knobs.find(row.key);
        bool forget = false;
        // Writing a weight clears the switch: it goes back last.
        const bool last = row.key.knob == model::Knob::weight_auto && row.wants.empty() && has_row(model::Knob::weight);
        if (last) {
            ++at;
            continue;
        }
        if (!row.in_flight && row.retry_at <= now_.boot && found != observed_.knobs.end()) {
            const auto& reading = found->second;
            row.retry_at = Micros(0);
            if (reading.pool) {
                forget = reconcile_pool(row, *reading.pool);
            } else if (reading.value) {
                forget = reconcile_shared(row, reading);
            } else if (reading.error.code == Errc::unsupported && row.wants.empty()) {
                report(row, "is gone from this kernel; there is nothing left to put back");
                forget = true;
            } else if (row.wants.empty() || !row.shares.empty()) {
                stuck(row, "cannot be read: " + reading.error.detail);
            }
        }
        if (forget) {
            at = state_.ledger.erase(at);
            changed = true;
        } else {
            ++at;
        }
    }
    return changed;
}

bool Stepper::reconcile_shared(Row& row, const KnobReading& reading) {
    const auto& current = *reading.value;
    if (row.wants.empty()) return restore_shared(row, current);
    row.settling.clear();
    const auto& target = row.wants.begin()->second;
    if (row.written == target && !row.writing) {
        if (current != target && row.reported != current) {
            report(row, "was set to " + current + " by somebody else while " + row.wants.begin()->first +
                            " holds it at " + target + "; left alone");
            row.reported = current;
        }
        return false;
    }
    if (current == target) {  // the prior is what is wanted, or a write was interrupted after it took effect
        row.written = target;
        row.writing.reset();
        return false;
    }
    // A value that is neither ours nor the prior is somebody else's, and what everything must come back to from now on.
    if (current != row.prior && current != row.written && current != row.writing) {
        report(row, "found " + current + ", set by somebody else; it is put back at the end instead of " + row.prior);
        row.prior = current;
    }
    start_write(row, target);
    return false;
}

/// Returns true when the row can be forgotten.
bool Stepper::restore_shared(Row& row, const std::string& current) {
    if (current == row.prior) return true;
    const bool ours = current == row.written || current == row.writing;
    if (!ours) {
        report(row, "found " + current + " where we wrote " + row.written.value_or(row.writing.value_or("nothing")) +
                        " (before us: " + row.prior + "); somebody else's value is left alone");
        return true;
    }
    // What stands there now is ours, whichever of the two it was; the prior is what is being written.
    row.written = current;
    start_write(row, row.prior);
    return false;
}

/// A resize has ended, or a crash ended it: what the count shows now is what came of it.
void Stepper::settle_resize(Row& row, const model::PoolReading& pool, bool seen_to_end, const std::string& note) {
    const auto target = number(*row.writing);
    const auto before = row.pool_expected;
    const auto persistent = pool.persistent();
    row.pool_expected = persistent;
    row.writing.reset();
    const auto share = row.shares.find(std::exchange(row.pool_for, {}));
    if (share == row.shares.end()) return;
    if (target > before) {
        // Seen to its end, all of the rise is ours: before Linux 6.7 a per-node write overshoots by what other nodes
        // have in surplus. After a crash somebody else may have added pages since.
        const auto risen = persistent > before ? persistent - before : 0;
        const auto raised = seen_to_end ? risen : std::min(risen, target - before);
        // The first pages of a rise are a bystander's surplus ones made persistent: nothing is gained by them.
        const auto taken_over = std::min(raised, row.pool_surplus);
        row.taken_over += taken_over;
        growth_done(row, share->first, share->second, raised - taken_over, note);
    } else {
        const auto given = std::min(before > persistent ? before - persistent : 0, before - target);
        const auto own = std::min(given, share->second.got);
        share->second.got -= own;
        row.taken_over -= std::min(row.taken_over, given - own);
    }
}

/// Somebody took persistent pages away since we last looked: charged to us first, releasing leases before others, so
/// that nothing of anybody else's is ever given back.
void Stepper::charge_missing_pages(Row& row, std::uint64_t persistent) {
    auto missing = row.pool_expected - std::min(row.pool_expected, persistent);
    row.pool_expected = persistent;
    for (const bool releasing : {true, false})
        for (auto& [id, share] : row.shares) {
            const auto charged = share.releasing == releasing ? std::min(missing, share.got) : 0;
            if (charged == 0) continue;
            report(row, std::to_string(charged) + " pages were taken away by somebody else; charged to " + id);
            share.got -= charged;
            missing -= charged;
        }
    row.taken_over -= std::min(row.taken_over, missing);
}

/// Returns true when the row can be forgotten.
bool Stepper::reconcile_pool(Row& row, const model::PoolReading& pool) {
    if (row.writing) settle_resize(row, pool, false, "");
    charge_missing_pages(row, pool.persistent());
    for (auto at = row.shares.begin(); at != row.shares.end();) {
        auto& [id, share] = *at;
        const bool holds = share.got > 0 || (row.shares.size() == 1 && row.taken_over > 0);
        if (share.releasing && holds) {
            give_back(row, id, share, pool);
            if (row.in_flight) return false;
            ++at;  // pinned by some process: nobody else's growth waits for that
            continue;
        }
        at = share.releasing ? row.shares.erase(at) : std::next(at);
    }
    std::erase_if(row.settling, [&](const LeaseId& id) { return !row.shares.contains(id); });
    for (auto& [id, share] : row.shares) {
        if (share.done) continue;
        // The kernel first turns surplus pages into persistent ones and only then adds new ones: to gain `asked` free
        // pages the surplus must be asked for on top. It returns to surplus when the share is given back.
        start_resize(row, id, pool.persistent() + pool.surplus + share.asked, 0, pool);
        return false;
    }
    return row.shares.empty();
}

void Stepper::give_back(Row& row, const LeaseId& id, const PoolShare& share, const model::PoolReading& pool) {
    const auto global = pool.global_free - std::min(pool.global_free, pool.global_reserved);
    auto giveable = std::min({share.got, pool.free, global});
    // The kernel frees free pages before it turns used ones into surplus: what was taken over can only go back to being
    // surplus with the last share, or another lease's pages would be freed in its place.
    const auto to_surplus = giveable == share.got && row.shares.size() == 1 ? row.taken_over : 0;
    giveable += to_surplus;
    if (giveable == 0) {
        const auto lease = state_.leases.find(id);
        stuck(row, std::to_string(share.got) + " pages of " + id +
                       (lease == state_.leases.end() ? "" : " (" + lease->second.request.command + ")") +
                       " are still in use by some process");
        return;
    }
    start_resize(row, id, pool.persistent() - std::min(pool.persistent(), giveable), to_surplus, pool);
}

void Stepper::start_write(Row& row, std::string value) {
    row.writing = value;
    row.in_flight = true;
    row.op = state_.next_op++;
    effects_.push_back(WriteKnob{row.op, row.key, std::move(value)});
}

void Stepper::start_resize(Row& row, const LeaseId& id, std::uint64_t target, std::uint64_t to_surplus,
                           const model::PoolReading& pool) {
    row.pool_expected = pool.persistent();
    row.writing = std::to_string(target);
    row.pool_for = id;
    row.pool_surplus = pool.surplus;
    row.in_flight = true;
    row.op = state_.next_op++;
    effects_.push_back(ResizePool{row.op, row.key, target, to_surplus, target > row.pool_expected});
}

void Stepper::row_done(Row& row, const Done& done) {
    row.in_flight = false;
    row.op = 0;
    if (row.key.row().kind == model::KnobKind::pool) {
        pool_done(row, done);
    } else {
        shared_done(row, done);
    }
}

void Stepper::shared_done(Row& row, const Done& done) {
    const auto asked = row.writing.value_or("");
    std::optional<model::Error> error = done.error;
    if (!error && done.reading.value != asked)
        error = model::Error{Errc::io, row.key.text() + ": wrote " + asked + ", the kernel has " +
                                           done.reading.value.value_or("nothing")};
    if (!done.error && done.reading.value) row.written = done.reading.value;  // what our write led to is ours
    // A write that failed may still have been carried out (an error from the read-back): keep `writing` until a value
    // is seen, so that it is recognised as ours.
    if (!done.error || done.reading.value) row.writing.reset();
    if (!error) {
        row.failures = 0;
        row.stuck.clear();
        return;
    }
    if (row.wants.empty()) {
        if (row.key.knob == model::Knob::weight_auto && error->err == ENODEV && done.reading.value) {
            // Without bandwidth data from the firmware the kernel leaves its automatic weights once and for all when
            // one is written. The weights themselves are as before.
            report(row, "cannot be put back to " + row.prior + ": this machine has no bandwidth data for it");
            row.prior = *done.reading.value;
            return;
        }
        stuck(row, error->detail);
        return;
    }
    const auto wants = row.wants;
    for (const auto& [id, value] : wants)
        // A failed restore that a newcomer has overtaken is no failure of what he asked for.
        if (auto& lease = state_.leases.at(id); value == asked && lease.state == LeaseState::preparing)
            lever_failed(lease, row.key, *error);
    // Who is active holds on, and the next try must not follow at once: a knob that refuses would be written for ever.
    if (!row.wants.empty()) stuck(row, error->detail);
}

/// What came of growing a pool for a lease: enough, or everything is undone.
void Stepper::growth_done(Row& row, const LeaseId& id, PoolShare& share, std::uint64_t gained,
                          const std::string& note) {
    share.done = true;
    share.got = gained;
    const auto found = state_.leases.find(id);
    if (found == state_.leases.end()) return;
    auto& lease = state_.leases.edit(id);
    for (auto& knob : lease.knobs)
        if (knob.key == row.key) knob = {row.key, knob.wanted, knob.prior, std::to_string(share.got), note};
    if (lease.state != LeaseState::preparing || share.got >= share.asked) return;
    const auto text = row.key.text() + ": " + std::to_string(share.asked) + " pages asked, " +
                      std::to_string(share.got) + " got" + (note.empty() ? "" : " (" + note + ")");
    if (share.got < share.at_least)
        fail_lease(lease, {Errc::not_now, text + "; all were given back. Ask for fewer, or free memory first"});
    else
        lease.notes.push_back(text);
}

void Stepper::pool_done(Row& row, const Done& done) {
    if (!done.reading.pool) {  // nothing was read back: settle from the next reading, as after a crash
        row.failures += 1;
        row.retry_at = now_.boot + retry_delay(row.failures);
        row.stuck = done.error ? done.error->detail : "";
        return;
    }
    const auto before = row.pool_expected;
    const bool shrinking = row.writing && number(*row.writing) < before;
    if (row.writing) settle_resize(row, *done.reading.pool, true, done.note);
    if (shrinking && row.pool_expected >= before) {
        stuck(row, "the kernel gave none of them back" + (done.error ? ": " + done.error->detail : std::string()));
    } else {
        row.failures = 0;
        row.stuck.clear();
    }
}

void Stepper::stuck(Row& row, std::string why) {
    row.failures += 1;
    row.retry_at = now_.boot + retry_delay(row.failures);
    if (row.stuck != why) report(row, "not restored yet: " + why);
    row.stuck = std::move(why);
    // The first few tries are fast, and the ending waits for them; afterwards the lease ends and the row goes on.
    constexpr unsigned kPatience = 4;
    if (row.failures >= kPatience) row.settling.clear();
}

void Stepper::report(const Row& row, std::string text) {
    text = row.key.text() + ' ' + text;
    for (const auto& id : row.settling)
        if (state_.leases.contains(id)) state_.leases.edit(id).notes.push_back(text);
    reports_.push_back({row.key, std::move(text)});
}

}  // namespace numalease::core
