#pragma once

#include <map>
#include <optional>
#include <string>

namespace numalease::weights {

/// Where the model of a hub's name ("org/model") was downloaded to: its folder of the revision `main`. Nothing where it
/// was not, or `name` is no such name.
/// `env`: the engine's variables, of which HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME count.
/// Source: huggingface_hub, "Understand caching"; constants.py.
std::optional<std::string> downloaded(const std::string& name, const std::map<std::string, std::string>& env);

}  // namespace numalease::weights
