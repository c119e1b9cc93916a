#pragma once

#include <functional>

#include "core/step.hpp"
#include "service/confine.hpp"
#include "service/holders.hpp"
#include "service/machine.hpp"
#include "service/observe.hpp"
#include "service/workers.hpp"

namespace numalease::service {

/// Carries out what a step decided. Every completion comes back through `done`.
class Effects {
public:
    Effects(const Machine& machine, Observer& observer, Workers& workers, Confiner& confiner, const Holders& holders,
            std::function<void(core::Done)> done)
        : machine_(machine),
          observer_(observer),
          workers_(workers),
          confiner_(confiner),
          holders_(holders),
          done_(std::move(done)) {}

    /// `state` is the one the step led to.
    void perform(const core::Effect& effect, const core::State& state);

private:
    void operator()(const core::WriteKnob& effect, const core::State& state) const;
    void operator()(const core::ResizePool& effect, const core::State& state) const;
    void operator()(const core::CancelResize& effect, const core::State& state) const;
    void operator()(const core::DropPageCache& effect, const core::State& state) const;
    void operator()(const core::ReclaimNode& effect, const core::State& state) const;
    void operator()(const core::InspectUnit& effect, const core::State& state) const;
    void operator()(const core::Confine& effect, const core::State& state) const;
    void operator()(const core::Unconfine& effect, const core::State& state) const;
    void operator()(const core::AskUnit& effect, const core::State& state) const;
    void operator()(const core::Warn& effect, const core::State& state) const;
    void operator()(const core::Kill& effect, const core::State& state) const;

    const Machine& machine_;
    Observer& observer_;
    Workers& workers_;
    Confiner& confiner_;
    const Holders& holders_;
    std::function<void(core::Done)> done_;
};

}  // namespace numalease::service
