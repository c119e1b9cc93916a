#include "service/daemon.hpp"

#include <time.h>

#include <algorithm>

#include "service/log.hpp"

namespace numalease::service {

namespace {

using model::Errc;

constexpr model::Micros kJournalRetry{5'000'000};

model::Micros read_clock(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return std::chrono::duration_cast<model::Micros>(std::chrono::seconds(time.tv_sec) +
                                                     std::chrono::nanoseconds(time.tv_nsec));
}

std::optional<std::uint64_t> join_op(const core::Step& step) {
    for (const auto& effect : step.effects)
        if (const auto* confine = std::get_if<core::Confine>(&effect))
            if (step.next.joins.contains(confine->op)) return confine->op;
    return std::nullopt;
}

}  // namespace

model::Instant now() { return {.boot = read_clock(CLOCK_BOOTTIME), .real = read_clock(CLOCK_REALTIME)}; }

bool leaves_the_prior(const core::Effect& effect, const core::State& state) {
    if (const auto* write = std::get_if<core::WriteKnob>(&effect)) {
        const auto row = state.ledger.find(write->key);
        return row == state.ledger.end() || row->second.prior != write->value;
    }
    if (const auto* resize = std::get_if<core::ResizePool>(&effect)) {
        const auto row = state.ledger.find(resize->key);
        return row == state.ledger.end() || resize->target > row->second.pool_expected;
    }
    // A unit's prior is in the record of its lease; the page cache has none, but its lease could not go on anyway.
    return std::holds_alternative<core::Confine>(effect) || std::holds_alternative<core::DropPageCache>(effect) ||
           std::holds_alternative<core::ReclaimNode>(effect);
}

Daemon::Daemon(sd_event* event, Parts parts, core::State state)
    : event_(event), parts_(std::move(parts)), state_(std::move(state)) {}

Daemon::Outcome Daemon::handle(const core::Input& input) {
    busy_ = true;
    auto outcome = run(input);
    drain();
    busy_ = false;
    arm();
    return outcome;
}

void Daemon::submit(core::Input input) {
    waiting_.push_back(std::move(input));
    if (busy_) return;
    busy_ = true;
    drain();
    busy_ = false;
    arm();
}

void Daemon::drain() {
    while (!waiting_.empty()) {
        const auto input = std::move(waiting_.front());
        waiting_.pop_front();
        run(input);
    }
}

Daemon::Outcome Daemon::run(const core::Input& input) {
    const bool acquires = std::holds_alternative<core::Acquire>(input);
    auto step = core::step(state_, input, parts_.observe(state_, input), now());
    if (!save(step, acquires))
        return {.refusal = model::Error{Errc::io, "the lease cannot be recorded in the journal in " +
                                                      parts_.runtime_directory +
                                                      ", so it is not given; make room there and ask again"}};
    for (const auto& report : step.reports)
        log::event(log::Level::warning, log::kStuck, report.text, {{"KNOB", report.key.text()}});
    Outcome outcome{.refusal = step.refusal};
    outcome.lease = step.lease;
    if (std::holds_alternative<core::Join>(input)) outcome.op = join_op(step);
    const auto before = std::exchange(state_, std::move(step.next));
    for (const auto& effect : step.effects) perform(effect);
    parts_.changed(before, state_, input);
    return outcome;
}

/// False where the step must not happen: only an acquisition may be refused, and then the old state stands.
bool Daemon::save(const core::Step& step, bool may_refuse) {
    if (step.records.empty() && !dirty_) return true;
    const auto saved =
        dirty_ ? parts_.journal->compact(core::snapshot(step.next)) : parts_.journal->append(step.records);
    if (!saved) {
        if (may_refuse) return false;
        if (!dirty_)
            log::event(log::Level::error, log::kJournal,
                       "the journal cannot be written: make room in " + parts_.runtime_directory +
                           "; endings go on from memory, nothing new is leased",
                       {{"REASON", saved.error().detail}, {"ERRNO", std::to_string(saved.error().err)}});
        dirty_ = true;
        return true;
    }
    if (dirty_) log::event(log::Level::info, log::kJournal, "the journal is whole again");
    dirty_ = false;
    const auto live = step.next.leases.size() + step.next.ledger.size();
    if (parts_.journal->wants_compaction(live)) (void)parts_.journal->compact(core::snapshot(step.next));
    return true;
}

void Daemon::perform(const core::Effect& effect) {
    if (!dirty_ || !leaves_the_prior(effect, state_)) return parts_.perform(effect, state_);
    core::Done done{.error = model::Error{Errc::io, "not done: it cannot be recorded in the journal in " +
                                                        parts_.runtime_directory + "; make room there and ask again"}};
    if (const auto* write = std::get_if<core::WriteKnob>(&effect)) {
        done.op = write->op;
        done.key = write->key;
    } else if (const auto* resize = std::get_if<core::ResizePool>(&effect)) {
        done.op = resize->op;
        done.key = resize->key;
    } else if (const auto* confine = std::get_if<core::Confine>(&effect)) {
        done.op = confine->op;
    } else if (const auto* drop = std::get_if<core::DropPageCache>(&effect)) {
        done.op = drop->op;
    } else if (const auto* reclaim = std::get_if<core::ReclaimNode>(&effect)) {
        done.op = reclaim->op;
    }
    done.reading = parts_.observe(state_, core::Tick{}).knobs[done.key];
    submit(std::move(done));
}

/// No timer runs while nothing waits.
void Daemon::arm() {
    auto due = core::next_deadline(state_);
    if (dirty_) due = std::min(due.value_or(model::Micros::max()), now().boot + kJournalRetry);
    if (!due) {
        timer_.reset();
        return;
    }
    const auto usec = static_cast<std::uint64_t>(std::max<std::int64_t>(due->count(), 1));
    constexpr std::uint64_t kAccuracy = 1000;
    if (timer_) {
        sd_event_source_set_time(timer_.get(), usec);
        sd_event_source_set_enabled(timer_.get(), SD_EVENT_ONESHOT);
        return;
    }
    sd_event_source* source = nullptr;
    sd_event_add_time(event_, &source, CLOCK_BOOTTIME, usec, kAccuracy, on_time, this);
    timer_.reset(source);
}

int Daemon::on_time(sd_event_source* /*source*/, std::uint64_t /*usec*/, void* data) {
    static_cast<Daemon*>(data)->submit(core::Tick{});
    return 0;
}

}  // namespace numalease::service
