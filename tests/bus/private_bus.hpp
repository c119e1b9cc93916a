#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "bus/bus.hpp"

namespace numalease::bus {

/// A connection over a socketpair whose other end stays silent: enough to make and seal messages.
class PrivateBus {
public:
    PrivateBus() {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) return;
        other_ = ends[1];
        if (auto opened = open_fd(ends[0])) bus_ = std::move(*opened);
    }
    PrivateBus(const PrivateBus&) = delete;
    PrivateBus& operator=(const PrivateBus&) = delete;
    ~PrivateBus() {
        // Not flushed, as Bus would: that waits for the other end to greet.
        sd_bus_close_unref(bus_.release());
        if (other_ >= 0) close(other_);
    }
    [[nodiscard]] sd_bus* get() const { return bus_.get(); }

private:
    int other_ = -1;
    Bus bus_;
};

inline Message new_message(sd_bus* bus) {
    sd_bus_message* raw = nullptr;
    sd_bus_message_new_signal(bus, &raw, "/test", "org.numalease1.Test", "Test");
    return Message(raw);
}

/// Turns a written message into one that can be read.
inline void seal(sd_bus_message* message) {
    sd_bus_message_seal(message, 1, 0);
    sd_bus_message_rewind(message, 1);
}

}  // namespace numalease::bus
