#include "service/reply.hpp"

#include <sys/socket.h>

namespace numalease::service {

namespace {

template <class Append>
void reply(const Held& call, Append&& append) {
    sd_bus_message* raw = nullptr;
    if (sd_bus_message_new_method_return(call.get(), &raw) < 0) return;
    const bus::Message message(raw);
    if (model::Result<void> appended = append(raw); !appended) return reply_error(call, appended.error());
    sd_bus_send(nullptr, raw, nullptr);
}

}  // namespace

void drop_if_deaf(sd_bus* connection, std::uint64_t most) {
    std::uint64_t waiting = 0;
    if (sd_bus_is_bus_client(connection) > 0 || sd_bus_get_n_queued_write(connection, &waiting) < 0) return;
    // sd-bus sees the end of the stream and tells of it as of any other.
    if (waiting > most) (void)shutdown(sd_bus_get_fd(connection), SHUT_RDWR);
}

void reply_error(const Held& call, const model::Error& error) {
    bus::BusError out;
    bus::set_error(out.get(), error);
    sd_bus_reply_method_error(call.get(), out.get());
}

void reply_empty(const Held& call) { sd_bus_reply_method_return(call.get(), nullptr); }

void reply_dict(const Held& call, const model::Dict& dict) {
    reply(call, [&](sd_bus_message* message) { return bus::append_dict(message, dict); });
}

void reply_dicts(const Held& call, const model::Value::Dicts& list) {
    reply(call, [&](sd_bus_message* message) { return bus::append_dicts(message, list); });
}

void reply_named_dict(const Held& call, const std::string& name, const model::Dict& dict) {
    reply(call, [&](sd_bus_message* message) -> model::Result<void> {
        if (const int r = sd_bus_message_append(message, "s", name.c_str()); r < 0)
            return model::fail(model::Errc::io, "cannot put together the answer", -r);
        return bus::append_dict(message, dict);
    });
}

}  // namespace numalease::service
