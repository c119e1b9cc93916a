#pragma once

#include "client/connection.hpp"

namespace numalease::client {

/// From the request to the active lease. Progress is said once a minute, and a manager that waits for us is told.
model::Result<model::Dict> obtain(Connection& daemon, const model::Dict& request, bool quiet);

/// STATUS= for systemd, with more time to start: a line for `systemctl status`. Nothing where nobody listens.
void tell_manager(const std::string& status);

}  // namespace numalease::client
