#pragma once

#include <string>
#include <vector>

#include "policies/loader.hpp"

namespace numalease::service {

/// What the administrator set, and what of this daemon is not as it should be.
struct Site {
    policies::SiteConfig config;
    std::string config_problem;      ///< why the file was not used; empty: it was, or there is none
    std::vector<std::string> notes;  ///< degraded: no bus, no name on it, a journal that was set aside, …
};

/// Reads the configuration. A broken file leaves the defaults in force and says so in `config_problem`.
void load_config(Site& site, const std::string& file);

}  // namespace numalease::service
