#include "service/site.hpp"

#include <cerrno>
#include <cstdio>

#include "service/log.hpp"

namespace numalease::service {

void load_config(Site& site, const std::string& file) {
    auto config = policies::load_site_config(file);
    const bool none = !config && config.error().err == ENOENT;
    if (!config && !none) {
        const std::string in_force =
            site.config_file.empty() ? "the defaults are in force" : "the former stays in force";
        site.config_problem = config.error().detail + "; " + in_force;
        return log::event(log::Level::error, log::kDegraded, "the site configuration is not used",
                          {{"REASON", site.config_problem}});
    }
    const bool as_before = none && site.config_file.empty();
    site.config = none ? policies::SiteConfig{} : std::move(*config);
    site.config_file = none ? "" : file;
    site.config_problem.clear();
    if (as_before) return;
    log::event(
        log::Level::info, log::kConfigured,
        none ? "no site configuration any more; the defaults are in force" : "the site configuration is in force",
        {{"FILE", file}});
}

int check_config(const std::string& file) {
    const auto config = policies::load_site_config(file);
    if (config || config.error().err == ENOENT) return 0;
    std::fprintf(stderr, "numa-leased: %s\n", config.error().detail.c_str());
    return model::row_of(config.error().code).exit_status;
}

}  // namespace numalease::service
