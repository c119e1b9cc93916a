#include "reach/obtain.hpp"

#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "text/output.hpp"
#include "text/render.hpp"

namespace numalease::client {

namespace {

constexpr auto kProgressEvery = std::chrono::minutes(1);

/// Whoever reloads systemd makes it forget that our start may take longer, and end us (seen with 252): it is told again
/// while it reloads, and hears that before it looks at its clocks. Nothing where no manager waits for us.
class ReloadWatch {
public:
    ReloadWatch() {
        if (getenv("NOTIFY_SOCKET") == nullptr) return;
        auto opened = bus::open_bus("system");
        sd_event* loop = nullptr;
        if (!opened || sd_event_default(&loop) < 0) return;
        bus_ = std::move(*opened);
        sd_bus_match_signal_async(bus_.get(), nullptr, "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
                                  "org.freedesktop.systemd1.Manager", "Reloading", on_reloading, nullptr, this);
        sd_bus_call_method_async(bus_.get(), nullptr, "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
                                 "org.freedesktop.systemd1.Manager", "Subscribe", nullptr, nullptr, nullptr);
        sd_bus_attach_event(bus_.get(), loop, SD_EVENT_PRIORITY_NORMAL);
        sd_event_unref(loop);
    }
    void say(const std::string& status) {
        status_ = status;
        tell_manager(status);
    }

private:
    static int on_reloading(sd_bus_message* /*signal*/, void* userdata, sd_bus_error* /*error*/) {
        tell_manager(static_cast<ReloadWatch*>(userdata)->status_);
        return 0;
    }

    bus::Bus bus_;
    std::string status_;
};

model::Result<Connection> daemon_again(const Endpoint& endpoint) {
    constexpr auto kLookAgain = std::chrono::milliseconds(200);
    for (auto left = kDaemonMayReturn / kLookAgain; left > 0; --left) {
        if (auto found = find_daemon(endpoint, Wake::no)) return found;
        std::this_thread::sleep_for(kLookAgain);
    }
    return find_daemon(endpoint, Wake::no);
}

}  // namespace

void tell_manager(const std::string& status) {
    // Longer than until the next time that we speak.
    sd_notify(0, ("STATUS=" + printable(status) + "\nEXTEND_TIMEOUT_USEC=180000000").c_str());
}

model::Result<model::Dict> obtain(Connection& daemon, const Endpoint& endpoint, const model::Dict& request,
                                  bool quiet) {
    const auto acquired = daemon.acquire(request);
    if (!acquired) return std::unexpected(acquired.error());
    const auto state = model::get_text(acquired->lease, "state");
    if (state == "active") return acquired->lease;
    ReloadWatch manager;
    const auto tell = [&](const model::Dict& lease) {
        manager.say(progress_line(lease));
        if (!quiet) say(progress_line(lease));
    };
    if (state == "queued") tell(acquired->lease);
    while (true) {
        auto granted = daemon.wait(acquired->id, "active", kProgressEvery, [&] {
            if (const auto lease = daemon.lease(acquired->id)) tell(*lease);
        });
        if (granted || granted.error().code != model::Errc::no_daemon) return granted;
        // The place in the queue is kept while we live.
        auto again = daemon_again(endpoint);
        if (!again) return granted;
        daemon = std::move(*again);
    }
}

}  // namespace numalease::client
