#pragma once

#include <string>
#include <vector>

#include "model/value.hpp"

/// `doctor`: what of this machine and its set-up stands in the way of inference, and the way out. Pure.
namespace numalease::client {

/// What is looked at, as the daemon gave it, and what the caller is.
struct Examined {
    model::Dict status;
    model::Dict topology;
    model::Value::Dicts knobs;
    model::Value::Dicts squatters;
    bool may_lease = true;  ///< root, or one of the group that the daemon's rule is for
    std::string group;
};

struct Finding {
    std::string what;     ///< the thing and why it matters
    std::string way_out;  ///< a command where there is one

    bool operator==(const Finding&) const = default;
};

/// Empty where nothing is amiss.
std::vector<Finding> diagnose(const Examined& examined);

}  // namespace numalease::client
