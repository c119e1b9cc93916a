#include "service/run.hpp"

#include <cstdio>

#include "service/app.hpp"
#include "service/residency.hpp"
#include "service/stop_job.hpp"

namespace numalease::service {

namespace {

/// Not known is no: what a restart left is the next daemon's, and nothing would give it back its leases.
bool is_being_stopped(const Options& options) {
    const auto job = job_of(options.bus, options.if_stopping);
    if (!job) {
        std::fprintf(stderr, "numa-leased: nothing put back, as it is not known whether systemd stops %s: %s\n",
                     options.if_stopping.c_str(), job.error().detail.c_str());
        return false;
    }
    return *job == "stop";
}

}  // namespace

int run(const Options& options) {
    if (options.residency) return answer_residency();
    if (options.check) return check_config(options.config);
    log::start(options.log_level);
    if (!options.if_stopping.empty() && !is_being_stopped(options)) return 0;
    App app(options);
    if (auto started = app.start(); !started) {
        std::fprintf(stderr, "numa-leased: %s\n", started.error().detail.c_str());
        return model::row_of(started.error().code).exit_status;
    }
    return app.loop();
}

}  // namespace numalease::service
