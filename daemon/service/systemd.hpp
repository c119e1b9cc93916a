#pragma once

#include <optional>
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

model::Result<bus::Message> get_unit(sd_bus* bus, const std::string& unit);
model::Result<bus::Message> get_property(sd_bus* bus, const std::string& path, const char* property);
/// The `ay` inside the variant that Properties.Get returned.
model::Result<std::vector<std::uint8_t>> read_mask(sd_bus_message* reply);
/// What a scope is started in, where it leaves the slice of its caller.
struct Surroundings {
    bool make_slice = false;  ///< together with the scope, with these CPUs; it goes with its last scope
    model::CpuSet slice_cpus;
    std::optional<std::uint64_t> tasks;  ///< as many as the caller could have before
};
/// A scope with the CPUs and memory nodes of the lease set before `pid` joins it.
model::Result<bus::Message> start_scope(sd_bus* bus, const std::string& unit, const model::Lease& lease, int pid,
                                        const Surroundings& surroundings);
model::Result<bus::Message> attach_process(sd_bus* bus, const std::string& unit, int pid);
/// SetUnitProperties, runtime.
model::Result<bus::Message> set_properties(sd_bus* bus, const std::string& unit, const Masks& masks);

}  // namespace numalease::service::systemd
