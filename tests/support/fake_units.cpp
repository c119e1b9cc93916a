#include "support/fake_units.hpp"

#include <sys/inotify.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "model/index_set.hpp"

namespace numalease::test {

namespace fs = std::filesystem;
using model::IndexSet;

Fake fake;

namespace {

fs::path shown(const Unit& unit) { return fs::path(fake.root / fake.cgroup2).concat(unit.cgroup); }

int on_events(sd_event_source* /*source*/, const inotify_event* /*event*/, void* data) {
    auto& unit = *static_cast<Unit*>(data);
    if (is_populated(unit)) {
        show(unit);
        return 0;
    }
    put(shown(unit) / "cgroup.events", "populated 0\nfrozen 0");
    std::ofstream(shown(unit) / "cgroup.procs", std::ios::trunc);
    if (!unit.name.ends_with(".scope")) return 0;
    fs::remove_all(shown(unit));  // collected, as a scope is
    rmdir(real_path(unit).c_str());
    sd_event_source_disable_unref(unit.watch);
    fake.units.erase(unit.name);
    return 0;
}

}  // namespace

void put(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::trunc) << text << '\n';
}

std::string get(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
}

std::string slice_path(const std::string& slice) {
    std::string path;
    for (auto dash = slice.find('-'); dash != std::string::npos; dash = slice.find('-', dash + 1))
        path += '/' + slice.substr(0, dash) + ".slice";
    return path + '/' + slice;
}

fs::path real_path(const Unit& unit) { return fs::path(fake.real).concat(unit.cgroup); }

bool is_populated(const Unit& unit) {
    return get(real_path(unit) / "cgroup.events").find("populated 1") != std::string::npos;
}

void show(const Unit& unit) {
    for (const auto& [file, text] : unit.effective) put(shown(unit) / file, text);
    const auto procs = get(real_path(unit) / "cgroup.procs");
    std::ofstream(shown(unit) / "cgroup.procs", std::ios::trunc) << procs;
    put(shown(unit) / "cgroup.events", is_populated(unit) ? "populated 1\nfrozen 0" : "populated 0\nfrozen 0");
}

void apply(Unit& unit) {
    if (fake.behaviour == "deaf") return show(unit);
    // What is unset stays as it was: see the head of fake_systemd.cpp.
    if (const auto& mask = unit.masks["AllowedCPUs"]; !mask.empty())
        unit.effective["cpuset.cpus.effective"] = IndexSet::from_bytes(mask).text();
    if (const auto& mask = unit.masks["AllowedMemoryNodes"]; !mask.empty())
        unit.effective["cpuset.mems.effective"] = IndexSet::from_bytes(mask).text();
    unit.effective.try_emplace("cpuset.cpus.effective", fake.cpus);
    unit.effective.try_emplace("cpuset.mems.effective", fake.nodes);
    // A test may have made the unit a large one.
    if (const auto memory = shown(unit) / "memory.current"; !fs::exists(memory)) put(memory, "1048576");
    show(unit);
}

bool move(const Unit& unit, unsigned pid) {
    std::error_code error;
    fs::create_directories(real_path(unit), error);
    std::ofstream file(real_path(unit) / "cgroup.procs");
    file << pid << std::flush;
    return file.good();
}

Unit& add(const std::string& name, const std::string& cgroup) {
    auto& unit = fake.units[name];
    unit.name = name;
    unit.cgroup = cgroup;
    std::error_code error;
    fs::create_directories(real_path(unit), error);
    if (unit.watch == nullptr)
        sd_event_add_inotify(fake.event, &unit.watch, (real_path(unit) / "cgroup.events").c_str(), IN_MODIFY, on_events,
                             &unit);
    return unit;
}

void later(std::function<void()> done) {
    auto* kept = new std::function<void()>(std::move(done));
    sd_event_add_time_relative(
        fake.event, nullptr, CLOCK_MONOTONIC, fake.delay_usec, 1000,
        [](sd_event_source*, std::uint64_t, void* data) {
            auto* it = static_cast<std::function<void()>*>(data);
            (*it)();
            delete it;
            return 0;
        },
        kept);
}

void clean_up() {
    for (auto& [name, unit] : fake.units) {
        std::istringstream pids(get(real_path(unit) / "cgroup.procs"));
        for (std::string pid; pids >> pid;) std::ofstream(fake.real / "cgroup.procs") << pid << std::flush;
        for (auto path = real_path(unit); path != fake.real; path = path.parent_path())
            if (rmdir(path.c_str()) != 0) break;
    }
}

}  // namespace numalease::test
