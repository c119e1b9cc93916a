#include "client/obtain.hpp"

#include <systemd/sd-daemon.h>

#include <chrono>

#include "client/output.hpp"
#include "client/render.hpp"

namespace numalease::client {

namespace {

constexpr auto kProgressEvery = std::chrono::minutes(1);

}  // namespace

void tell_manager(const std::string& status) {
    // Longer than until the next time that we speak.
    sd_notify(0, ("STATUS=" + printable(status) + "\nEXTEND_TIMEOUT_USEC=180000000").c_str());
}

model::Result<model::Dict> obtain(Connection& daemon, const model::Dict& request, bool quiet) {
    const auto acquired = daemon.acquire(request);
    if (!acquired) return std::unexpected(acquired.error());
    const auto tell = [&](const model::Dict& lease) {
        tell_manager(progress_line(lease));
        if (!quiet) say(progress_line(lease));
    };
    const auto state = model::get_text(acquired->lease, "state");
    if (state == "active") return acquired->lease;
    if (state == "queued") tell(acquired->lease);
    return daemon.wait(acquired->id, "active", kProgressEvery, [&] {
        if (const auto lease = daemon.lease(acquired->id)) tell(*lease);
    });
}

}  // namespace numalease::client
