#pragma once

#include <functional>

#include "launch/asking.hpp"
#include "launch/enter.hpp"
#include "reach/connection.hpp"

/// Runs of a policy with `run:` in it: a small supervisor stays beside the command, and says so.
namespace numalease::client {

/// A run whose lease has been granted.
struct Kept {
    const policies::Library& library;
    const model::Policy& policy;
    const Asked& asked;
    Endpoint endpoint;
    Argv command;
    model::Dict topology;
    bool expand = false;
    bool quiet = false;
};

/// What is asked for all instances together: the place and the levers. What an instance needs of its node is its own.
model::Dict request_of_all(const model::Dict& asked);
/// What the instance on `node` asks for inside of that.
model::Dict request_of_one(const model::Dict& asked, unsigned node);

/// The first instance's place in that of all, for a plan.
model::Placement place_of_one(const model::Placement& all, const model::Dict& topology);

/// Refuses what could only fail, before anything is leased.  Errors: invalid_request.
model::Result<void> check_instances(const policies::Library& library, const Asked& asked, const Argv& command,
                                    bool expand, const model::Dict& topology);

/// One instance for each node of the lease, all or none, until they have ended.
int run_instances(const Kept& run, const model::Lease& lease);

/// The command, and where its memory is once it has loaded. `become` enters the lease and becomes the command.
int run_verified(const Kept& run, const model::Lease& lease, const std::function<int()>& become);

/// The command, warmed if it is a server that can be: else `become` takes our place. `become` enters the lease and
/// becomes the command.
int run_warmed(const Kept& run, const model::Lease& lease, const std::function<int()>& become);

}  // namespace numalease::client
