#pragma once

#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

/// The units of fake_systemd: real cgroups with real processes, and what systemd and the kernel would show of them in a
/// fake root.
namespace numalease::test {

using Mask = std::vector<std::uint8_t>;

struct Unit {
    std::string name;
    std::string cgroup;  // "/user.slice/user-0.slice/numalease-c1.scope"
    unsigned main_pid = 0;
    bool delegated = false;
    std::map<std::string, Mask> masks;
    std::uint64_t memory_max = ~std::uint64_t{0};
    std::map<std::string, std::string> effective;  // file name → text
    sd_event_source* watch = nullptr;
};

struct Fake {
    sd_event* event = nullptr;
    sd_bus* bus = nullptr;
    std::filesystem::path root;
    std::filesystem::path real;  // where the unified hierarchy is mounted
    std::string cgroup2;         // the same below `root`
    std::string cpus = "0-7";
    std::string nodes = "0";
    std::uint64_t delay_usec = 20'000;
    std::string fail;
    std::string behaviour = "normal";
    std::map<std::string, Unit> units;
    std::set<std::string> dropins;  ///< units whose runtime drop-ins were read
    std::uint32_t jobs = 0;
};

/// Of the one process that this is.
extern Fake fake;

/// Writes a file and the folders above it; reads one, empty where there is none.
void put(const std::filesystem::path& file, const std::string& text);
std::string get(const std::filesystem::path& file);
/// "user-1000.slice" is below "user.slice": every dash nests.
std::string slice_path(const std::string& slice);
/// In the hierarchy that is mounted.
std::filesystem::path real_path(const Unit& unit);
bool is_populated(const Unit& unit);
/// Shows in the fake root who is inside, and what is in force.
void show(const Unit& unit);
/// What was set is in force from now on.
void apply(Unit& unit);
/// Moves a process in; true where the kernel agreed.
bool move(const Unit& unit, unsigned pid);
Unit& add(const std::string& name, const std::string& cgroup);
/// Runs `done` after the delay with which systemd's work becomes visible.
void later(std::function<void()> done);
/// Gives every process back to the root of the hierarchy and removes what was made.
void clean_up();

}  // namespace numalease::test
