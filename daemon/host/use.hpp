#pragma once

#include <string>
#include <vector>

#include "host/root.hpp"
#include "model/lease.hpp"

namespace numalease::host {

/// What a cgroup has used since it was made; `at` is the caller's to fill in.
/// Errors: unsupported where the cgroup is gone.  Source: cpu.stat, which every cgroup has, cpu.pressure and
/// memory.pressure, which a kernel without PSI has not.
model::Result<model::Use> read_cgroup_use(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// What those of them have used that are alive, with their children that have ended and been asked for.
/// Source: /proc/PID/stat, fields 14 to 17, in clock ticks.  Errors: io where none is alive.
model::Result<model::Use> read_process_use(const Root& proc_root, const std::vector<model::Process>& processes);

}  // namespace numalease::host
