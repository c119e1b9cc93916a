#include "service/hotplug.hpp"

#include <cstring>

#include "service/log.hpp"

namespace numalease::service {

void Hotplug::start(sd_event* event, std::function<void()> changed) {
    changed_ = std::move(changed);
    sd_device_monitor* monitor = nullptr;
    int r = sd_device_monitor_new(&monitor);
    monitor_.reset(monitor);
    if (r >= 0) r = sd_device_monitor_filter_add_match_subsystem_devtype(monitor, "cpu", nullptr);
    if (r >= 0) r = sd_device_monitor_attach_event(monitor, event);
    if (r >= 0) r = sd_device_monitor_start(monitor, on_device, this);
    if (r >= 0) return;
    monitor_.reset();
    log::event(log::Level::warning, log::kDegraded, "CPUs that go offline are noticed late: no device events here",
               {{"REASON", std::strerror(-r)}});
}

int Hotplug::on_device(sd_device_monitor* /*monitor*/, sd_device* /*device*/, void* data) {
    static_cast<Hotplug*>(data)->changed_();
    return 0;
}

}  // namespace numalease::service
