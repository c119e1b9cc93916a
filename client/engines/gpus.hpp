#pragma once

#include <string>
#include <vector>

#include "engines/engine.hpp"

/// Telling a command which GPUs are its own. Pure.
namespace numalease::client {

/// What is to be set, and what is to be said, one line each. The user's own variables stay as they are.
struct GpuWords {
    Env env;
    std::vector<std::string> warnings;
};

/// NUMA_LEASE_GPUS by PCI address; CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES by UUID, never by an index, which
/// counts in an order of the library's own (CASES 35); nothing where there are no GPUs. `env`: the environment that the
/// command would have had.
GpuWords gpu_words(const std::vector<model::Gpu>& gpus, const Env& env);

/// "GPU-a,GPU-b" of those of a vendor; empty where one of them has none.
std::string gpu_uuids(const std::vector<model::Gpu>& gpus, std::string_view vendor);

}  // namespace numalease::client
