#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "core/step.hpp"
#include "host/journal.hpp"
#include "service/event.hpp"

namespace numalease::service {

/// The shell around the pure step: observe → step → make durable → forget the old state → perform.
///
/// If the journal refuses, an acquisition is refused and nothing has happened; everything else goes on from memory, no
/// value is written that the journal does not know how to take back, and the next step tries again with the whole
/// state.
class Daemon {
public:
    struct Parts {
        host::Journal* journal = nullptr;
        std::string runtime_directory;  ///< for messages
        std::function<core::Observed(const core::State&, const core::Input&)> observe;
        std::function<void(const core::Effect&, const core::State&)> perform;  ///< must not call `handle`
        std::function<void(const core::State& before, const core::State& after, const core::Input&)> changed;
    };
    /// What became of one input.
    struct Outcome {
        std::optional<model::Error> refusal;
        model::LeaseId lease;             ///< of an Acquire
        std::optional<std::uint64_t> op;  ///< of a Join: its Done answers it
    };

    Daemon(sd_event* event, Parts parts, core::State state);

    /// Runs the step for one input, and for all inputs that this brings forth.
    Outcome handle(const core::Input& input);
    /// The same, later where a step is being run now: inputs never nest.
    void submit(core::Input input);

    [[nodiscard]] const core::State& state() const { return state_; }
    [[nodiscard]] bool journal_works() const { return !dirty_; }

private:
    Outcome run(const core::Input& input);
    bool save(const core::Step& step, bool may_refuse);
    void perform(const core::Effect& effect);
    void drain();
    void arm();
    static int on_time(sd_event_source* source, std::uint64_t usec, void* data);

    sd_event* event_;
    Parts parts_;
    core::State state_;
    std::deque<core::Input> waiting_;
    bool busy_ = false;
    bool dirty_ = false;  ///< the journal is behind the state
    EventSource timer_;
};

/// Both clocks, now.
model::Instant now();

/// Would performing this effect write a value that is not on the way back to the prior? Such a write needs its record.
bool leaves_the_prior(const core::Effect& effect, const core::State& state);

}  // namespace numalease::service
