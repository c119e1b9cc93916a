#pragma once

#include <map>
#include <string>
#include <vector>

#include "host/root.hpp"
#include "model/lease.hpp"

namespace numalease::host {

/// Below Linux 6.2 a thread's own affinity is lost whenever its cpuset changes: when the controller is enabled or
/// disabled above it, or its cgroup is narrowed. Later kernels keep it beside (task_struct.user_cpus_ptr).
/// Source: commit 8f9ea86fdf99 "sched: Always preserve the user requested cpumask".
bool loses_thread_masks(const Root& root);

/// Every user thread whose affinity is narrower than the cpuset it is in.
std::vector<model::ThreadMask> read_thread_masks(const Root& root, const Root& proc_root, const std::string& cgroup2);

/// The same of kernel threads that can be moved: kswapd and kcompactd have the CPUs of their node. Every kernel takes
/// these masks when a cpuset partition begins or ends.
std::vector<model::ThreadMask> read_kernel_thread_masks(const Root& root, const Root& proc_root,
                                                        const std::string& cgroup2);

/// Gives each of them its mask back where the kernel took it: only where the thread has exactly what its cpuset has.
/// Whatever else it has was set by somebody meanwhile. Those inside `spared` (a cgroup; empty: none) are left alone
/// and returned.
std::vector<model::ThreadMask> restore_thread_masks(const Root& root, const Root& proc_root, const std::string& cgroup2,
                                                    const std::vector<model::ThreadMask>& masks,
                                                    const std::string& spared);

/// Kernel threads that may run on `cpus`, by kind ("ksoftirqd/3" → "ksoftirqd"), and how many of each.
/// Source: PF_KTHREAD in field 9 of /proc/PID/stat, Cpus_allowed_list of /proc/PID/status.
std::map<std::string, unsigned> kernel_threads_on(const Root& proc_root, const model::CpuSet& cpus);

}  // namespace numalease::host
