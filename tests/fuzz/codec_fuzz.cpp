#include <systemd/sd-bus.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "../bus/private_bus.hpp"
#include "bus/bus.hpp"
#include "model/request.hpp"

namespace {

using namespace numalease;

/// Bytes of the input, one after another; zeros when they run out.
struct Feed {
    const std::uint8_t* at;
    const std::uint8_t* end;

    std::uint8_t byte() { return at == end ? std::uint8_t{0} : *at++; }
    std::string text() {
        std::string out;
        for (unsigned left = byte() % 32U; left > 0 && at != end; --left) out += static_cast<char>(byte() & 0x7fU);
        return out.c_str();  // D-Bus text ends at the first NUL
    }
};

constexpr unsigned kDeepest = 12;  // deeper than the reader allows

void put_dict(sd_bus_message* message, Feed& feed, unsigned depth);

void put_variant(sd_bus_message* message, Feed& feed, unsigned depth) {
    switch (feed.byte() % 12U) {
        case 0: sd_bus_message_append(message, "v", "s", feed.text().c_str()); return;
        case 1: sd_bus_message_append(message, "v", "b", feed.byte() & 1U); return;
        case 2: sd_bus_message_append(message, "v", "y", feed.byte()); return;
        case 3: sd_bus_message_append(message, "v", "n", static_cast<std::int8_t>(feed.byte())); return;
        case 4: sd_bus_message_append(message, "v", "x", std::int64_t{static_cast<std::int8_t>(feed.byte())}); return;
        case 5: sd_bus_message_append(message, "v", "d", double{0.5} * feed.byte()); return;
        case 6: sd_bus_message_append(message, "v", "as", 2, feed.text().c_str(), feed.text().c_str()); return;
        case 7: sd_bus_message_append(message, "v", "(ss)", "a", feed.text().c_str()); return;
        case 8: sd_bus_message_append(message, "v", "v", "s", feed.text().c_str()); return;
        case 9: sd_bus_message_append(message, "v", "o", "/a"); return;
        case 10:
            sd_bus_message_open_container(message, 'v', "a{sv}");
            put_dict(message, feed, depth + 1);
            sd_bus_message_close_container(message);
            return;
        default:
            sd_bus_message_open_container(message, 'v', "aa{sv}");
            sd_bus_message_open_container(message, 'a', "a{sv}");
            for (unsigned left = feed.byte() % 4U; left > 0; --left) put_dict(message, feed, depth + 1);
            sd_bus_message_close_container(message);
            sd_bus_message_close_container(message);
            return;
    }
}

void put_dict(sd_bus_message* message, Feed& feed, unsigned depth) {
    sd_bus_message_open_container(message, 'a', "{sv}");
    for (unsigned left = depth > kDeepest ? 0 : feed.byte() % 8U; left > 0 && feed.at != feed.end; --left) {
        sd_bus_message_open_container(message, 'e', "sv");
        sd_bus_message_append(message, "s", feed.text().c_str());
        put_variant(message, feed, depth);
        sd_bus_message_close_container(message);
    }
    sd_bus_message_close_container(message);
}

}  // namespace

/// Builds a message of any shape from the input and reads it as the daemon reads a request. What is read must be
/// written again and come back the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const bus::PrivateBus connection;
    Feed feed{data, data + size};
    const auto message = bus::new_message(connection.get());
    put_dict(message.get(), feed, 1);
    bus::seal(message.get());
    const auto dict = bus::read_dict(message.get());
    if (!dict) return 0;
    const auto again = bus::new_message(connection.get());
    if (!bus::append_dict(again.get(), *dict)) std::abort();
    bus::seal(again.get());
    if (bus::read_dict(again.get()) != *dict) std::abort();
    static_cast<void>(model::request_from_dict(*dict));
    return 0;
}
