#pragma once

#include <string>
#include <vector>

#include "engines/engine.hpp"
#include "model/value.hpp"

/// From the daemon's answers to text for people. Pure but for the names of users.
namespace numalease::client {

using model::Dict;

/// Of those that wait, how many `list`, `status` and `top` show.
inline constexpr unsigned kWaitingShown = 64;
/// A line about those that wait and are not in `leases`; empty where there are none.
std::string more_waiting_text(const model::Dict& status, const model::Value::Dicts& leases);

/// ID STATE USER CPUS NODES THREADS BUSY SINCE LEFT COMMAND, and CLASS where one is not normal. `now`: µs of
/// CLOCK_REALTIME. Leases that are over only with `all`.
std::string leases_text(const model::Value::Dicts& leases, bool all, std::uint64_t now, std::size_t width);

/// Everything about one lease.
std::string lease_text(const Dict& lease, std::uint64_t now);

/// What was granted, as lines for standard error: where, how it is confined, knobs asked and got.
std::vector<std::string> grant_lines(const Dict& lease);

/// While it waits or is prepared: "c3 is queued: …", with who is in the way and what fits now.
std::string progress_line(const Dict& lease);

std::string status_text(const Dict& status, const model::Value::Dicts& leases, const model::Value::Dicts& knobs,
                        std::uint64_t now, std::size_t width);
std::string topology_text(const Dict& topology, std::size_t width);
/// Knobs that this kernel lacks are one line at the end.
std::string knobs_text(const model::Value::Dicts& knobs, std::size_t width);

/// The choice, why, what else there was, and the command ready to paste.
std::string plan_text(const Dict& placement, const Dict& request, const Adapted& adapted);

/// "one node: …" where there is but one; empty elsewhere.
std::string one_node_note(const Dict& topology);

/// The environment and words of an adapted command as one line for a shell.
std::string paste_line(const Adapted& adapted);

}  // namespace numalease::client
