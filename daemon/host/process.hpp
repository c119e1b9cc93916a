#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/root.hpp"
#include "model/lease.hpp"

namespace numalease::host {

/// pidfd_open(2), close-on-exec. Errors: io with ESRCH where the process is gone.
model::Result<UniqueFd> open_pidfd(int pid);
/// PID behind a pidfd, -1 once it has been reaped. Source: /proc/self/fdinfo, "Pid:".
int pid_of_pidfd(int pidfd);
bool pidfd_alive(int pidfd);

/// Start time in clock ticks, field 22 of /proc/PID/stat (the command name may hold blanks and brackets).
model::Result<std::uint64_t> read_start_time(const Root& proc_root, int pid);
/// Same pid and same start time as recorded.
bool is_alive(const Root& proc_root, const model::Process& process);

/// Fills a Caller from /proc/PID: uid must be `uid` (what the bus said), command, cgroup, allowed CPUs and nodes.
/// The caller opened `pidfd` before and checks it after: a PID that was reused in between does not slip through.
/// PIDs 0, 1 and our own are refused. Errors: denied, io.
model::Result<model::Caller> read_caller(const Root& proc_root, int pid, int pidfd, unsigned uid);

/// /proc/PID/comm, made printable: a process calls itself what it likes. Empty where it is gone.
std::string read_command(const Root& proc_root, int pid);

/// Parent pid of `pid`, 0 where there is none.
int read_parent(const Root& proc_root, int pid);
/// A process, its parent, and so on, at most 64.
std::vector<model::Process> read_ancestry(const Root& proc_root, int pid);

/// The cgroup2 hierarchy as mounted here; empty where there is none. Source: /proc/self/mountinfo.
/// Path below the root, without a leading slash: "sys/fs/cgroup" or "sys/fs/cgroup/unified".
std::string find_cgroup2(const Root& root, const Root& proc_root);

/// "0::/user.slice/…" of /proc/PID/cgroup → "/user.slice/…". Errors: unsupported where there is no unified line.
model::Result<std::string> read_cgroup(const Root& proc_root, int pid);

/// Is a cgroup another one, or somewhere below it? Nothing is inside an empty path.
bool is_inside(std::string_view cgroup, std::string_view other);

/// The files of one cgroup that say what is in force.
struct CgroupFacts {
    model::CpuSet effective_cpus;  ///< cpuset.cpus.effective; empty: no cpuset controller here
    model::NodeSet effective_nodes;
    bool populated = false;  ///< cgroup.events
    std::vector<int> pids;   ///< cgroup.procs of it and everything below
    model::Bytes memory_current = 0;
    std::optional<model::Bytes> memory_max;  ///< empty: no limit, or no memory controller
};
/// Errors: unsupported where the cgroup is gone.
model::Result<CgroupFacts> read_cgroup_facts(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// Does a process live in it, or anywhere below? Source: cgroup.events; where there is none, in the root, cgroup.procs.
/// Errors: unsupported where the cgroup is gone.
model::Result<bool> read_populated(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// A cgroup without controllers whose only purpose is to tell when the last process of a lease is gone, made below the
/// caller's own cgroup where no systemd manages the tree. Moves `pid` in. Returns the cgroup path.
/// Errors: unsupported, io.
model::Result<std::string> make_tracking_cgroup(const Root& root, const std::string& cgroup2, const std::string& parent,
                                                const std::string& name, int pid);
/// Removes it and empty ones below it. Errors: io (EBUSY while populated).
model::Result<void> remove_tracking_cgroup(const Root& root, const std::string& cgroup2, const std::string& cgroup);

/// Errors: unsupported where the cgroup is gone or has no memory controller.
model::Result<model::MemoryEvents> read_memory_events(const Root& root, const std::string& cgroup2,
                                                      const std::string& cgroup);

/// Which run of the system service at the end of a cgroup path this is; empty where it is no service.
/// Source: /run/systemd/units/invocation:UNIT, a symlink that systemd replaces whenever it starts the unit.
std::string read_invocation(const Root& root, const std::string& cgroup);

/// What a cgroup is charged for, by node.  Errors: unsupported where it is gone or has no memory controller.
/// Source: memory.numa_stat.
model::Result<model::ChargedByNode> read_charged(const Root& root, const std::string& cgroup2,
                                                 const std::string& cgroup);

/// Bytes per node in use by a cgroup. Source: memory.numa_stat, anon + file per node.
model::Result<std::map<unsigned, model::Bytes>> read_memory_by_node(const Root& root, const std::string& cgroup2,
                                                                    const std::string& cgroup);

}  // namespace numalease::host
