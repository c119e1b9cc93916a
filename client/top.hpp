#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/value.hpp"
#include "where/numa_maps.hpp"

/// `top`: what is on the nodes, leases, who waits, and who is there without one. Pure.
namespace numalease::client {

/// Time of a CPU since boot, in whatever unit the kernel counts.
struct CpuTime {
    std::uint64_t busy = 0;
    std::uint64_t total = 0;

    bool operator==(const CpuTime&) const = default;
};
/// By CPU.  Source: /proc/stat, "cpu0 user nice system idle iowait irq softirq steal …".
std::map<unsigned, CpuTime> parse_cpu_times(std::string_view text);

struct NodeMemory {
    Bytes total = 0;
    Bytes free = 0;

    bool operator==(const NodeMemory&) const = default;
};
/// Source: node meminfo, "Node 0 MemTotal:       65842832 kB".
NodeMemory parse_node_memory(std::string_view text);

/// One look.
struct Sight {
    std::string clock;  ///< "14:03:12"
    std::string amiss;  ///< why there is nothing else
    std::uint64_t now = 0;
    model::Dict status;
    model::Dict topology;
    model::Value::Dicts leases;
    model::Value::Dicts squatters;
    std::map<unsigned, CpuTime> cpus;
    std::map<unsigned, NodeMemory> nodes;
    std::map<std::string, PerNode> memory;  ///< of each lease, as charged to its cgroup
};

/// The time of its CPUs that a lease has used between two looks, in thousandths; nothing where that is not known.
std::optional<std::uint64_t> busy_between(const model::Dict& before, const model::Dict& now);

/// Lines of at most `width` characters, all ASCII where they are other people's words.
std::vector<std::string> top_lines(const Sight& before, const Sight& now, std::size_t width);

/// The same for programs.
model::Dict top_dict(const Sight& before, const Sight& now);

}  // namespace numalease::client
