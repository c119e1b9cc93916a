#pragma once

#include <string>

#include "core/step.hpp"
#include "service/machine.hpp"
#include "service/observe.hpp"
#include "service/site.hpp"

namespace numalease::service {

/// What GetStatus says besides what it can see for itself.
struct About {
    std::string mode;  ///< "daemon", "embedded" or "read-only"
    std::string runtime_directory;
    bool systemd = false;
    bool journal_works = true;
};

/// `rivals`: see below.
model::Dict status_dict(const core::State& state, const About& about, const Site& site, const Machine& machine,
                        Observer& observer, const std::vector<std::string>& rivals);
/// Every knob of this machine: now, prior, who holds it, why it is not back yet.
model::Value::Dicts knob_dicts(const core::State& state, Observer& observer);

/// Programs that set the same knobs, among the running processes.
std::vector<std::string> running_rivals(const host::Root& proc);

}  // namespace numalease::service
