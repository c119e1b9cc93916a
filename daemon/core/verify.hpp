#pragma once

#include "model/lease.hpp"

namespace numalease::core {

/// What its cgroup is charged for, held against what a lease was given. `policy`: the memory policy that the client
/// sets for it, resolved. Pure. `at` is the caller's to fill in.
model::Verification verify(const model::Lease& lease, model::Mempolicy policy, model::ChargedByNode charged);

}  // namespace numalease::core
