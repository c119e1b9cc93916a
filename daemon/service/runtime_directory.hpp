#pragma once

#include <string>

#include "model/error.hpp"

namespace numalease::service {

/// Whoever may write where the journal is decides what is written to the kernel: only root or we ourselves may.
/// A directory that is not there is fine.  Errors: denied, naming the directory, who may write there, and the way out.
model::Result<void> check_runtime_directory(const std::string& path);

}  // namespace numalease::service
