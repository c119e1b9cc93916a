#pragma once

#include <optional>

#include "launch/asking.hpp"
#include "model/lease.hpp"
#include "where/memory_policy.hpp"

/// The last steps before the command: facts, affinity, memory policy, environment, exec.
namespace numalease::client {

/// What the engine is told, from a lease or placement and the machine as the daemon gave them.
LeaseFacts facts_of(const std::string& id, const model::Placement& placement, const model::Confinement& confinement,
                    const model::Dict& topology);

/// Whether it asks for huge pages of the size that malloc can be told to take.
bool has_huge_pages(const model::Request& request);

/// One line for set_mempolicy's errno: the call, the likely cause, asked and allowed (CASES 28, 30).
std::string memory_policy_failure(const MemoryPolicy& policy, int err, const std::string& allowed_nodes);

/// A command that is about to be the lease.
struct Entry {
    const policies::Library& library;
    const model::Policy* policy = nullptr;
    model::Request request;
    LeaseFacts facts;
    Argv command;
    bool set_affinity = false;  ///< nothing but our own affinity keeps the command on its CPUs
    bool expand = false;
    bool quiet = false;
};

/// Becomes the command. Returns only when it cannot, with the exit status: 126 or 127 as env(1), 78 where a required
/// memory policy cannot be had, 125 otherwise.
int enter(const Entry& entry);

/// The environment as a map.
Env current_environment();

}  // namespace numalease::client
