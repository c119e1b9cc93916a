#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "model/units.hpp"
#include "model/value.hpp"

namespace numalease::model {

/// A kind of work: who goes first, and how long it may last.
struct JobClass {
    int priority = 0;            ///< higher goes first
    std::optional<Micros> time;  ///< the most a lease may have; one without an end of its own gets it

    bool operator==(const JobClass&) const = default;
};

/// How the queue is served, from the site configuration.
struct Scheduling {
    Micros half_life{86'400'000'000};  ///< use so old counts half, in fair share; kNever: it does not fade
    Micros aging{3'600'000'000};       ///< who has waited so long is served by age alone; kNever: nobody is
    std::map<std::string, JobClass> classes{{"batch", {.priority = 0, .time = {}}},
                                            {"normal", {.priority = 10, .time = {}}},
                                            {"service", {.priority = 20, .time = {}}}};

    bool operator==(const Scheduling&) const = default;
};

/// What one user may have at a time, over all leases. Nothing: no limit.
struct Limits {
    unsigned weight = 1;  ///< of the user's share beside others'
    std::optional<unsigned> cores;
    std::optional<unsigned> nodes;
    std::optional<unsigned> gpus;
    std::optional<Bytes> memory;     ///< promised
    std::optional<Bytes> hugepages;  ///< of all sizes
    std::optional<unsigned> leases;  ///< that are not over and do not wait
    std::optional<unsigned> queued;
    std::optional<Micros> time;                     ///< of one lease; one without an end of its own gets it
    std::optional<std::set<std::string>> classes;   ///< by name
    std::optional<std::set<std::string>> policies;  ///< by name; "" is a request without one
    std::optional<std::set<std::string>> levers;    ///< request fields that change kernel state: "hugepages", "thp", …

    bool operator==(const Limits&) const = default;
};

/// What is not said is left out.
Dict to_dict(const Scheduling& scheduling);
Dict to_dict(const Limits& limits);

/// What `limits` does not say is as in `other`. A weight of 0 is not said.
void fill(Limits& limits, const Limits& other);
/// The more generous of the two, field by field: of sets all that are in either, of numbers the larger; what one of
/// them does not say is as in the other.
void widen(Limits& limits, const Limits& other);

}  // namespace numalease::model
