#include "service/systemd.hpp"

#include <cerrno>

namespace numalease::service::systemd {

namespace {

using model::Errc;
using model::fail;
using model::Result;

constexpr std::uint64_t kInfinity = ~std::uint64_t{0};  ///< how systemd says "no limit"

Result<bus::Message> manager_call(sd_bus* bus, const char* method) {
    if (bus == nullptr) return fail(Errc::unsupported, "there is no systemd here");
    sd_bus_message* raw = nullptr;
    const int made = sd_bus_message_new_method_call(bus, &raw, kService, kPath, kManager, method);
    if (made < 0) return fail(Errc::io, std::string("cannot call systemd's ") + method, -made);
    return bus::Message(raw);
}

/// The message, or the first error of those that filled it.
Result<bus::Message> filled(Result<bus::Message> message, int appended) {
    if (appended < 0) return fail(Errc::internal, "cannot put together a call to systemd", -appended);
    return message;
}

int append_mask(sd_bus_message* to, const std::string& list, unsigned limit) {
    const auto mask = model::IndexSet::parse_list(list, limit).value_or(model::IndexSet()).bytes();
    int r = sd_bus_message_open_container(to, 'v', "ay");
    if (r >= 0) r = sd_bus_message_append_array(to, 'y', mask.data(), mask.size());
    return r >= 0 ? sd_bus_message_close_container(to) : r;
}

int append_bytes(sd_bus_message* to, const std::string& bytes) {
    const auto limit = model::parse_unsigned(bytes, "bytes", kInfinity).value_or(kInfinity);
    return sd_bus_message_append(to, "v", "t", limit);
}

int append_settings(sd_bus_message* to, const Settings& settings) {
    int r = 0;
    for (const auto& [property, value] : settings) {
        const auto& row = model::row_of(property);
        if (r >= 0) r = sd_bus_message_open_container(to, 'r', "sv");
        if (r >= 0) r = sd_bus_message_append(to, "s", std::string(row.name).c_str());
        if (r >= 0) r = row.mask_limit != 0 ? append_mask(to, value, row.mask_limit) : append_bytes(to, value);
        if (r >= 0) r = sd_bus_message_close_container(to);
    }
    return r;
}

/// The text of a property of the table. Errors: -EBADMSG where systemd says it in another type.
int read_value(sd_bus_message* from, const model::UnitPropertyRow& row, std::string& out) {
    if (row.mask_limit == 0) {
        std::uint64_t bytes = 0;
        const int r = sd_bus_message_read(from, "v", "t", &bytes);
        if (r >= 0 && bytes != kInfinity) out = std::to_string(bytes);
        return r;
    }
    const void* data = nullptr;
    std::size_t size = 0;
    int r = sd_bus_message_enter_container(from, 'v', "ay");
    if (r >= 0) r = sd_bus_message_read_array(from, 'y', &data, &size);
    if (r < 0) return r;
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    out = model::IndexSet::from_bytes({bytes, bytes + size}).text();
    return sd_bus_message_exit_container(from);
}

int read_fact(sd_bus_message* from, std::string_view name, UnitFacts& out) {
    for (const auto& row : model::kUnitProperties)
        if (name == row.name) return read_value(from, row, out.values[std::string(name)]);
    if (name == "MainPID") {
        std::uint32_t pid = 0;
        const int r = sd_bus_message_read(from, "v", "u", &pid);
        out.main_pid = static_cast<int>(pid);
        return r;
    }
    if (name == "SubState") {
        const char* text = nullptr;
        const int r = sd_bus_message_read(from, "v", "s", &text);
        if (r > 0) out.sub_state = text;
        return r;
    }
    if (name == "Job") {
        std::uint32_t id = 0;
        const char* path = nullptr;
        const int r = sd_bus_message_read(from, "v", "(uo)", &id, &path);
        out.has_job = id != 0;
        return r;
    }
    if (name == "NeedDaemonReload") {
        int flag = 0;
        const int r = sd_bus_message_read(from, "v", "b", &flag);
        out.needs_reload = flag != 0;
        return r;
    }
    return sd_bus_message_skip(from, "v");
}

}  // namespace

bool is_there(sd_bus* bus) {
    constexpr std::uint64_t kPatience = 5'000'000;
    sd_bus_message* raw = nullptr;
    int made = sd_bus_message_new_method_call(bus, &raw, "org.freedesktop.DBus", "/org/freedesktop/DBus",
                                              "org.freedesktop.DBus", "NameHasOwner");
    const bus::Message call(raw);
    if (made >= 0) made = sd_bus_message_append(raw, "s", kService);
    sd_bus_message* answer = nullptr;
    if (made >= 0) made = sd_bus_call(bus, raw, kPatience, nullptr, &answer);
    const bus::Message reply(answer);
    int owned = 0;
    return made >= 0 && sd_bus_message_read(answer, "b", &owned) >= 0 && owned != 0;
}

/// sd-bus knows systemd's names: it gives this one ENOENT, and of all of them bus::from_bus makes no_daemon.
bool is_not_loaded(const model::Error& error) { return error.code == Errc::no_daemon && error.err == ENOENT; }

void subscribe(Later& later, sd_bus* bus) {
    auto call = manager_call(bus, "Subscribe");
    if (call) later.call(bus, std::move(*call), 0, [](const Result<sd_bus_message*>&) {});
}

Result<bus::Message> get_unit(sd_bus* bus, const std::string& unit) {
    auto call = manager_call(bus, unit.ends_with(".slice") ? "LoadUnit" : "GetUnit");
    if (!call) return call;
    const int r = sd_bus_message_append(call->get(), "s", unit.c_str());
    return filled(std::move(call), r);
}

Result<bus::Message> get_facts(sd_bus* bus, const std::string& path) {
    sd_bus_message* raw = nullptr;
    int r =
        sd_bus_message_new_method_call(bus, &raw, kService, path.c_str(), "org.freedesktop.DBus.Properties", "GetAll");
    Result<bus::Message> call{bus::Message(raw)};
    if (r >= 0) r = sd_bus_message_append(raw, "s", "");  // whatever kind of unit it is
    return filled(std::move(call), r);
}

Result<UnitFacts> read_facts(sd_bus_message* reply) {
    UnitFacts out;
    int r = sd_bus_message_enter_container(reply, 'a', "{sv}");
    while (r >= 0 && (r = sd_bus_message_enter_container(reply, 'e', "sv")) > 0) {
        const char* name = nullptr;
        r = sd_bus_message_read(reply, "s", &name);
        if (r >= 0) r = read_fact(reply, name, out);
        if (r >= 0) r = sd_bus_message_exit_container(reply);
    }
    if (r < 0) return fail(Errc::io, "systemd described a unit in a way that cannot be read", -r);
    return out;
}

namespace {

/// a(sa(sv)): units that are made in the same job.
int append_slice(sd_bus_message* to, const std::string& slice, const Surroundings& it) {
    if (!it.make_slice) return sd_bus_message_append(to, "a(sa(sv))", 0);
    int r = sd_bus_message_open_container(to, 'a', "(sa(sv))");
    if (r >= 0) r = sd_bus_message_open_container(to, 'r', "sa(sv)");
    if (r >= 0) r = sd_bus_message_append(to, "s", slice.c_str());
    if (r >= 0) r = sd_bus_message_open_container(to, 'a', "(sv)");
    if (r >= 0) r = append_settings(to, {{model::UnitProperty::cpus, it.slice_cpus.text()}});
    if (r >= 0) r = sd_bus_message_append(to, "(sv)", "Description", "s", "CPUs of shielded leases of numa-lease");
    if (r >= 0) r = sd_bus_message_append(to, "(sv)", "StopWhenUnneeded", "b", 1);
    for (int level = 0; level < 3; ++level)
        if (r >= 0) r = sd_bus_message_close_container(to);
    return r;
}

}  // namespace

Result<bus::Message> start_scope(sd_bus* bus, const std::string& unit, const model::Lease& lease, int pid,
                                 const Surroundings& surroundings) {
    auto call = manager_call(bus, "StartTransientUnit");
    if (!call) return call;
    sd_bus_message* m = call->get();
    const auto description = "numa-lease " + lease.id + ": " + lease.caller.command;
    int r = sd_bus_message_append(m, "ss", unit.c_str(), "fail");
    if (r >= 0) r = sd_bus_message_open_container(m, 'a', "(sv)");
    Settings settings;
    for (const auto& it : lease.confinement.settings) settings.emplace_back(it.property, it.value);
    if (r >= 0) r = append_settings(m, settings);
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "Description", "s", description.c_str());
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "CollectMode", "s", "inactive-or-failed");
    if (r >= 0 && !lease.confinement.slice.empty())
        r = sd_bus_message_append(m, "(sv)", "Slice", "s", lease.confinement.slice.c_str());
    // Only into a delegated unit does systemd move a process later (AttachProcessesToUnit); no controller goes with it.
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "DelegateControllers", "as", 0);
    if (r >= 0 && surroundings.tasks) r = sd_bus_message_append(m, "(sv)", "TasksMax", "t", *surroundings.tasks);
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "PIDs", "au", 1, static_cast<unsigned>(pid));
    if (r >= 0) r = sd_bus_message_close_container(m);
    if (r >= 0) r = append_slice(m, lease.confinement.slice, surroundings);
    return filled(std::move(call), r);
}

std::string keeper_of(const std::string& slice) {
    constexpr std::string_view kSuffix = ".slice";
    return "numa-lease-keeper-" + slice.substr(0, slice.size() - kSuffix.size()) + ".service";
}

Result<bus::Message> start_keeper(sd_bus* bus, const std::string& slice, const std::string& cpus) {
    auto call = manager_call(bus, "StartTransientUnit");
    if (!call) return call;
    sd_bus_message* m = call->get();
    int r = sd_bus_message_append(m, "ss", keeper_of(slice).c_str(), "fail");
    if (r >= 0) r = sd_bus_message_open_container(m, 'a', "(sv)");
    if (r >= 0) r = append_settings(m, {{model::UnitProperty::cpus, cpus}});
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "Slice", "s", slice.c_str());
    if (r >= 0)
        r = sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)", "Description", "s",
                                  "numa-lease: keeps the cpuset controller, and with it threads' own affinity", "Type",
                                  "s", "oneshot", "RemainAfterExit", "b", 1, "ExecStart", "a(sasb)", 1, "/bin/true", 1,
                                  "/bin/true", 0, "CollectMode", "s", "inactive-or-failed");
    // It would otherwise hold the user's slice after logout.
    constexpr std::string_view kUser = "user-";
    if (r >= 0 && slice.starts_with(kUser)) {
        const auto manager =
            "user@" + slice.substr(kUser.size(), slice.find_first_of("-.", kUser.size()) - kUser.size()) + ".service";
        r = sd_bus_message_append(m, "(sv)", "PartOf", "as", 1, manager.c_str());
    }
    if (r >= 0) r = sd_bus_message_close_container(m);
    if (r >= 0) r = sd_bus_message_append(m, "a(sa(sv))", 0);
    return filled(std::move(call), r);
}

Result<bus::Message> attach_process(sd_bus* bus, const std::string& unit, int pid) {
    auto call = manager_call(bus, "AttachProcessesToUnit");
    if (!call) return call;
    const int r = sd_bus_message_append(call->get(), "ssau", unit.c_str(), "", 1, static_cast<unsigned>(pid));
    return filled(std::move(call), r);
}

Result<bus::Message> set_properties(sd_bus* bus, const std::string& unit, const Settings& settings) {
    auto call = manager_call(bus, "SetUnitProperties");
    if (!call) return call;
    sd_bus_message* m = call->get();
    int r = sd_bus_message_append(m, "sb", unit.c_str(), 1);
    if (r >= 0) r = sd_bus_message_open_container(m, 'a', "(sv)");
    if (r >= 0) r = append_settings(m, settings);
    if (r >= 0) r = sd_bus_message_close_container(m);
    return filled(std::move(call), r);
}

Result<bus::Message> reload(sd_bus* bus) { return manager_call(bus, "Reload"); }

}  // namespace numalease::service::systemd
