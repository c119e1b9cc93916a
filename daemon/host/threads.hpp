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

/// As many masks as a lease keeps: anybody can make threads, and their masks must still fit into its record.
inline constexpr std::size_t kMostThreadMasks = 4096;

struct ThreadMasks {
    std::vector<model::ThreadMask> kept;
    std::size_t left_out = 0;  ///< beyond kMostThreadMasks: these are not given back
};

/// Every user thread whose affinity is narrower than the cpuset it is in, in the order of /proc, up to
/// kMostThreadMasks. What cannot be read is not there.
/// Source: Cpus_allowed_list of /proc/PID/task/TID/status, cpuset.cpus.effective.
ThreadMasks read_thread_masks(const Root& root, const Root& proc_root, const std::string& cgroup2);

/// The same of kernel threads that can be moved: kswapd and kcompactd have the CPUs of their node. Every kernel takes
/// these masks when a cpuset partition begins or ends. There are a few for each node, and nobody else can make them.
std::vector<model::ThreadMask> read_kernel_thread_masks(const Root& root, const Root& proc_root,
                                                        const std::string& cgroup2);

/// Those that are still narrower than their cpuset at this second look, and the same. Whoever looks while the kernel
/// changes a cpuset, as it does at any time after a partition's cgroup is gone, may have seen a thread's mask of before
/// beside a cpuset of after: that is no affinity of its own.
std::vector<model::ThreadMask> still_own(const Root& root, const Root& proc_root, const std::string& cgroup2,
                                         std::vector<model::ThreadMask> masks);

/// Those of living threads, at most kMostThreadMasks of them, the first ones.
ThreadMasks living_masks(const Root& proc_root, std::vector<model::ThreadMask> masks);

/// Gives each of them its mask back where the kernel took it: only where the thread has exactly what its cpuset has.
/// Whatever else it has was set by somebody meanwhile. A thread that is gone, or that refuses its mask (its CPUs are
/// offline), is passed over. Those inside `spared` (a cgroup; empty: none) are left alone and returned.
/// Source: sched_setaffinity(2).
std::vector<model::ThreadMask> restore_thread_masks(const Root& root, const Root& proc_root, const std::string& cgroup2,
                                                    const std::vector<model::ThreadMask>& masks,
                                                    const std::string& spared);

/// Kernel threads that may run on `cpus`, by kind ("ksoftirqd/3" → "ksoftirqd"), and how many of each.
/// Source: PF_KTHREAD in field 9 of /proc/PID/stat, Cpus_allowed_list of /proc/PID/status.
std::map<std::string, unsigned> kernel_threads_on(const Root& proc_root, const model::CpuSet& cpus);

}  // namespace numalease::host
