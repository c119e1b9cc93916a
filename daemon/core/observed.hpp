#pragma once

#include <map>
#include <optional>
#include <string>

#include "model/knob.hpp"
#include "model/lease.hpp"
#include "model/limits.hpp"
#include "model/topology.hpp"

namespace numalease::core {

/// What one node's memory looks like at this moment.  Units: bytes.
/// Source: /sys/devices/system/node/nodeN/meminfo.
struct NodeMemory {
    model::Bytes total = 0;
    model::Bytes free = 0;
    model::Bytes clean_cache = 0;  ///< file pages that are neither dirty nor mapped: can go at once
};

/// One knob as read just now: its value, a pool, or neither where this kernel has no such file.
struct KnobReading {
    std::optional<std::string> value;
    std::optional<model::PoolReading> pool;
    model::Error error;  ///< why there is neither; `unsupported` where the file does not exist

    [[nodiscard]] bool present() const { return value.has_value() || pool.has_value(); }
};

/// A named lease's holder and slice, just now.
struct NamedFacts {
    bool held = false;       ///< a holder lives
    bool inhabited = false;  ///< its slice has processes
};

/// What this machine lets a shield be.
struct ShieldFacts {
    model::ShieldKind kernel = model::ShieldKind::none;  ///< the best its kernel can
    std::map<std::string, std::string> limits;           ///< by slice: "MemoryMax=1G" that binds what is in it
};

/// The machine around one step, read by the host before it. `step` looks at nothing else.
struct Observed {
    model::Topology topology;
    std::map<unsigned, NodeMemory> memory;                            ///< by node
    std::map<model::LeaseId, std::map<unsigned, model::Bytes>> used;  ///< what each lease holds already, where known
    std::map<model::KnobKey, KnobReading> knobs;                      ///< those `core::watched` names
    std::map<model::LeaseId, NamedFacts> named;                       ///< leases with a name
    model::CpuSet foreign_cpus;                ///< held by surviving numalease scopes that no lease explains
    model::Bytes reserve = 256 * model::kMiB;  ///< kept free on every node, from the site configuration
    bool overcommit = false;                   ///< the site takes an estimate of memory for a warning
    bool loses_masks = false;                  ///< this kernel forgets threads' own affinity when their cpuset changes
    bool systemd = false;                      ///< a systemd manager can confine
    ShieldFacts shield;                        ///< where a request asks for one
    model::Scheduling scheduling;
    std::map<unsigned, model::Limits> limits;  ///< by uid; who is not there has none
};

}  // namespace numalease::core
