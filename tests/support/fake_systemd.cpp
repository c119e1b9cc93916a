// Stands in for systemd's manager on a private bus: owns org.freedesktop.systemd1, makes scopes, moves their processes
// between real cgroups, and shows in a fake root the cpuset files and drop-ins that systemd and the kernel would.
//
//     fake_systemd --bus ADDRESS --root FAKE --cpus 0-7 --nodes 0-1 [--delay-ms 20] [--fail UNIT]
//
// As seen with the real one: property changes take effect after the call has returned, and unsetting AllowedCPUs=
// leaves the cgroup as narrow as it was. Prints "ready" once it owns the name. SIGTERM removes the cgroups it made.
//
// org.numalease.Test on the manager's path: AddService(s name, u pid, ay cpus) puts a process into a service of its
// own, as if it had been started so; with `cpus` an administrator has set them with set-property --runtime. Behave(s)
// makes it "refuse" the calls that confine, "fail-job", be "slow" (no job ends before it is told otherwise), be "deaf"
// (properties are taken and nothing follows), "vanish" at the next such call, or be "normal" again. Each such call is
// printed as a line.

#include <signal.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/index_set.hpp"
#include "support/fake_units.hpp"

namespace fs = std::filesystem;
using numalease::model::IndexSet;
using namespace numalease::test;

namespace {

constexpr const char* kPath = "/org/freedesktop/systemd1";
constexpr const char* kManager = "org.freedesktop.systemd1.Manager";

std::string object_path(const std::string& unit) {
    char* path = nullptr;
    sd_bus_path_encode("/org/freedesktop/systemd1/unit", unit.c_str(), &path);
    std::string out = path;
    free(path);
    return out;
}

void job_removed(const std::string& unit, const char* result) {
    const auto job = std::string(kPath) + "/job/" + std::to_string(fake.jobs);
    sd_bus_emit_signal(fake.bus, kPath, kManager, "JobRemoved", "uoss", fake.jobs, job.c_str(), unit.c_str(), result);
}

struct Properties {
    std::map<std::string, Mask> masks;
    std::optional<std::uint64_t> memory_max;
    std::optional<std::uint64_t> tasks_max;
    std::vector<unsigned> pids;
    bool delegate = false;
    std::string slice = "system.slice";
};

int read_value(sd_bus_message* m, const std::string& name, Properties& out) {
    const void* data = nullptr;
    std::size_t size = 0;
    if (name == "AllowedCPUs" || name == "AllowedMemoryNodes") {
        int r = sd_bus_message_enter_container(m, 'v', "ay");
        if (r >= 0) r = sd_bus_message_read_array(m, 'y', &data, &size);
        if (r < 0) return r;
        const auto* bytes = static_cast<const std::uint8_t*>(data);
        out.masks[name] = Mask(bytes, bytes + size);
        return sd_bus_message_exit_container(m);
    }
    if (name == "PIDs") {
        int r = sd_bus_message_enter_container(m, 'v', "au");
        if (r >= 0) r = sd_bus_message_read_array(m, 'u', &data, &size);
        if (r < 0) return r;
        const auto* pids = static_cast<const unsigned*>(data);
        out.pids.assign(pids, pids + size / sizeof(unsigned));
        return sd_bus_message_exit_container(m);
    }
    if (name == "Slice") {
        const char* slice = nullptr;
        const int r = sd_bus_message_read(m, "v", "s", &slice);
        if (r >= 0) out.slice = slice;
        return r;
    }
    if (name == "MemoryMax") return sd_bus_message_read(m, "v", "t", &out.memory_max.emplace());
    if (name == "TasksMax") return sd_bus_message_read(m, "v", "t", &out.tasks_max.emplace());
    if (name == "DelegateControllers") out.delegate = true;
    return sd_bus_message_skip(m, "v");
}

int read_properties(sd_bus_message* m, Properties& out) {
    int r = sd_bus_message_enter_container(m, 'a', "(sv)");
    while (r >= 0 && (r = sd_bus_message_enter_container(m, 'r', "sv")) > 0) {
        const char* name = nullptr;
        r = sd_bus_message_read(m, "s", &name);
        if (r >= 0) r = read_value(m, name, out);
        if (r >= 0) r = sd_bus_message_exit_container(m);
    }
    return r >= 0 ? sd_bus_message_exit_container(m) : r;
}

std::string bytes_text(std::uint64_t bytes) { return bytes + 1 == 0 ? "infinity" : std::to_string(bytes); }

std::string line_of(const Properties& properties) {
    std::string out;
    for (const auto& [name, mask] : properties.masks) out += ' ' + name + '=' + IndexSet::from_bytes(mask).text();
    if (properties.memory_max) out += " MemoryMax=" + bytes_text(*properties.memory_max);
    if (properties.tasks_max) out += " TasksMax=" + bytes_text(*properties.tasks_max);
    for (const auto pid : properties.pids) out += " PID=" + std::to_string(pid);
    return out;
}

/// Prints a call that confines, and misbehaves where it is told to: then no more is done about the call.
bool misbehaves(const std::string& line) {
    std::puts(line.c_str());
    std::fflush(stdout);
    if (fake.behaviour == "vanish") {
        sd_event_exit(fake.event, 0);
        return true;
    }
    return fake.behaviour == "refuse";
}

int refuse(sd_bus_error* error) {
    if (fake.behaviour != "refuse") return 1;  // never answered: it is on its way out
    return sd_bus_error_set(error, SD_BUS_ERROR_ACCESS_DENIED, "refused by the test");
}

int no_such_unit(sd_bus_error* error, const char* name) {
    return sd_bus_error_setf(error, "org.freedesktop.systemd1.NoSuchUnit", "Unit %s not loaded.", name);
}

// ── Methods ──────────────────────────────────────────────────────────────────────────────────────────────────────

int on_subscribe(sd_bus_message* m, void* /*data*/, sd_bus_error* /*error*/) {
    return sd_bus_reply_method_return(m, nullptr);
}

int on_get_unit(sd_bus_message* m, void* /*data*/, sd_bus_error* error) {
    const char* name = nullptr;
    if (const int r = sd_bus_message_read(m, "s", &name); r < 0) return r;
    if (!fake.units.contains(name)) return no_such_unit(error, name);
    return sd_bus_reply_method_return(m, "o", object_path(name).c_str());
}

/// A slice needs no file, and has no cgroup before something runs in it.
int on_load_unit(sd_bus_message* m, void* data, sd_bus_error* error) {
    const char* name = nullptr;
    if (const int r = sd_bus_message_read(m, "s", &name); r < 0) return r;
    const std::string slice = name;
    if (slice.ends_with(".slice") && !fake.units.contains(slice))
        fake.units[slice] = {.name = slice, .cgroup = slice_path(slice)};
    if (const int r = sd_bus_message_rewind(m, 1); r < 0) return r;
    return on_get_unit(m, data, error);
}

int on_get_unit_by_pid(sd_bus_message* m, void* /*data*/, sd_bus_error* error) {
    unsigned pid = 0;
    if (const int r = sd_bus_message_read(m, "u", &pid); r < 0) return r;
    const auto cgroups = get("/proc/" + std::to_string(pid) + "/cgroup");
    for (const auto& [name, unit] : fake.units)
        if (cgroups.find("0::" + unit.cgroup + '\n') != std::string::npos)
            return sd_bus_reply_method_return(m, "o", object_path(name).c_str());
    return no_such_unit(error, std::to_string(pid).c_str());
}

void finish_start(const std::string& name, const Properties& properties) {
    if (fake.behaviour == "slow") return later([name, properties] { finish_start(name, properties); });
    if (fake.behaviour == "fail-job" || (name.starts_with(fake.fail) && !fake.fail.empty()))
        return job_removed(name, "failed");
    auto& unit = add(name, slice_path(properties.slice) + '/' + name);
    unit.masks = properties.masks;
    unit.delegated = properties.delegate;
    bool moved = true;
    for (const auto pid : properties.pids) moved = move(unit, pid) && moved;
    show(unit);
    job_removed(name, moved ? "done" : "failed");
    later([name] {
        if (const auto found = fake.units.find(name); found != fake.units.end()) apply(found->second);
    });
}

int on_start(sd_bus_message* m, void* /*data*/, sd_bus_error* error) {
    const char* raw_name = nullptr;
    const char* mode = nullptr;
    Properties properties;
    int r = sd_bus_message_read(m, "ss", &raw_name, &mode);
    if (r >= 0) r = read_properties(m, properties);
    if (r < 0) return r;
    const std::string name = raw_name;
    if (misbehaves("StartTransientUnit " + name + " in " + properties.slice + line_of(properties)))
        return refuse(error);
    if (fake.units.contains(name))
        return sd_bus_error_setf(error, "org.freedesktop.systemd1.UnitExists", "Unit %s exists already.", raw_name);
    ++fake.jobs;
    later([name, properties] { finish_start(name, properties); });
    return sd_bus_reply_method_return(m, "o", (std::string(kPath) + "/job/" + std::to_string(fake.jobs)).c_str());
}

std::string list_text(const Mask& mask) {
    auto list = IndexSet::from_bytes(mask).text();
    for (char& c : list)
        if (c == ',') c = ' ';
    return list;
}

void write_dropin(const Unit& unit, const std::string& property, const std::string& value) {
    put(fake.root / "run/systemd/system.control" / (unit.name + ".d") / ("50-" + property + ".conf"),
        "# This is a drop-in unit file extension, created via \"systemctl set-property\"\n"
        "# or an equivalent operation. Do not edit.\n" +
            std::string(unit.name.ends_with(".slice") ? "[Slice]\n" : "[Service]\n") + property + '=' + value);
    fake.dropins.insert(unit.name);
}

int on_set_properties(sd_bus_message* m, void* /*data*/, sd_bus_error* error) {
    const char* name = nullptr;
    int runtime = 0;
    Properties properties;
    int r = sd_bus_message_read(m, "sb", &name, &runtime);
    if (r >= 0) r = read_properties(m, properties);
    if (r < 0) return r;
    if (misbehaves(std::string("SetUnitProperties ") + name + (runtime != 0 ? " runtime" : " persistent") +
                   line_of(properties)))
        return refuse(error);
    const auto found = fake.units.find(name);
    if (found == fake.units.end()) return no_such_unit(error, name);
    for (const auto& [property, mask] : properties.masks) {
        found->second.masks[property] = mask;
        write_dropin(found->second, property, list_text(mask));
    }
    if (properties.memory_max) {
        found->second.memory_max = *properties.memory_max;
        write_dropin(found->second, "MemoryMax", bytes_text(*properties.memory_max));
    }
    later([unit = std::string(name)] {
        if (const auto it = fake.units.find(unit); it != fake.units.end()) apply(it->second);
    });
    return sd_bus_reply_method_return(m, nullptr);
}

int on_reload(sd_bus_message* m, void* /*data*/, sd_bus_error* /*error*/) {
    std::puts("Reload");
    std::fflush(stdout);
    fake.dropins.clear();
    return sd_bus_reply_method_return(m, nullptr);
}

int on_attach(sd_bus_message* m, void* /*data*/, sd_bus_error* error) {
    const char* name = nullptr;
    const char* below = nullptr;
    const void* data = nullptr;
    std::size_t size = 0;
    int r = sd_bus_message_read(m, "ss", &name, &below);
    if (r >= 0) r = sd_bus_message_read_array(m, 'u', &data, &size);
    if (r < 0) return r;
    const auto found = fake.units.find(name);
    if (found == fake.units.end()) return no_such_unit(error, name);
    if (!found->second.delegated)
        return sd_bus_error_setf(error, SD_BUS_ERROR_INVALID_ARGS,
                                 "Process migration not available on non-delegated units.");
    const auto* pids = static_cast<const unsigned*>(data);
    for (std::size_t i = 0; i < size / sizeof(unsigned); ++i) move(found->second, pids[i]);
    show(found->second);
    return sd_bus_reply_method_return(m, nullptr);
}

int on_add_service(sd_bus_message* m, void* /*data*/, sd_bus_error* /*error*/) {
    const char* name = nullptr;
    unsigned pid = 0;
    const void* data = nullptr;
    std::size_t size = 0;
    int r = sd_bus_message_read(m, "su", &name, &pid);
    if (r >= 0) r = sd_bus_message_read_array(m, 'y', &data, &size);
    if (r < 0) return r;
    auto& unit = add(name, std::string("/system.slice/") + name);
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    unit.masks["AllowedCPUs"] = Mask(bytes, bytes + size);
    if (size != 0) write_dropin(unit, "AllowedCPUs", list_text(unit.masks["AllowedCPUs"]));
    unit.main_pid = pid;
    if (!move(unit, pid)) return -EIO;
    apply(unit);
    return sd_bus_reply_method_return(m, nullptr);
}

int on_behave(sd_bus_message* m, void* /*data*/, sd_bus_error* /*error*/) {
    const char* how = nullptr;
    if (const int r = sd_bus_message_read(m, "s", &how); r < 0) return r;
    fake.behaviour = how;
    return sd_bus_reply_method_return(m, nullptr);
}

int get_mask(sd_bus* /*bus*/, const char* /*path*/, const char* /*interface*/, const char* property,
             sd_bus_message* reply, void* data, sd_bus_error* /*error*/) {
    const auto& mask = static_cast<Unit*>(data)->masks[property];
    return sd_bus_message_append_array(reply, 'y', mask.data(), mask.size());
}

int get_main_pid(sd_bus* /*bus*/, const char* /*path*/, const char* /*interface*/, const char* /*property*/,
                 sd_bus_message* reply, void* data, sd_bus_error* /*error*/) {
    return sd_bus_message_append(reply, "u", static_cast<Unit*>(data)->main_pid);
}

int get_sub_state(sd_bus* /*bus*/, const char* /*path*/, const char* /*interface*/, const char* /*property*/,
                  sd_bus_message* reply, void* data, sd_bus_error* /*error*/) {
    return sd_bus_message_append(reply, "s", is_populated(*static_cast<Unit*>(data)) ? "running" : "dead");
}

int get_memory_max(sd_bus* /*bus*/, const char* /*path*/, const char* /*interface*/, const char* /*property*/,
                   sd_bus_message* reply, void* data, sd_bus_error* /*error*/) {
    return sd_bus_message_append(reply, "t", static_cast<Unit*>(data)->memory_max);
}

/// A drop-in that was read is gone.
int get_needs_reload(sd_bus* /*bus*/, const char* /*path*/, const char* /*interface*/, const char* /*property*/,
                     sd_bus_message* reply, void* data, sd_bus_error* /*error*/) {
    const auto& name = static_cast<Unit*>(data)->name;
    const bool gone =
        fake.dropins.contains(name) && !fs::exists(fake.root / "run/systemd/system.control" / (name + ".d"));
    return sd_bus_message_append(reply, "b", gone ? 1 : 0);
}

int find_unit(sd_bus* /*bus*/, const char* path, const char* /*interface*/, void* /*data*/, void** found,
              sd_bus_error* /*error*/) {
    char* name = nullptr;
    const int r = sd_bus_path_decode(path, "/org/freedesktop/systemd1/unit", &name);
    if (r <= 0) return r;
    const auto unit = fake.units.find(name);
    free(name);
    if (unit == fake.units.end()) return 0;
    *found = &unit->second;
    return 1;
}

constexpr auto kAnybody = SD_BUS_VTABLE_UNPRIVILEGED;
const sd_bus_vtable kManagerTable[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_METHOD("Subscribe", "", "", on_subscribe, kAnybody),
    SD_BUS_METHOD("GetUnit", "s", "o", on_get_unit, kAnybody),
    SD_BUS_METHOD("LoadUnit", "s", "o", on_load_unit, kAnybody),
    SD_BUS_METHOD("GetUnitByPID", "u", "o", on_get_unit_by_pid, kAnybody),
    SD_BUS_METHOD("StartTransientUnit", "ssa(sv)a(sa(sv))", "o", on_start, kAnybody),
    SD_BUS_METHOD("SetUnitProperties", "sba(sv)", "", on_set_properties, kAnybody),
    SD_BUS_METHOD("Reload", "", "", on_reload, kAnybody),
    SD_BUS_METHOD("AttachProcessesToUnit", "ssau", "", on_attach, kAnybody),
    SD_BUS_SIGNAL("JobRemoved", "uoss", 0),
    SD_BUS_VTABLE_END,
};
const sd_bus_vtable kTestTable[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_METHOD("AddService", "suay", "", on_add_service, kAnybody),
    SD_BUS_METHOD("Behave", "s", "", on_behave, kAnybody),
    SD_BUS_VTABLE_END,
};
const sd_bus_vtable kServiceTable[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_PROPERTY("AllowedCPUs", "ay", get_mask, 0, 0),
    SD_BUS_PROPERTY("AllowedMemoryNodes", "ay", get_mask, 0, 0),
    SD_BUS_PROPERTY("MemoryMax", "t", get_memory_max, 0, 0),
    SD_BUS_PROPERTY("NeedDaemonReload", "b", get_needs_reload, 0, 0),
    SD_BUS_PROPERTY("MainPID", "u", get_main_pid, 0, 0),
    SD_BUS_PROPERTY("SubState", "s", get_sub_state, 0, 0),  // of the Unit interface, which this does not have
    SD_BUS_VTABLE_END,
};

int serve(const std::string& address) {
    int r = sd_bus_new(&fake.bus);
    if (r >= 0) r = sd_bus_set_address(fake.bus, address.c_str());
    if (r >= 0) r = sd_bus_set_bus_client(fake.bus, 1);
    if (r >= 0) r = sd_bus_start(fake.bus);
    if (r >= 0) r = sd_bus_attach_event(fake.bus, fake.event, 0);
    if (r >= 0) r = sd_bus_add_object_vtable(fake.bus, nullptr, kPath, kManager, kManagerTable, nullptr);
    if (r >= 0) r = sd_bus_add_object_vtable(fake.bus, nullptr, kPath, "org.numalease.Test", kTestTable, nullptr);
    if (r >= 0)
        r = sd_bus_add_fallback_vtable(fake.bus, nullptr, "/org/freedesktop/systemd1/unit",
                                       "org.freedesktop.systemd1.Service", kServiceTable, find_unit, nullptr);
    return r >= 0 ? sd_bus_request_name(fake.bus, "org.freedesktop.systemd1", 0) : r;
}

bool read_arguments(int argc, char** argv, std::string& address) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string option = argv[i];
        if (option == "--bus") address = argv[i + 1];
        if (option == "--root") fake.root = argv[i + 1];
        if (option == "--cpus") fake.cpus = argv[i + 1];
        if (option == "--nodes") fake.nodes = argv[i + 1];
        if (option == "--delay-ms") fake.delay_usec = std::stoull(argv[i + 1]) * 1000;
        if (option == "--fail") fake.fail = argv[i + 1];
    }
    for (const char* mount : {"sys/fs/cgroup", "sys/fs/cgroup/unified"})
        if (fs::exists(fs::path("/") / mount / "cgroup.procs") &&
            fs::exists(fs::path("/") / mount / "cgroup.controllers"))
            fake.cgroup2 = mount;
    fake.real = fs::path("/") / fake.cgroup2;
    return !address.empty() && !fake.root.empty() && !fake.cgroup2.empty();
}

}  // namespace

int main(int argc, char** argv) {
    std::string address;
    if (!read_arguments(argc, argv, address)) {
        std::fputs("fake_systemd --bus ADDRESS --root FAKE [--cpus LIST] [--nodes LIST], and a cgroup2 mount\n",
                   stderr);
        return 64;
    }
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_BLOCK, &mask, nullptr);
    if (sd_event_new(&fake.event) < 0 || sd_event_add_signal(fake.event, nullptr, SIGTERM, nullptr, nullptr) < 0)
        return 1;
    if (const int r = serve(address); r < 0) {
        std::fprintf(stderr, "fake_systemd: %s\n", std::strerror(-r));
        return 1;
    }
    fs::create_directories(fake.root / fake.cgroup2);
    std::puts("ready");
    std::fflush(stdout);
    sd_event_loop(fake.event);
    clean_up();
    return 0;
}
