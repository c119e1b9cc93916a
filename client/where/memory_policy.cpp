#include "where/memory_policy.hpp"

namespace numalease::client {

using model::Mempolicy;

std::optional<MemoryPolicy> memory_policy(const model::Request& request, const model::NodeSet& nodes,
                                          unsigned machine_nodes) {
    if (nodes.empty()) return std::nullopt;
    if (request.mempolicy != Mempolicy::automatic) return MemoryPolicy{request.mempolicy, nodes};
    if (machine_nodes <= 1) return std::nullopt;
    return MemoryPolicy{nodes.size() == 1 ? Mempolicy::bind : Mempolicy::interleave, nodes};
}

}  // namespace numalease::client
