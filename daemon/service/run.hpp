#pragma once

#include "service/options.hpp"

namespace numalease::service {

/// The daemon from its locks to its end. Returns the exit status: 0, or that of the error that stopped it.
int run(const Options& options);

}  // namespace numalease::service
