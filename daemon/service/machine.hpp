#pragma once

#include <string>

#include "host/root.hpp"

namespace numalease::service {

/// What of this machine the rooms' functions are given: kernel files below `root`, processes below `proc` (always this
/// machine's /proc: who calls is a real process, whatever the root), and where the unified hierarchy is mounted.
struct Machine {
    host::Root root;
    host::Root proc;
    host::Root gpus;      ///< what GPUs' drivers say
    std::string cgroup2;  ///< "sys/fs/cgroup", below `root`; empty where there is none

    /// Processes can be moved between cgroups below `root`: it is the real tree.
    [[nodiscard]] bool is_real() const { return root.directory() == "/"; }
};

/// Errors: io.
model::Result<Machine> open_machine(const std::string& root_directory, const std::string& gpu_directory);

}  // namespace numalease::service
