#pragma once

#include <vector>

#include "launch/serving.hpp"
#include "reach/connection.hpp"
#include "where/where.hpp"

/// Work for a supervisor's helper: waiting for servers, warming one, and having the daemon verify where memory is then.
/// Lines for people go to the descriptor `lines`.
namespace numalease::client {

/// Until each of them answers that it is ready; then has the daemon verify their lease. Returns 0, or 1 where one
/// cannot be asked.
int await_ready(const std::vector<Serving>& servers, const Endpoint& endpoint, const std::string& lease, int lines);

struct ToWarm {
    Serving serving;
    model::Warming rule;
    int pid = 0;    ///< of the server, or of what starts it
    Bounds bounds;  ///< of its lease
    Endpoint endpoint;
};

/// Until the server is ready, and generating brings nothing more of its model into memory; then says on which nodes
/// that is. Returns 0, or 1 where it could not be warmed.
int warm_up(const ToWarm& what, int lines);

/// Until the server is ready, or what is no server has stopped growing; then says where its memory is, and what is
/// amiss with that. `serving.ready` is empty for what is no server. Returns 0, or 1 where something is amiss.
int verify(const ToWarm& what, int lines);

}  // namespace numalease::client
