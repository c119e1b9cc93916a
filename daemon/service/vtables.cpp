#include <string_view>

#include "bus/names.hpp"
#include "service/log.hpp"
#include "service/manager.hpp"
#include "service/options.hpp"
#include "service/reply.hpp"

// What org.numalease1.xml says, for sd-bus: the two are compared by a test.

namespace numalease::service {

using model::Lease;
using model::Result;

namespace {

std::string path_of(const model::LeaseId& id) { return std::string(bus::kLeasePrefix) + '/' + id; }

using Getter = int(sd_bus_message* reply, const Lease& lease);

template <Getter* Get>
int property(sd_bus* /*bus*/, const char* /*path*/, const char* /*interface*/, const char* /*name*/,
             sd_bus_message* reply, void* lease, sd_bus_error* /*error*/) {
    return Get(reply, *static_cast<const Lease*>(lease));
}

int text(sd_bus_message* reply, const std::string& value) { return sd_bus_message_append(reply, "s", value.c_str()); }
int number(sd_bus_message* reply, unsigned value) { return sd_bus_message_append(reply, "u", value); }

std::string gpus_text(const Lease& lease) {
    std::string out;
    for (const auto& gpu : lease.placement.gpus) out += (out.empty() ? "" : ",") + gpu.pci;
    return out;
}

int get_id(sd_bus_message* reply, const Lease& it) { return text(reply, it.id); }
int get_state(sd_bus_message* reply, const Lease& it) { return text(reply, std::string(model::text_of(it.state))); }
int get_reason(sd_bus_message* reply, const Lease& it) { return text(reply, it.reason); }
int get_uid(sd_bus_message* reply, const Lease& it) { return number(reply, it.caller.uid); }
int get_pid(sd_bus_message* reply, const Lease& it) {
    return number(reply, static_cast<unsigned>(it.caller.process.pid));
}
int get_command(sd_bus_message* reply, const Lease& it) {
    return text(reply, it.request.command.empty() ? it.caller.command : it.request.command);
}
int get_cpus(sd_bus_message* reply, const Lease& it) { return text(reply, it.placement.cpus.text()); }
int get_nodes(sd_bus_message* reply, const Lease& it) { return text(reply, it.placement.nodes.text()); }
int get_gpus(sd_bus_message* reply, const Lease& it) { return text(reply, gpus_text(it)); }
int get_cores(sd_bus_message* reply, const Lease& it) { return number(reply, it.placement.cores); }
int get_threads(sd_bus_message* reply, const Lease& it) { return number(reply, it.placement.threads); }
int get_details(sd_bus_message* reply, const Lease& it) {
    const auto appended = bus::append_dict(reply, to_dict(it));
    return appended ? 0 : -ENOMEM;
}

int get_version(sd_bus* /*bus*/, const char* /*path*/, const char* /*interface*/, const char* /*name*/,
                sd_bus_message* reply, void* /*data*/, sd_bus_error* /*error*/) {
    return text(reply, version());
}

constexpr auto kConst = SD_BUS_VTABLE_PROPERTY_CONST;
constexpr auto kChange = SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE;

const sd_bus_vtable kLeaseVtable[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_PROPERTY("Id", "s", property<get_id>, 0, kConst),
    SD_BUS_PROPERTY("State", "s", property<get_state>, 0, kChange),
    SD_BUS_PROPERTY("Reason", "s", property<get_reason>, 0, kChange),
    SD_BUS_PROPERTY("Uid", "u", property<get_uid>, 0, kConst),
    SD_BUS_PROPERTY("Pid", "u", property<get_pid>, 0, kConst),
    SD_BUS_PROPERTY("Command", "s", property<get_command>, 0, kConst),
    SD_BUS_PROPERTY("Cpus", "s", property<get_cpus>, 0, kChange),
    SD_BUS_PROPERTY("Nodes", "s", property<get_nodes>, 0, kChange),
    SD_BUS_PROPERTY("Gpus", "s", property<get_gpus>, 0, kChange),
    SD_BUS_PROPERTY("Cores", "u", property<get_cores>, 0, kChange),
    SD_BUS_PROPERTY("Threads", "u", property<get_threads>, 0, kChange),
    SD_BUS_PROPERTY("Details", "a{sv}", property<get_details>, 0, 0),
    SD_BUS_VTABLE_END,
};

log::Fields lease_fields(const Lease& lease) {
    return {{"LEASE", lease.id},
            {"STATE", std::string(model::text_of(lease.state))},
            {"REASON", lease.reason},
            {"UID", std::to_string(lease.caller.uid)},
            {"PID", std::to_string(lease.caller.process.pid)},
            {"CPUS", lease.placement.cpus.text()},
            {"NODES", lease.placement.nodes.text()},
            {"GPUS", gpus_text(lease)}};
}

/// One event, with what is amiss in its text: an operator looks for that.
void log_verified(const Lease& lease) {
    const auto& it = lease.verified;
    std::string amiss;
    for (const auto& warning : it.warnings) amiss += "; amiss: " + warning;
    auto fields = lease_fields(lease);
    fields.push_back({"INSIDE", std::to_string(it.inside)});
    fields.push_back({"TOTAL", std::to_string(model::sum_of(it.nodes).total())});
    if (it.imbalance_permille) fields.push_back({"IMBALANCE_PERMILLE", std::to_string(*it.imbalance_permille)});
    fields.push_back({"WARNINGS", std::to_string(it.warnings.size())});
    log::event(it.warnings.empty() ? log::Level::info : log::Level::warning, log::kVerified,
               "the memory of lease " + lease.id + ": " + model::verification_text(it) + amiss, fields);
}

}  // namespace

/// The method handlers, which need the manager's private methods.
struct Vtables {
    template <void (Manager::*Method)(const Held&)>
    static int method(sd_bus_message* message, void* data, sd_bus_error* /*error*/) {
        constexpr std::uint64_t kMostUnreadReplies = 64;
        (static_cast<Manager*>(data)->*Method)(hold(message));
        drop_if_deaf(sd_bus_message_get_bus(message), kMostUnreadReplies);
        return 1;  // answered, or will be
    }

    static int find(sd_bus* /*bus*/, const char* path, const char* /*interface*/, void* data, void** found,
                    sd_bus_error* /*error*/) {
        const auto* lease = static_cast<Manager*>(data)->lease_at(path);
        *found = const_cast<Lease*>(lease);  // NOLINT: sd-bus hands it back to the getters, which take it const
        return lease != nullptr ? 1 : 0;
    }

    static int enumerate(sd_bus* /*bus*/, const char* /*prefix*/, void* data, char*** nodes, sd_bus_error* /*error*/) {
        const auto& leases = static_cast<Manager*>(data)->parts_.state().leases;
        auto** out = static_cast<char**>(calloc(leases.size() + 1, sizeof(char*)));  // sd-bus frees it
        if (out == nullptr) return -ENOMEM;
        std::size_t i = 0;
        for (const auto& [id, lease] : leases) out[i++] = strdup(path_of(id).c_str());
        *nodes = out;
        return 0;
    }

    static const sd_bus_vtable* manager();
};

const sd_bus_vtable* Vtables::manager() {
    constexpr auto kAnybody = SD_BUS_VTABLE_UNPRIVILEGED;  // who may do what is decided in the handler
    static const sd_bus_vtable table[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_NAMES("Acquire", "a{sv}", SD_BUS_PARAM(request), "sa{sv}",
                                 SD_BUS_PARAM(id) SD_BUS_PARAM(lease), method<&Manager::acquire>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("Wait", "ss", SD_BUS_PARAM(id) SD_BUS_PARAM(until), "a{sv}", SD_BUS_PARAM(lease),
                                 method<&Manager::wait>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("Join", "s", SD_BUS_PARAM(id), "a{sv}", SD_BUS_PARAM(lease), method<&Manager::join>,
                                 kAnybody),
        SD_BUS_METHOD_WITH_NAMES("Release", "s", SD_BUS_PARAM(id), "", , method<&Manager::release>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("Stop", "st", SD_BUS_PARAM(id) SD_BUS_PARAM(grace_usec), "", , method<&Manager::stop>,
                                 kAnybody),
        SD_BUS_METHOD_WITH_NAMES("Extend", "st", SD_BUS_PARAM(id) SD_BUS_PARAM(time_usec), "a{sv}", SD_BUS_PARAM(lease),
                                 method<&Manager::extend>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("Verify", "s", SD_BUS_PARAM(id), "a{sv}", SD_BUS_PARAM(verified),
                                 method<&Manager::verify>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("Plan", "a{sv}", SD_BUS_PARAM(request), "a{sv}", SD_BUS_PARAM(placement),
                                 method<&Manager::plan>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("ListLeases", "", , "aa{sv}", SD_BUS_PARAM(leases), method<&Manager::list_leases>,
                                 kAnybody),
        SD_BUS_METHOD_WITH_NAMES("ListCurrent", "u", SD_BUS_PARAM(waiting), "aa{sv}", SD_BUS_PARAM(leases),
                                 method<&Manager::list_current>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("GetLease", "s", SD_BUS_PARAM(id), "a{sv}", SD_BUS_PARAM(lease),
                                 method<&Manager::get_lease>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("GetTopology", "", , "a{sv}", SD_BUS_PARAM(topology), method<&Manager::get_topology>,
                                 kAnybody),
        SD_BUS_METHOD_WITH_NAMES("GetKnobs", "", , "aa{sv}", SD_BUS_PARAM(knobs), method<&Manager::get_knobs>,
                                 kAnybody),
        SD_BUS_METHOD_WITH_NAMES("GetStatus", "", , "a{sv}", SD_BUS_PARAM(status), method<&Manager::get_status>,
                                 kAnybody),
        SD_BUS_METHOD_WITH_NAMES("History", "u", SD_BUS_PARAM(max), "aa{sv}", SD_BUS_PARAM(leases),
                                 method<&Manager::history>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("GetSquatters", "", , "aa{sv}", SD_BUS_PARAM(squatters),
                                 method<&Manager::get_squatters>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("Ask", "ss", SD_BUS_PARAM(id) SD_BUS_PARAM(text), "a{sv}", SD_BUS_PARAM(through),
                                 method<&Manager::ask>, kAnybody),
        SD_BUS_METHOD_WITH_NAMES("CacheResidency", "h", SD_BUS_PARAM(file), "a{sv}", SD_BUS_PARAM(residency),
                                 method<&Manager::cache_residency>, kAnybody),
        SD_BUS_SIGNAL_WITH_NAMES("LeaseChanged", "sss", SD_BUS_PARAM(id) SD_BUS_PARAM(state) SD_BUS_PARAM(reason), 0),
        SD_BUS_PROPERTY("Version", "s", get_version, 0, kConst),
        SD_BUS_VTABLE_END,
    };
    return table;
}

Result<void> Manager::attach(sd_bus* connection) {
    int r = sd_bus_add_object_manager(connection, nullptr, bus::kManagerPath);
    if (r >= 0)
        r = sd_bus_add_object_vtable(connection, nullptr, bus::kManagerPath, bus::kManagerInterface, Vtables::manager(),
                                     this);
    if (r >= 0)
        r = sd_bus_add_fallback_vtable(connection, nullptr, bus::kLeasePrefix, bus::kLeaseInterface, kLeaseVtable,
                                       Vtables::find, this);
    if (r >= 0) r = sd_bus_add_node_enumerator(connection, nullptr, bus::kLeasePrefix, Vtables::enumerate, this);
    if (r < 0) return model::fail(model::Errc::io, "cannot serve the object on a connection", -r);
    connections_.insert(connection);
    return {};
}

const Lease* Manager::lease_at(const char* path) const {
    const std::string_view prefix = bus::kLeasePrefix;
    const std::string_view full = path;
    if (!full.starts_with(prefix) || full.size() <= prefix.size() + 1) return nullptr;
    const model::LeaseId id(full.substr(prefix.size() + 1));
    const auto& leases = parts_.state().leases;
    if (const auto found = leases.find(id); found != leases.end()) return &found->second;
    if (removed_from_ == nullptr) return nullptr;
    const auto removed = removed_from_->leases.find(id);
    return removed == removed_from_->leases.end() ? nullptr : &removed->second;
}

// ── After a step ─────────────────────────────────────────────────────────────────────────────────────────────────

void Manager::changed(const core::State& before, const core::State& after, const core::Input& input) {
    forecasts_.clear();
    removed_from_ = &before;
    for (const auto& id : after.leases.changed_since(before.leases)) {
        const auto* was = before.leases.get(id);
        const auto* is = after.leases.get(id);
        if (was == nullptr || is == nullptr || !(*was == *is)) lease_changed(was, is);
    }
    removed_from_ = nullptr;
    if (const auto* done = std::get_if<core::Done>(&input)) answer_join(*done);
}

void Manager::lease_changed(const Lease* before, const Lease* after) {
    const Lease& lease = after != nullptr ? *after : *before;
    const auto path = path_of(lease.id);
    const bool said =
        before == nullptr || after == nullptr || before->state != after->state || before->reason != after->reason;
    constexpr std::uint64_t kMostUnreadSignals = 1024;
    for (auto* connection : connections_) {
        if (before == nullptr) sd_bus_emit_object_added(connection, path.c_str());
        if (after == nullptr) sd_bus_emit_object_removed(connection, path.c_str());
        if (said && after != nullptr)
            sd_bus_emit_signal(connection, bus::kManagerPath, bus::kManagerInterface, bus::kLeaseChanged, "sss",
                               lease.id.c_str(), std::string(model::text_of(lease.state)).c_str(),
                               lease.reason.c_str());
        if (before != nullptr && after != nullptr && (said || !(before->placement == after->placement)))
            sd_bus_emit_properties_changed(connection, path.c_str(), bus::kLeaseInterface, "State", "Reason", "Cpus",
                                           "Nodes", "Gpus", "Cores", "Threads", nullptr);
        drop_if_deaf(connection, kMostUnreadSignals);
    }
    const bool parking =
        before != nullptr && after != nullptr && before->parked.has_value() != after->parked.has_value();
    if (after != nullptr && (before == nullptr || before->state != after->state || parking))
        log::event(log::Level::info, log::kLease,
                   "lease " + lease.id + " is " + (lease.parked ? "parked" : std::string(model::text_of(lease.state))),
                   lease_fields(lease));
    if (before != nullptr && after != nullptr && before->oom_kills != after->oom_kills)
        log::event(log::Level::warning, log::kOutOfMemory, "lease " + lease.id + " " + lease.notes.back(),
                   lease_fields(lease));
    if (before != nullptr && after != nullptr && model::degraded_text(*before) != model::degraded_text(*after)) {
        const auto what = model::degraded_text(lease);
        log::event(what.empty() ? log::Level::info : log::Level::warning, log::kDegraded,
                   "lease " + lease.id + (what.empty() ? " is whole again" : " is degraded: " + what),
                   lease_fields(lease));
    }
    if (after != nullptr && before != nullptr && lease.verified.at != before->verified.at) log_verified(lease);
    answer_waits(lease.id, after);
}

}  // namespace numalease::service
