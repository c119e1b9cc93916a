#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "host/root.hpp"
#include "model/lease.hpp"

namespace numalease::host {

/// As many threads as are looked at: anybody can make more.
inline constexpr std::size_t kMostBusyThreads = 65536;
inline constexpr unsigned kBusyPercent = 20;  ///< of a CPU, from which on a thread is busy

/// CPU time of a thread up to now.  Units: clock ticks.
struct ThreadTime {
    int pid = 0;
    std::uint64_t start_time = 0;
    std::uint64_t ticks = 0;

    bool operator==(const ThreadTime&) const = default;
};
/// By thread id.
using ThreadTimes = std::unordered_map<int, ThreadTime>;

/// A thread that was busy for a while.
struct BusyThread {
    int pid = 0;
    unsigned cpu = 0;      ///< where it last ran
    unsigned percent = 0;  ///< of a CPU

    bool operator==(const BusyThread&) const = default;
};

/// Who has busy threads on some CPUs.
struct BusyProcess {
    int pid = 0;
    unsigned uid = 0;
    std::string command;
    std::string cgroup;
    std::vector<model::Process> ancestry;  ///< itself, its parent, and so on
    std::vector<BusyThread> threads;
};

/// Of every thread that is not the kernel's or our own.
/// Source: fields 9, 14, 15 and 22 of /proc/PID/task/TID/stat.
ThreadTimes read_thread_times(const Root& proc_root);

/// Those of `before` that were busy in the time since, and last ran on one of `cpus` (field 39), by process.
std::vector<BusyProcess> read_busy(const Root& proc_root, const ThreadTimes& before, model::Micros since,
                                   const model::CpuSet& cpus);

}  // namespace numalease::host
