#pragma once

#include <map>
#include <optional>

#include "core/step.hpp"
#include "service/machine.hpp"
#include "service/recent.hpp"

namespace numalease::service {

/// Where the kernel counts what a lease uses: its own cgroup, or that of its unit; empty where only its processes are
/// known.
std::string counting_cgroup(const model::Lease& lease, const Machine& machine);

/// What that cgroup, or else its holders, have used by now. Nothing where they are gone.
std::optional<model::Use> read_use(const model::Lease& lease, const Machine& machine);

/// How busy leases are. Read when somebody asks, and once when a lease ends; never by a timer.
class Uses {
public:
    explicit Uses(const Machine& machine) : machine_(machine) {}

    /// "use" of a lease, as far as it is known. Shape: cpu_usec, busy_permille (of the CPUs that its engine was told
    /// of), cpu_pressure_usec, memory_pressure_usec, since it was confined; at_usec; at_least, where the cgroup comes
    /// and goes with what is in it, and begins to count anew each time.
    [[nodiscard]] model::Dict dict_of(const model::Lease& lease);
    /// Of leases that are no longer active the last reading is kept, until they leave the state.
    void changed(const core::State& before, const core::State& after);

private:
    const Machine& machine_;
    Recent<model::LeaseId, std::optional<model::Use>> recent_{model::Micros(200'000), 4096};
    std::map<model::LeaseId, model::Use> last_;
};

}  // namespace numalease::service
