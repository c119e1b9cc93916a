#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/step.hpp"

/// In which order those who wait are served, and when. Pure.
///
/// A user who has not been served for `aging` is before all others with one request, the next of theirs: the longest
/// unserved first. Then higher classes go first; within a class the user who has used least for the weight, requests of
/// one user in the order in which they came. The first in that order which lacks room
/// has a reservation: nobody behind it starts who could make it start later. What a user's own limits hold back is
/// passed over. Source: EASY backfill (Lifka 1995; Slurm's sched/backfill); decayed use as in HTCondor and Slurm;
/// stride scheduling (Waldspurger 1995) for taking turns.
namespace numalease::core {

/// How much of the machine a lease is, in nodes: the larger of its part of the cores and of the memory.
double nodes_of(const model::Lease& lease, const model::Topology& topology);

/// What users have used up to `now`, by uid, with what they hold: node-seconds, each counting half after a half-life.
std::map<unsigned, double> usage_by_user(const State& state, const Observed& observed, model::Micros now);

/// What an active lease adds to that by now. Node-seconds.
double use_of(const model::Lease& lease, const Observed& observed, model::Micros now);

/// Adds what a lease that is over has used.
void add_use(std::map<unsigned, Usage>& usage, const model::Lease& lease, const Observed& observed, model::Micros now);

/// What `node_seconds` used at one rate over `ran`, which ended `ago`, count for now. Node-seconds.
double remembered(double node_seconds, model::Micros ran, model::Micros ago, model::Micros half_life);

/// Of the request's class; of one that the site does not know: 0.
int priority_of(const model::Request& request, const model::Scheduling& scheduling);

/// Those who wait and are in nobody's lease, the first to be served first; at most `most`.
/// Cost: n · log(users).
std::vector<model::LeaseId> order_of(const State& state, const Observed& observed, model::Micros now,
                                     std::size_t most = SIZE_MAX);

/// When a lease will be over at the latest; nothing: it has no end. Boot clock.
std::optional<model::Micros> end_of(const model::Lease& lease, model::Micros now);

/// What is known about the start of one who waits.
struct Forecast {
    model::LeaseId lease;
    std::size_t position = 0;            ///< from 1
    std::optional<model::Micros> start;  ///< boot clock, at the latest; nothing: not known
    std::string text;                    ///< "when c12 (llama-server) ends, at the latest in 1h 40min"
};

/// Of the first `most` in the order, as if nobody else came: each gets the first time at which it fits.
std::vector<Forecast> forecast(const State& state, const Observed& observed, model::Instant now,
                               std::size_t most = SIZE_MAX);

}  // namespace numalease::core
