#pragma once

#include <map>
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

/// Values by property, as text; empty: unset, or no limit.
using Settings = std::vector<std::pair<model::UnitProperty, std::string>>;

/// What a unit says of itself.
struct UnitFacts {
    std::map<std::string, std::string> values;  ///< of model::kUnitProperties, as text
    int main_pid = 0;
    std::string sub_state;
    bool has_job = false;       ///< something is queued for it
    bool needs_reload = false;  ///< a file of it changed on disk since systemd read it
};

/// Has the name an owner now? Waits for the bus, 5 s at most.
bool is_there(sd_bus* bus);
/// Without it the manager sends no JobRemoved.
void subscribe(Later& later, sd_bus* bus);

/// A slice is loaded: it needs no file, and may be one that nobody has used yet.
model::Result<bus::Message> get_unit(sd_bus* bus, const std::string& unit);
/// org.freedesktop.systemd1.NoSuchUnit: the answer for a unit that has ended and was forgotten, or has no file.
bool is_not_loaded(const model::Error& error);
/// Properties.GetAll of every interface of a unit's object.
model::Result<bus::Message> get_facts(sd_bus* bus, const std::string& path);
model::Result<UnitFacts> read_facts(sd_bus_message* reply);
/// What a scope is started in, and what bound its process where it was before.
struct Surroundings {
    bool make_slice = false;  ///< together with the scope, with these CPUs; it goes with its last scope
    model::CpuSet slice_cpus;
    std::optional<std::uint64_t> tasks;  ///< processes and threads, as many as the caller could have before
};
/// A scope with the settings of the lease in force before `pid` joins it.
model::Result<bus::Message> start_scope(sd_bus* bus, const std::string& unit, const model::Lease& lease, int pid,
                                        const Surroundings& surroundings);
/// A service in `slice` that has run and has all CPUs set: while it is loaded, systemd keeps the cpuset controller in
/// use there. (A slice would do but below user.slice, where StopWhenUnneeded= of user-.slice.d stops it at once.)
std::string keeper_of(const std::string& slice);
model::Result<bus::Message> start_keeper(sd_bus* bus, const std::string& slice, const std::string& cpus);
model::Result<bus::Message> attach_process(sd_bus* bus, const std::string& unit, int pid);
/// SetUnitProperties, runtime.
model::Result<bus::Message> set_properties(sd_bus* bus, const std::string& unit, const Settings& settings);
/// daemon-reload; the reply comes when it is over.
model::Result<bus::Message> reload(sd_bus* bus);

}  // namespace numalease::service::systemd
