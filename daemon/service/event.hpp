#pragma once

#include <systemd/sd-event.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "bus/bus.hpp"
#include "model/error.hpp"

namespace numalease::service {

using Event = std::unique_ptr<sd_event, bus::Deleter<sd_event_unref>>;
using EventSource = std::unique_ptr<sd_event_source, bus::Deleter<sd_event_source_disable_unref>>;
/// A message that outlives its handler: what an asynchronous reply answers.
using Held = std::shared_ptr<sd_bus_message>;

inline Held hold(sd_bus_message* message) { return {sd_bus_message_ref(message), sd_bus_message_unref}; }

/// What is under way on the loop and calls back later. Destroying it cancels everything that has not.
class Later {
public:
    using Reply = std::function<void(model::Result<sd_bus_message*>)>;

    explicit Later(sd_event* event) : event_(event) {}

    /// Sends `call` and gives `done` the reply, or the error that came instead.
    void call(sd_bus* bus, bus::Message call, std::uint64_t timeout_usec, Reply done);
    /// Runs `done` once, `delay_usec` from now.
    void after(std::uint64_t delay_usec, std::function<void()> done);
    /// Runs `done` once, from the loop, when the handler that asked has returned.
    void soon(std::function<void()> done) { after(0, std::move(done)); }

private:
    struct Item {
        Later* owner = nullptr;
        std::uint64_t id = 0;
        bus::Slot slot;
        EventSource source;
        Reply reply;
        std::function<void()> done;
    };
    Item& add();
    std::unique_ptr<Item> take(std::uint64_t id);
    static int on_reply(sd_bus_message* message, void* data, sd_bus_error* error);
    static int on_time(sd_event_source* source, std::uint64_t usec, void* data);

    sd_event* event_;
    std::uint64_t next_ = 1;
    std::map<std::uint64_t, std::unique_ptr<Item>> items_;
};

}  // namespace numalease::service
