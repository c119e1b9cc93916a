#pragma once

#include <chrono>

#include "reach/connection.hpp"

namespace numalease::client {

/// A restart takes a second; a crash that repeats itself is over, one way or the other, within this.
inline constexpr auto kDaemonMayReturn = std::chrono::seconds(60);

/// From the request to the active lease. Progress is said once a minute, and a manager that waits for us is told.
/// `daemon` is another one afterwards where it restarted meanwhile: the place in the queue is kept.
model::Result<model::Dict> obtain(Connection& daemon, const Endpoint& endpoint, const model::Dict& request, bool quiet);

/// STATUS= for systemd, with more time to start: a line for `systemctl status`. Nothing where nobody listens.
void tell_manager(const std::string& status);

}  // namespace numalease::client
