#pragma once

#include <optional>

#include "host/root.hpp"
#include "model/topology.hpp"

namespace numalease::host {

/// Reads "0-3,8" or, where an older kernel has only that, the mask "00000000,0000010f" beside it.
/// nullopt where there is neither, or it cannot be understood.
std::optional<model::CpuSet> read_cpus(const Root& root, const std::string& list_path, const std::string& mask_path);

/// Format: "ffffffff,0000010f", most significant word first. Pure, for tests without files.
std::optional<model::IndexSet> parse_mask(std::string_view text, unsigned limit);

/// Online nodes with their CPUs and memory, ascending; empty on a kernel without NUMA. A CPU that two nodes claim goes
/// to the first of them, and a contradiction is added.
std::vector<model::Node> read_nodes(const Root& root, const model::CpuSet& online,
                                    std::vector<std::string>& contradictions);

/// SLIT by position in `nodes`; empty unless every node's row has as many entries as there are nodes.
/// Source: sys/devices/system/node/nodeN/distance, one entry for each online node.
std::vector<std::vector<unsigned>> read_distances(const Root& root, const std::vector<model::Node>& nodes);

/// Nodes that hold a GPU's own memory.  Source: proc/driver/nvidia/gpus/ADDR/numa_status.
model::NodeSet read_gpu_nodes(const Root& root);

/// Page sizes of the kernel's pools, ascending.
std::vector<model::Bytes> read_hugepage_sizes(const Root& root);

/// What the kernel's own map says that cannot be: threads of one core on two sockets or nodes, a last-level cache that
/// two sockets share, siblings that do not know each other. hwloc mends such maps in silence (CASES 23).
std::vector<std::string> find_contradictions(const Root& root, const model::CpuSet& online,
                                             const std::vector<model::Node>& nodes);

}  // namespace numalease::host
