#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/step.hpp"
#include "service/machine.hpp"
#include "service/site.hpp"

namespace numalease::service {

/// Reads the machine around a step: no more than the step can look at, so that an idle daemon reads nothing.
class Observer {
public:
    using LimitsOf = std::function<model::Limits(unsigned uid)>;

    Observer(const Machine& machine, const Site& site, LimitsOf limits_of)
        : machine_(machine), site_(site), limits_of_(std::move(limits_of)) {}

    /// Probes the topology, and finds the numalease scopes that a former daemon left.  Errors: io.
    model::Result<void> start();

    core::Observed observe(const core::State& state, const core::Input& input, bool systemd);
    /// For `Plan`: as for an Acquire of this request.
    core::Observed observe_for(const core::State& state, const model::Request& request, const model::Caller& caller,
                               bool systemd);
    [[nodiscard]] const model::Topology& topology();
    [[nodiscard]] core::KnobReading read(const model::KnobKey& key) const;
    /// Every knob that this machine could have.
    [[nodiscard]] std::vector<model::KnobKey> all_knobs();

private:
    [[nodiscard]] core::NamedFacts named_facts(const model::Lease& lease) const;
    [[nodiscard]] core::ShieldFacts shield_facts(const core::State& state, const core::Input& input) const;
    [[nodiscard]] std::map<unsigned, model::Limits> limits(const core::State& state, const core::Input& input) const;
    [[nodiscard]] model::CpuSet foreign_cpus(const core::State& state) const;
    [[nodiscard]] std::string fingerprint() const;
    model::Result<void> probe(std::string fingerprint);
    void look_at_topology();
    void look_for_uuids();
    void find_scopes(const std::string& directory, int depth);

    const Machine& machine_;
    const Site& site_;
    LimitsOf limits_of_;
    model::Topology topology_;
    std::string fingerprint_;
    bool loses_masks_ = false;
    std::vector<std::string> scopes_;  ///< cgroups of surviving numalease-*.scope, found at start
};

}  // namespace numalease::service
