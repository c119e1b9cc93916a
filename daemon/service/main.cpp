#include <cstdio>

#include "service/options.hpp"
#include "service/run.hpp"

int main(int argc, char** argv) {
    using namespace numalease;
    const auto options = service::parse_options(argc, argv);
    if (!options) {
        std::fprintf(stderr, "numa-leased: %s\n", options.error().detail.c_str());
        return model::row_of(options.error().code).exit_status;
    }
    if (options->help || options->version) {
        std::fputs((options->help ? service::usage() : service::version_text()).c_str(), stdout);
        return 0;
    }
    return service::run(*options);
}
