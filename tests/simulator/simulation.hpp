#pragma once

#include "simulator/stream.hpp"

namespace numalease::test {

struct Outcome {
    std::vector<Fate> fates;            ///< of the stream's jobs, in their order
    std::vector<std::string> problems;  ///< what must never be, with the time
};

/// The real core serves the stream: every input, every deadline, all effects done at once. Looked at after each event:
/// the core's own invariants, no user above a limit, and that the first in the queue never starts later than it was
/// told while it is first. Stops after `horizon`.
Outcome simulate(const Stream& stream, model::Micros horizon = model::Micros::max());

/// What a plain scheduler would make of it, with the same placement: strictly as they came, or whoever fits.
enum class Plain { fifo, first_fit };
Outcome simulate_plain(const Stream& stream, Plain kind, model::Micros horizon = model::Micros::max());

/// When a job that has waited starts at the latest, where everything has an end. A user who has not been served for
/// `aging` is before everybody who has been served since, so each other user goes before it once at most, and each
/// starts when what runs has ended; and so for each request of its own user that goes before it.
model::Micros bound_of(const Stream& stream, const Job& job, const Fate& fate);

/// Figures of merit over the jobs that ran.
struct Merit {
    double utilisation = 0;  ///< of the cores, from the first arrival to the last end
    double mean_wait = 0;    ///< s
    double p95_wait = 0;     ///< s
    double makespan = 0;     ///< s
    std::size_t ran = 0;
};
Merit merit_of(const Stream& stream, const Outcome& outcome);

}  // namespace numalease::test
