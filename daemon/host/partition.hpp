#pragma once

#include <string>

#include "host/root.hpp"
#include "model/lease.hpp"

/// cpuset partitions: CPUs on which nothing runs but what is in one cgroup.
/// Source: admin-guide/cgroup-v2.rst, "cpuset.cpus.partition" and "cpuset.cpus.exclusive".
namespace numalease::host {

/// The best that this kernel can: `path` from Linux 6.8 on (it has cpuset.cpus.isolated), else `slice`.
model::ShieldKind shields_of_kernel(const Root& root, const std::string& cgroup2);

/// "/user.slice/user-1001.slice" of a cgroup in a login session; empty for any other.
std::string user_slice_of(const std::string& cgroup);

/// Limits of a cgroup that a process which leaves it would escape, as their files and values, "memory.max=1G";
/// empty where there are none. `pids.max` is not among them: a scope can be given the same.
std::string limits_of(const Root& root, const std::string& cgroup2, const std::string& cgroup);
/// The same of the slices of a login session: of "/user.slice/user-1001.slice", where that has none of "/user.slice".
/// Empty for what is in no session.
std::string limits_of_user(const Root& root, const std::string& cgroup2, const std::string& cgroup);
/// The least `pids.max` of a cgroup and all above it; empty: no limit.
/// Units: tasks, which are processes and their threads.
std::optional<std::uint64_t> tasks_limit_of(const Root& root, const std::string& cgroup2, const std::string& cgroup);
/// The least `memory.max` of them.  Units: bytes.
std::optional<model::Bytes> memory_limit_of(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// "root", "member", "root invalid (Cpu list in cpuset.cpus not exclusive)".  Errors: unsupported where it is gone.
model::Result<std::string> read_partition(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// cpuset.cpus: what was set, not what is in force.
model::CpuSet read_own_cpus(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// What keeps `cpus` from becoming this shield, before anything is written: exclusive CPUs of others, and siblings
/// whose own cpuset.cpus is in conflict with them. On the path of a shield of its own also what somebody has set there:
/// its end would take that away. Empty: nothing does.
std::string in_the_way_of_partition(const Root& root, const std::string& cgroup2, const model::Shield& shield,
                                    const model::CpuSet& cpus);

/// Makes the cgroup a partition and reads back what the kernel says. Errors: io, unsupported.
model::Result<std::string> begin_partition(const Root& root, const std::string& cgroup2, const std::string& cgroup);
/// Back to an ordinary member, read back. Nothing to do where it is gone, or where somebody made it something else.
model::Result<void> end_partition(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// Has everybody else `cpus` again? A cgroup that is removed goes at once, its partition a little later: seen to take
/// masks that had been given back in between.
bool is_released(const Root& root, const std::string& cgroup2, const model::CpuSet& cpus);
/// Waits until a change of cpusets that is under way has reached every thread, by a write that changes nothing.
/// `cgroup`: any; the topmost one above it is written to.
void await_cpusets(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// Adds `cpus` to cpuset.cpus.exclusive from the top down to `cgroup`: each level hands them to the next.
/// Errors: io where the kernel refuses them, or reads back others; unsupported where a level is gone.
model::Result<void> hand_down(const Root& root, const std::string& cgroup2, const std::string& cgroup,
                              const model::CpuSet& cpus);
/// Takes them out again from `cgroup` up, read back. What is gone, or has none of them, is left alone.
/// Errors: io, the last of them; the levels above are gone through all the same.
model::Result<void> take_back(const Root& root, const std::string& cgroup2, const std::string& cgroup,
                              const model::CpuSet& cpus);

/// What a partition cannot move off `cpus`, one line for people: kernel threads that are bound there, and interrupts
/// that are served there. Empty: nothing.
/// Source: PF_KTHREAD and Cpus_allowed_list of /proc/PID, /proc/irq/N/effective_affinity_list.
std::string what_still_runs_on(const Root& proc, const model::CpuSet& cpus);

}  // namespace numalease::host
