#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace numalease::policies {

/// What `${…}` may name in a policy's or engine's text: figures of the lease. `cpus` are all its hardware threads,
/// `core_cpus` those for the engine's threads: one of each core, or all where the engine is told all. `node` is the
/// first of `nodes`, `index` counts the instances of a command from 0, and `port+index` is the engine's own port and
/// that; any number may stand in place of `port`.
inline constexpr std::array<std::string_view, 9> kVariables{"cores",      "threads", "nodes", "cpus",      "core_cpus",
                                                            "node_count", "node",    "index", "port+index"};

/// 9000 of "9000+index"; nothing for any other name, or a number that is no port.
std::optional<unsigned> port_before_index(std::string_view name);

/// Replaces each `${name}` for which `value` has something; the rest stays as it is.
std::string expand(std::string_view text, const std::function<std::optional<std::string>(std::string_view)>& value);

/// The first `${name}` in `text` that is none of `kVariables`; empty for none.
std::string unknown_variable(std::string_view text);

/// "${cores}, ${threads}, …", for messages.
std::string variable_list();

}  // namespace numalease::policies
