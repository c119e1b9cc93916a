#include "service/site.hpp"

#include <fstream>
#include <sstream>

#include "service/log.hpp"

namespace numalease::service {

void load_config(Site& site, const std::string& file) {
    site.config = {};
    site.config_problem.clear();
    std::ifstream in(file);
    if (!in && errno == ENOENT) return;
    std::ostringstream text;
    text << in.rdbuf();
    if (!in) {
        site.config_problem = file + ": cannot be read";
    } else if (auto config = policies::parse_site_config(text.str(), file)) {
        site.config = std::move(*config);
        return;
    } else {
        site.config_problem = config.error().detail;
    }
    log::event(log::Level::error, log::kDegraded, "the site configuration is not used; defaults are in force",
               {{"REASON", site.config_problem}});
}

}  // namespace numalease::service
