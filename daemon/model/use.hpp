#pragma once

#include <optional>

#include "model/units.hpp"
#include "model/value.hpp"

namespace numalease::model {

/// How much a lease has used of its CPUs, and how long it had to wait for them and for memory: counters that only rise.
/// Source: admin-guide/cgroup-v2.rst, cpu.stat, and accounting/psi.rst, `some` of cpu.pressure and memory.pressure.
struct Use {
    Micros at{0};  ///< boot clock, when it was read; 0: never
    Micros cpu{0};
    Micros cpu_pressure{0};
    Micros memory_pressure{0};

    bool operator==(const Use&) const = default;
};

Dict to_dict(const Use& use);
Use use_from_dict(const Dict& dict);

/// What was added since `before`. A counter that is lower now belongs to a cgroup that was made anew: it began at 0.
Use since(const Use& before, const Use& now);

/// Of the time of so many CPUs, in thousandths.
std::optional<std::uint64_t> busy_permille(Micros cpu, Micros elapsed, unsigned cpus);

}  // namespace numalease::model
