#pragma once

#include <string>
#include <string_view>

#include "engines/engine.hpp"
#include "model/lease.hpp"

/// How units and containers join a lease.
namespace numalease::client {

/// NUMA_LEASE_* and an engine's variables, one NAME=VALUE a line, as docker's --env-file and systemd's EnvironmentFile=
/// both read it: neither takes quotes the same way, so there are none. Empty `engine`: those of every known one.
/// Errors: unreadable for an engine that does not exist.
model::Result<std::string> joining_environment(const policies::Library& library, const model::Policy* policy,
                                               const std::string& engine, const LeaseFacts& facts);

/// "/run/numa-lease/env/NAME".
std::string environment_file(const std::string& runtime_directory, const std::string& name);

/// The lines to use, for `as` one of docker, compose, quadlet, env. A lease without a name can be joined only by a
/// container's own cpuset, which nothing ties to the lease's life.  Errors: invalid_request.
model::Result<std::string> joining_text(const model::Lease& lease, std::string_view as,
                                        const std::string& runtime_directory, const std::string& environment);

}  // namespace numalease::client
