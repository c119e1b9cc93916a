#pragma once

#include <map>

#include "host/root.hpp"
#include "model/topology.hpp"

namespace numalease::host {

/// Reads the machine below `root` with hwloc (HWLOC_COMPONENTS=linux, HWLOC_FSROOT where the root is not "/"; the
/// process environment is not read). Offline CPUs, memory-less and CPU-less nodes, sparse numbers, hybrid cores and
/// sub-NUMA clusters are data. A map that contradicts itself is named in Topology::contradictions.
/// Errors: io.  Cost: tens of milliseconds on large machines.
model::Result<model::Topology> probe_topology(const Root& root);

/// Changes when CPUs or nodes go on- or offline; cheap. Equal text, equal topology.
std::string topology_fingerprint(const Root& root);

/// nodeN/meminfo of one node.  Units: bytes.
struct NodeMemoryReading {
    model::Bytes total = 0;
    model::Bytes free = 0;
    model::Bytes clean_cache = 0;  ///< Active(file) + Inactive(file) − Mapped − Dirty − Writeback, not below 0
};
/// Format: "Node 0 MemFree:   3275412 kB". Pure, for tests without files.
model::Result<NodeMemoryReading> parse_node_meminfo(std::string_view text);
model::Result<NodeMemoryReading> read_node_memory(const Root& root, unsigned node);

}  // namespace numalease::host
