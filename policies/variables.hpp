#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace numalease::policies {

/// What `${…}` may name in a policy's or engine's text: figures of the lease. `cpus` are all its hardware threads,
/// `core_cpus` those for the engine's threads: one of each core, or all where the engine is told all.
inline constexpr std::array<std::string_view, 6> kVariables{"cores", "threads",   "nodes",
                                                            "cpus",  "core_cpus", "node_count"};

/// Replaces each `${name}` for which `value` has something; the rest stays as it is.
std::string expand(std::string_view text, const std::function<std::optional<std::string>(std::string_view)>& value);

/// The first `${name}` in `text` that is none of `kVariables`; empty for none.
std::string unknown_variable(std::string_view text);

/// "${cores}, ${threads}, …", for messages.
std::string variable_list();

}  // namespace numalease::policies
