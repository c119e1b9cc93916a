#pragma once

#include <systemd/sd-bus.h>

#include <memory>
#include <string>

#include "model/error.hpp"
#include "model/value.hpp"

namespace numalease::bus {

template <auto Function>
struct Deleter {
    template <class T>
    void operator()(T* handle) const {
        Function(handle);
    }
};
using Bus = std::unique_ptr<sd_bus, Deleter<sd_bus_flush_close_unref>>;
using Message = std::unique_ptr<sd_bus_message, Deleter<sd_bus_message_unref>>;
using Slot = std::unique_ptr<sd_bus_slot, Deleter<sd_bus_slot_unref>>;

/// sd_bus_error with its release.
class BusError {
public:
    BusError() = default;
    BusError(const BusError&) = delete;
    BusError& operator=(const BusError&) = delete;
    ~BusError() { sd_bus_error_free(&error_); }
    sd_bus_error* get() { return &error_; }
    [[nodiscard]] const sd_bus_error& operator*() const { return error_; }

private:
    sd_bus_error error_ = SD_BUS_ERROR_NULL;
};

/// "system", "session", or a D-Bus address such as "unix:path=…". Errors: no_daemon.
model::Result<Bus> open_bus(const std::string& where);
/// A peer-to-peer connection to a daemon's socket: no names, no broker. Errors: no_daemon; denied with the file
/// system's errno, and with none where neither root nor we ourselves listen there.
model::Result<Bus> open_socket(const std::string& path);
/// The same over a connected descriptor, which the bus takes over.
model::Result<Bus> open_fd(int fd);

/// Our error as a D-Bus error on `out`; returns the negative errno that an sd-bus handler returns.
int set_error(sd_bus_error* out, const model::Error& error);
/// A D-Bus error as ours. Names that are not ours map by kind: no owner, no reply, disconnected → no_daemon;
/// access denied → denied; the rest → io.
model::Error from_bus(const sd_bus_error& error, int negative_errno);

/// Appends an a{sv}. Nested lists are `as` and `aa{sv}`. Errors: io.
model::Result<void> append_dict(sd_bus_message* message, const model::Dict& dict);
/// Appends an aa{sv}.
model::Result<void> append_dicts(sd_bus_message* message, const model::Value::Dicts& list);
inline constexpr std::size_t kMaxEntries = 4096;
inline constexpr std::size_t kMaxReplyEntries = 1U << 20U;  ///< of a daemon's answer: thousands of cores or leases
inline constexpr std::size_t kMaxDepth = 8;
/// Reads an a{sv} that anybody may have sent: at most `max_entries` entries in all and `kMaxDepth` levels; strings
/// must not hold NUL (D-Bus sees to it); integer types become unsigned 64-bit, negative ones are refused; unknown
/// types are refused by name. Errors: invalid_request.
model::Result<model::Dict> read_dict(sd_bus_message* message, std::size_t max_entries = kMaxEntries);
model::Result<model::Value::Dicts> read_dicts(sd_bus_message* message, std::size_t max_entries = kMaxEntries);

/// Calls a method of the manager and waits. `destination` is null on a peer-to-peer connection.
/// `append` adds the arguments. `timeout` 0: sd-bus's own; UINT64_MAX: none.
/// Errors: the daemon's own, or no_daemon.
template <class Append>
model::Result<Message> call(sd_bus* bus, const char* destination, const char* method, Append&& append,
                            std::uint64_t timeout_usec = 0);

/// A method call to the manager without arguments yet. Errors: io.
model::Result<Message> new_call(sd_bus* bus, const char* destination, const char* method);
/// Sends and waits. Errors: the daemon's own, or no_daemon.
model::Result<Message> send(sd_bus* bus, sd_bus_message* call, std::uint64_t timeout_usec);

template <class Append>
model::Result<Message> call(sd_bus* bus, const char* destination, const char* method, Append&& append,
                            std::uint64_t timeout_usec) {
    auto message = new_call(bus, destination, method);
    if (!message) return message;
    if (model::Result<void> appended = append(message->get()); !appended) return std::unexpected(appended.error());
    return send(bus, message->get(), timeout_usec);
}

}  // namespace numalease::bus
