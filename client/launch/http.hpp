#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "model/error.hpp"

namespace numalease::client {

/// Asks a server on this machine, at 127.0.0.1, one thing: `line` is "GET /health", or "POST /path BODY" with a body of
/// JSON. Returns the status that it answered with. `tick` is called every ten seconds while it does not.
/// Errors: io with ECONNREFUSED where nobody listens, ETIMEDOUT after `patience`, EPROTO where that is no HTTP.
model::Result<int> ask_http(std::uint16_t port, const std::string& line, std::chrono::steady_clock::duration patience,
                            const std::function<void()>& tick = {});

}  // namespace numalease::client
