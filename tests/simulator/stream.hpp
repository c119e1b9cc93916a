#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/observed.hpp"
#include "model/units.hpp"

namespace numalease::test {

/// One job of a stream: when it comes, what it asks for, how long it really runs.
struct Job {
    model::Micros arrives{0};
    unsigned uid = 1000;
    std::string fields;  ///< of its request, without `time`
    model::Micros runs{0};
    std::optional<model::Micros> limit;  ///< its --time
    bool ignores_term = false;           ///< runs on when its time is up, until SIGKILL
};

/// What became of it. Boot clock.
struct Fate {
    std::optional<model::Micros> started;
    std::optional<model::Micros> ended;
    bool refused = false;        ///< never on this machine, or not for this user
    std::size_t own_before = 0;  ///< of its user's, how many were served while it waited
    unsigned cores = 0;          ///< it got
};

/// A machine, its users, and what they want.
struct Stream {
    model::Topology topology;
    model::Scheduling scheduling;
    std::map<unsigned, model::Limits> limits;
    std::vector<Job> jobs;  ///< by time of arrival
};

/// A random one. The same seed, the same stream.
Stream random_stream(unsigned seed);

/// Every user always has something waiting: three users with the weights 1, 2 and 4, jobs of a node.
Stream saturated_stream(unsigned seed);

/// Small jobs without end, more than the machine can take, and once the whole machine.
Stream starving_stream(unsigned seed);

}  // namespace numalease::test
