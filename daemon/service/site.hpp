#pragma once

#include <string>
#include <vector>

#include "policies/loader.hpp"

namespace numalease::service {

/// What the administrator set, and what of this daemon is not as it should be.
struct Site {
    policies::SiteConfig config;
    std::string config_file;     ///< that `config` is from; empty: the defaults
    std::string config_problem;  ///< why the file was not used, and what is in force; empty: it was, or there is none
    std::vector<std::string> notes;  ///< degraded: no bus, no name on it, a journal that was set aside, …
};

/// Reads the configuration; a file that is not there is one that says nothing. What is wrong leaves in force what was,
/// at first the defaults, and `config_problem` says so.
void load_config(Site& site, const std::string& file);

/// Says on standard error what is wrong with it. Returns the exit status: 0 also where there is no file.
int check_config(const std::string& file);

}  // namespace numalease::service
