#pragma once

#include <optional>

#include "model/lease.hpp"

namespace numalease::client {

/// A memory policy as set_mempolicy(2) takes it.
struct MemoryPolicy {
    model::Mempolicy kind = model::Mempolicy::bind;
    model::NodeSet nodes;

    bool operator==(const MemoryPolicy&) const = default;
};

/// The policy of a request on its nodes. `auto`: bind on one node, interleave on several, nothing on a machine with
/// one node, where there is nothing to choose.
std::optional<MemoryPolicy> memory_policy(const model::Request& request, const model::NodeSet& nodes,
                                          unsigned machine_nodes);

}  // namespace numalease::client
