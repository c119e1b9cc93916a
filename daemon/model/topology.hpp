#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/index_set.hpp"
#include "model/units.hpp"
#include "model/value.hpp"

namespace numalease::model {

/// One physical core with its hardware threads.
struct Core {
    unsigned id = 0;          ///< position in Topology::cores, unique on the machine
    unsigned package = 0;     ///< socket, by OS number
    unsigned node = 0;        ///< NUMA node its threads are nearest to, by OS number
    unsigned llc = 0;         ///< last-level-cache group, unique on the machine
    unsigned efficiency = 0;  ///< higher is faster; 0 where all cores are alike
    CpuSet cpus;              ///< threads that are online
    CpuSet offline;           ///< threads that exist and are offline

    bool operator==(const Core&) const = default;
};

enum class NodeKind { dram, memory_only, gpu_memory };

/// One NUMA node. It may have no CPUs, no memory, or neither while offline.
struct Node {
    unsigned id = 0;       ///< OS number; numbers may be sparse
    unsigned package = 0;  ///< socket of its CPUs, or of the nearest node that has some
    NodeKind kind = NodeKind::dram;
    CpuSet cpus;      ///< online threads
    Bytes total = 0;  ///< MemTotal

    bool operator==(const Node&) const = default;
};

/// A device a request can be near to, or a GPU it can lease.
struct Device {
    std::string pci;     ///< "0000:81:00.0", empty for none
    std::string kind;    ///< "gpu", "netdev" or "block"
    std::string name;    ///< "eth0", "nvme0n1", or the model name
    NodeSet nodes;       ///< nodes it is local to; empty where the firmware does not say
    std::string vendor;  ///< of a GPU: whose variables choose it, "nvidia" or "amd"; empty for any other
    std::string driver;  ///< of a GPU: "nvidia", "amdgpu", "vfio-pci", …; empty for none
    std::string uuid;    ///< of a GPU: "GPU-…", as CUDA and ROCm call it; empty where its driver does not say

    bool operator==(const Device&) const = default;
};

/// The machine as it is now. Memory figures that change by the second are in core::Observed.
struct Topology {
    std::vector<Core> cores;
    std::vector<Node> nodes;                      ///< ascending by id
    std::vector<std::vector<unsigned>> distance;  ///< SLIT, indexed by position in `nodes`; empty where unknown
    std::vector<Device> devices;
    CpuSet online;
    CpuSet isolated;                          ///< /sys/devices/system/cpu/isolated
    std::vector<Bytes> hugepage_sizes;        ///< ascending
    std::vector<std::string> contradictions;  ///< why whole-core exclusivity cannot be trusted here (CASES 23)

    [[nodiscard]] const Node* node(unsigned id) const;
    /// Distance between two nodes by OS number; 10 to itself, 20 where the firmware says nothing.
    [[nodiscard]] unsigned distance_between(unsigned from, unsigned to) const;
    [[nodiscard]] NodeSet node_ids() const;

    bool operator==(const Topology&) const = default;
};

/// For `numa-leasectl topology` and the bus.
Dict to_dict(const Topology& topology);

}  // namespace numalease::model
