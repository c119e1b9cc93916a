#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/lease.hpp"
#include "service/event.hpp"

/// The calls of org.freedesktop.systemd1 that confinement needs, as messages ready to be sent.
/// Source: org.freedesktop.systemd1(5), systemd.resource-control(5).
namespace numalease::service::systemd {

inline constexpr const char* kService = "org.freedesktop.systemd1";
inline constexpr const char* kPath = "/org/freedesktop/systemd1";
inline constexpr const char* kManager = "org.freedesktop.systemd1.Manager";

using Masks = std::vector<std::pair<std::string, std::vector<std::uint8_t>>>;

/// Has the name an owner now? Waits for the bus.
bool is_there(sd_bus* bus);
/// Without it the manager sends no JobRemoved.
void subscribe(Later& later, sd_bus* bus);

/// A slice is loaded: it needs no file, and may be one that nobody has used yet.
model::Result<bus::Message> get_unit(sd_bus* bus, const std::string& unit);
model::Result<bus::Message> get_property(sd_bus* bus, const std::string& path, const char* property,
                                         const char* interface = "org.freedesktop.systemd1.Service");
/// GetUnit's answer for a unit that has ended and was forgotten.
bool is_not_loaded(const model::Error& error);
/// The `ay` inside the variant that Properties.Get returned.
model::Result<std::vector<std::uint8_t>> read_mask(sd_bus_message* reply);
/// A scope with the CPUs and memory nodes of the lease set before `pid` joins it.
model::Result<bus::Message> start_scope(sd_bus* bus, const std::string& unit, const model::Lease& lease, int pid);
model::Result<bus::Message> attach_process(sd_bus* bus, const std::string& unit, int pid);
/// SetUnitProperties, runtime.
model::Result<bus::Message> set_properties(sd_bus* bus, const std::string& unit, const Masks& masks);

}  // namespace numalease::service::systemd
