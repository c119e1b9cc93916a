#include "service/stop_job.hpp"

#include "bus/bus.hpp"

namespace numalease::service {

model::Result<std::string> job_of(const std::string& bus, const std::string& unit) {
    const auto opened = bus::open_bus(bus);
    if (!opened) return std::unexpected(opened.error());
    bus::BusError error;
    sd_bus_message* raw = nullptr;
    int r = sd_bus_call_method(opened->get(), "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
                               "org.freedesktop.systemd1.Manager", "ListJobs", error.get(), &raw, "");
    const bus::Message reply(raw);
    if (r < 0) return std::unexpected(bus::from_bus(*error, r));
    r = sd_bus_message_enter_container(raw, 'a', "(usssoo)");
    const char* name = nullptr;
    const char* type = nullptr;
    while (r >= 0 && (r = sd_bus_message_read(raw, "(usssoo)", nullptr, &name, &type, nullptr, nullptr, nullptr)) > 0)
        if (unit == name) return std::string(type);
    if (r < 0) return model::fail(model::Errc::io, "systemd's answer to ListJobs cannot be read", -r);
    return std::string();
}

}  // namespace numalease::service
