#pragma once

#include <string>
#include <vector>

#include "model/value.hpp"

/// What people who share a machine want to know of each other's leases, in words. Pure but for the names of users.
namespace numalease::client {

/// "2%", ">2%" where it is at least that, "-" where it is not known: of its CPUs' time since the lease began.
std::string busy_text(const model::Dict& lease);
/// "2% busy; waited 12min for CPUs, 3s for memory"; empty where it is not known.
std::string use_text(const model::Dict& lease);
/// "1h 40min": until its time is up; "-" where it has no end of its own.
std::string left_text(const model::Dict& lease);
/// "number 2 in line, when c12 (llama-server) ends": of one that waits; empty where nothing is known.
std::string line_text(const model::Dict& lease);
/// Its class of work; empty for the normal one.
std::string class_text(const model::Dict& lease);

/// "stress (pid 12, bob) without a lease on CPUs 4,6 of c1: 285% of a CPU", at most five and how many more.
std::vector<std::string> squatter_lines(const model::Value::Dicts& squatters);

/// ID USER CLASS CORES NODES ENDED WAITED RAN BUSY COMMAND, and how each ended.  `now`: µs of CLOCK_REALTIME.
std::string history_text(const model::Value::Dicts& entries, std::uint64_t now, std::size_t width);

}  // namespace numalease::client
