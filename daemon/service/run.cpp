#include "service/run.hpp"

#include <cstdio>

#include "service/app.hpp"

namespace numalease::service {

int run(const Options& options) {
    log::start(options.log_level);
    App app(options);
    if (auto started = app.start(); !started) {
        std::fprintf(stderr, "numa-leased: %s\n", started.error().detail.c_str());
        return model::row_of(started.error().code).exit_status;
    }
    return app.loop();
}

}  // namespace numalease::service
