#pragma once

#include <string>

#include "model/error.hpp"

namespace numalease::service {

/// What systemd is about to do with a unit: "stop", "restart", "start", …; empty where no job is queued for it, as
/// after a crash.  Source: org.freedesktop.systemd1(5), ListJobs.  Errors: no_daemon, io.
model::Result<std::string> job_of(const std::string& bus, const std::string& unit);

}  // namespace numalease::service
