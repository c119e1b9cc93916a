#include "service/systemd.hpp"

namespace numalease::service::systemd {

namespace {

using model::Errc;
using model::fail;
using model::Result;

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

int append_mask(sd_bus_message* to, const std::string& name, const std::vector<std::uint8_t>& mask) {
    int r = sd_bus_message_open_container(to, 'r', "sv");
    if (r >= 0) r = sd_bus_message_append(to, "s", name.c_str());
    if (r >= 0) r = sd_bus_message_open_container(to, 'v', "ay");
    if (r >= 0) r = sd_bus_message_append_array(to, 'y', mask.data(), mask.size());
    if (r >= 0) r = sd_bus_message_close_container(to);
    return r >= 0 ? sd_bus_message_close_container(to) : r;
}

int append_masks(sd_bus_message* to, const Masks& masks) {
    int r = 0;
    for (const auto& [name, mask] : masks)
        if (r >= 0) r = append_mask(to, name, mask);
    return r;
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

bool is_not_loaded(const model::Error& error) { return error.detail.find("not loaded") != std::string::npos; }

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

Result<bus::Message> get_property(sd_bus* bus, const std::string& path, const char* property, const char* interface) {
    // Services and slices are looked at: a scope is ours, and has no prior.
    sd_bus_message* raw = nullptr;
    int r = sd_bus_message_new_method_call(bus, &raw, kService, path.c_str(), "org.freedesktop.DBus.Properties", "Get");
    Result<bus::Message> call{bus::Message(raw)};
    if (r >= 0) r = sd_bus_message_append(raw, "ss", interface, property);
    return filled(std::move(call), r);
}

Result<std::vector<std::uint8_t>> read_mask(sd_bus_message* reply) {
    const void* data = nullptr;
    std::size_t size = 0;
    int r = sd_bus_message_enter_container(reply, 'v', "ay");
    if (r >= 0) r = sd_bus_message_read_array(reply, 'y', &data, &size);
    if (r < 0) return fail(Errc::io, "systemd answered with something that is no CPU or node mask", -r);
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    return std::vector<std::uint8_t>(bytes, bytes + size);
}

Result<bus::Message> start_scope(sd_bus* bus, const std::string& unit, const model::Lease& lease, int pid) {
    auto call = manager_call(bus, "StartTransientUnit");
    if (!call) return call;
    sd_bus_message* m = call->get();
    const auto description = "numa-lease " + lease.id + ": " + lease.caller.command;
    int r = sd_bus_message_append(m, "ss", unit.c_str(), "fail");
    if (r >= 0) r = sd_bus_message_open_container(m, 'a', "(sv)");
    if (r >= 0)
        r = append_masks(
            m, {{"AllowedCPUs", lease.placement.cpus.bytes()}, {"AllowedMemoryNodes", lease.placement.nodes.bytes()}});
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "Description", "s", description.c_str());
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "CollectMode", "s", "inactive-or-failed");
    if (r >= 0 && !lease.confinement.slice.empty())
        r = sd_bus_message_append(m, "(sv)", "Slice", "s", lease.confinement.slice.c_str());
    // Only into a delegated unit does systemd move a process later (AttachProcessesToUnit); no controller goes with it.
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "DelegateControllers", "as", 0);
    if (r >= 0) r = sd_bus_message_append(m, "(sv)", "PIDs", "au", 1, static_cast<unsigned>(pid));
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

Result<bus::Message> set_properties(sd_bus* bus, const std::string& unit, const Masks& masks) {
    auto call = manager_call(bus, "SetUnitProperties");
    if (!call) return call;
    sd_bus_message* m = call->get();
    int r = sd_bus_message_append(m, "sb", unit.c_str(), 1);
    if (r >= 0) r = sd_bus_message_open_container(m, 'a', "(sv)");
    if (r >= 0) r = append_masks(m, masks);
    if (r >= 0) r = sd_bus_message_close_container(m);
    return filled(std::move(call), r);
}

}  // namespace numalease::service::systemd
