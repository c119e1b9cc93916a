#pragma once

#include <systemd/sd-device.h>

#include <functional>
#include <memory>

#include "service/event.hpp"

namespace numalease::service {

/// Calls back when a CPU goes offline or comes back. Where no udev runs (a container) it is silent, and the next step
/// of any kind sees the change.
class Hotplug {
public:
    Hotplug() = default;
    Hotplug(const Hotplug&) = delete;
    Hotplug& operator=(const Hotplug&) = delete;

    void start(sd_event* event, std::function<void()> changed);

private:
    struct Unref {
        void operator()(sd_device_monitor* monitor) const { sd_device_monitor_unref(monitor); }
    };
    static int on_device(sd_device_monitor* monitor, sd_device* device, void* data);

    std::function<void()> changed_;
    std::unique_ptr<sd_device_monitor, Unref> monitor_;
};

}  // namespace numalease::service
