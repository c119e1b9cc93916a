#include "client/top.hpp"

#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "client/app.hpp"
#include "client/screen.hpp"
#include "text/output.hpp"
#include "text/render.hpp"
#include "where/where_read.hpp"

namespace numalease::client {

using model::get_dict;
using model::get_dicts;
using model::get_number;
using model::get_text;
using model::Micros;

namespace {

constexpr Micros kOnce{500'000};  ///< between the two looks of one that does not stay

std::string file_text(const std::string& path) {
    const std::ifstream file(path);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    return text.str();
}

/// Where its memory is charged: its own cgroup, or that of its unit.
std::string charged_cgroup(const model::Dict& lease) {
    const auto confinement = get_dict(lease, "confinement");
    const auto own = get_text(confinement, "cgroup");
    if (!own.empty()) return own;
    return get_text(confinement, "kind") == "unit" ? get_text(get_dict(lease, "caller"), "cgroup") : std::string();
}

PerNode memory_of(const Machine& machine, const model::Dict& lease) {
    PerNode out;
    for (const auto& [kind, nodes] : read_charged(machine, charged_cgroup(lease)))
        if (kind == "anon" || kind == "file")
            for (const auto& [node, bytes] : nodes) out[node] += bytes;
    return out;
}

void read_kernel(const Machine& machine, Sight& sight) {
    sight.cpus = parse_cpu_times(file_text("/proc/stat"));
    for (const auto& node : get_dicts(sight.topology, "nodes")) {
        const auto id = static_cast<unsigned>(get_number(node, "id"));
        auto& memory = sight.nodes[id];
        memory = parse_node_memory(file_text("/sys/devices/system/node/node" + std::to_string(id) + "/meminfo"));
        if (memory.total == 0) memory.total = get_number(node, "total");
    }
    for (const auto& lease : sight.leases)
        if (get_text(lease, "state") == "active")
            if (auto memory = memory_of(machine, lease); !memory.empty())
                sight.memory[get_text(lease, "id")] = std::move(memory);
}

/// Asks a daemon, and finds one again where the last has gone.
class Looker {
public:
    explicit Looker(const Endpoint& endpoint) : endpoint_(endpoint), machine_(read_machine()) {}

    /// Errors: those of finding a daemon, or its own.
    model::Result<Sight> look() {
        Sight out;
        const auto now = std::chrono::system_clock::now();
        out.now = static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count());
        const auto seconds = std::chrono::system_clock::to_time_t(now);
        std::tm local{};
        localtime_r(&seconds, &local);
        std::array<char, 16> clock{};
        (void)std::strftime(clock.data(), clock.size(), "%H:%M:%S", &local);
        out.clock = clock.data();
        if (auto asked = ask(out); !asked) {
            daemon_.reset();
            return std::unexpected(asked.error());
        }
        read_kernel(machine_, out);
        // One that only reads has seen what there was when it started.
        if (!daemon_->is_daemon()) daemon_.reset();
        return out;
    }

private:
    model::Result<void> ask(Sight& out) {
        if (!daemon_) {
            auto found = reach(endpoint_, Need::looking);
            if (!found) return std::unexpected(found.error());
            daemon_.emplace(std::move(*found));
        }
        out.squatters = daemon_->squatters().value_or(model::Value::Dicts{});  // an older daemon knows of none
        auto status = daemon_->status();
        if (!status) return std::unexpected(status.error());
        auto topology = daemon_->topology();
        if (!topology) return std::unexpected(topology.error());
        auto leases = daemon_->current_leases(kWaitingShown);
        if (!leases) return std::unexpected(leases.error());
        out.status = std::move(*status);
        out.topology = std::move(*topology);
        out.leases = std::move(*leases);
        return {};
    }

    const Endpoint& endpoint_;
    Machine machine_;
    std::optional<Connection> daemon_;
};

struct TopOptions {
    bool once = false;
    std::string interval = "2s";
};

int once(Looker& looker, const Globals& globals, Micros apart) {
    const auto before = looker.look();
    if (!before) return say_failure(before.error());
    std::this_thread::sleep_for(apart);
    const auto now = looker.look();
    if (!now) return say_failure(now.error());
    if (globals.json) return print(json_text(top_dict(*before, *now)));
    constexpr std::size_t kColumns = 80;
    const auto width = terminal_width();
    std::string text;
    for (const auto& line : top_lines(*before, *now, width == 0 ? kColumns : width)) text += line + '\n';
    return print(text);
}

int stay(Looker& looker, Micros interval) {
    auto before = looker.look();  // what keeps us from starting is said where it stays to be read
    if (!before) return say_failure(before.error());
    auto now = *before;
    Screen screen;
    auto time = std::min(interval, kOnce);  // the first rates come soon
    while (true) {
        if (!screen.show(top_lines(*before, now, Screen::size().columns))) return 0;
        const auto event = screen.wait(time);
        if (event == Screen::Event::quit) return 0;
        if (event == Screen::Event::resized) continue;
        time = interval;
        if (now.amiss.empty()) before = now;
        if (auto next = looker.look()) {
            now = std::move(*next);
        } else {
            now = {};
            now.amiss = next.error().detail;
        }
    }
}

int top(const Globals& globals, const TopOptions& options) {
    constexpr Micros kLeast{200'000};
    constexpr Micros kMost{3'600'000'000};
    const auto interval = model::parse_duration(options.interval);
    if (!interval || *interval < kLeast || *interval > kMost)
        return say_failure(
            {model::Errc::invalid_request, "--interval: '" + options.interval + "' is no time from 200ms to 1h", 0});
    Looker looker(globals.endpoint);
    const bool stays = !options.once && !globals.json && isatty(STDOUT_FILENO) != 0;
    return stays ? stay(looker, *interval) : once(looker, globals, std::min(*interval, kOnce));
}

}  // namespace

void add_top(CLI::App& verb, Globals& globals) {
    const auto options = std::make_shared<TopOptions>();
    verb.add_flag("--once", options->once, "print it once; so does --json, and what is no terminal");
    verb.add_option("--interval", options->interval, "between two looks (default 2s); q leaves")->type_name("TIME");
    verb.callback([&globals, options] { globals.go = [&globals, options] { return top(globals, *options); }; });
}

}  // namespace numalease::client
