#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/step.hpp"
#include "service/background.hpp"
#include "service/use.hpp"

namespace numalease::service {

/// What is kept of a lease that is over. Shape: id, boot (ids begin anew with each), uid, command, class, name, policy,
/// cores, nodes, state, reason, queued_usec and ended_usec (CLOCK_REALTIME), waited_usec, ran_usec where it was
/// granted, cpu_usec and busy_permille where they are known; node_seconds, which count in fair share, where it was
/// granted and was in no other lease. `nodes`: how much of the machine it was.
model::Dict history_entry(const model::Lease& lease, const std::string& boot, const model::Dict& use, double nodes);

/// Leases that are over, across restarts and boots. A disk that fails or hangs costs the file, and no lease: what it
/// was to hold is still answered from memory.
class History {
public:
    /// How much of the machine a lease is, in nodes.
    using NodesOf = std::function<double(const model::Lease&)>;

    /// `background`: null: nothing is written.
    History(std::string directory, std::string boot, Background* background, NodesOf nodes_of);

    /// Notes those that are over now and were not before: what was refused at once never was one.
    void changed(const core::State& before, const core::State& after, Uses& uses);
    /// The newest first, at most `most` of them.
    [[nodiscard]] model::Value::Dicts newest(std::size_t most) const;
    /// What users have used up to now, as far as it is remembered: what a boot starts with.
    [[nodiscard]] std::map<unsigned, core::Usage> usage(model::Instant now, model::Micros half_life) const;

private:
    std::string directory_;
    std::string boot_;
    Background* background_;
    NodesOf nodes_of_;
    std::deque<std::string> lines_;                                 ///< oldest first
    std::shared_ptr<bool> failed_ = std::make_shared<bool>(false);  ///< the background thread's
};

}  // namespace numalease::service
