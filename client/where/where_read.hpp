#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engines/engine.hpp"
#include "where/where.hpp"

/// What this machine and its processes show of their memory, with the caller's own rights.
namespace numalease::client {

/// An exact look at more takes long, and whoever it looks at waits.
inline constexpr Bytes kSampleFrom = 32 * model::kGiB;
inline constexpr std::size_t kSamples = 65536;  ///< of a node's share, 0.4 % at most off, nearly always

struct Machine {
    model::NodeSet memory;                                 ///< nodes that have some
    std::vector<std::pair<unsigned, model::CpuSet>> cpus;  ///< of each node
    std::string cgroup2;                                   ///< mount point; empty: none
    std::set<std::string> hugetlb_devices;
};
Machine read_machine();

/// Errors: invalid_request where there is no such process.
model::Result<ProcessStatus> read_status(int pid);

/// How closely a process is looked at.
struct Look {
    std::size_t samples = 0;  ///< pages to ask for; 0: every page, by a walk of all page tables that takes some 10 ms
                              ///< for each GiB of 4 KiB pages, while the process's own mmap and munmap wait
    bool transparent_huge = false;  ///< these, too: another such walk
};
/// The mappings of a process, into `tally`.
/// Errors: denied (another user's), io (ESRCH: gone), unsupported.
model::Result<void> read_memory(int pid, const ProcessStatus& status, const Look& look, const Machine& machine,
                                Tally& tally, Found& found);

/// Where its threads last ran, and how many may leave `cpus` (empty: everywhere).
void read_threads(int pid, const Machine& machine, const model::CpuSet& cpus, Found& found);

/// Path in the unified hierarchy; empty where there is none.
std::string read_cgroup(int pid);
std::uint64_t read_start_time(int pid);
/// Of all its threads, those that have ended too.
std::uint64_t read_major_faults(int pid);
/// Of its main thread; none where the kernel does not list them.
std::vector<int> read_children(int pid);
/// Processes in a cgroup or below it, at most kMostProcesses.
std::vector<int> read_pids_in(const std::string& cgroup);
inline constexpr std::size_t kMostProcesses = 4096;
bool is_in_cgroup(std::string_view cgroup, std::string_view other);

std::map<std::string, PerNode> read_charged(const Machine& machine, const std::string& cgroup);

/// Words and environment of a process, as far as they may be seen.
Argv read_argv(int pid);
Env read_environment(int pid);

}  // namespace numalease::client
