#include "client/doctor.hpp"

#include <grp.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "client/app.hpp"
#include "text/output.hpp"
#include "text/sharing.hpp"

namespace numalease::client {

using model::Bytes;
using model::bytes_text;
using model::Dict;
using model::get_dicts;
using model::get_number;
using model::get_strings;
using model::get_text;

namespace {

constexpr const char* kGroup = "numa-lease";

using Findings = std::vector<Finding>;

void look_at_daemon(const Examined& examined, Findings& out) {
    const auto& status = examined.status;
    if (get_text(status, "mode") == "read-only")
        out.push_back({"no numa-leased runs: only root can lease, and each command for itself",
                       "systemctl enable --now numa-leased"});
    for (const auto& note : get_strings(status, "degraded")) out.push_back({note, ""});
    const auto confinement = get_strings(status, "confinement");
    if (get_text(status, "mode") == "daemon" && std::ranges::find(confinement, "scope") == confinement.end())
        out.push_back(
            {"the daemon does not reach systemd: leases are held by affinity, which an engine that sets its "
             "own leaves",
             "systemctl status dbus"});
    if (!examined.may_lease)
        out.push_back({"you are not in the group " + examined.group +
                           ": you may look, and are asked for a password or "
                           "refused when you lease",
                       "as root: adduser $USER " + examined.group});
    for (const auto& rival : get_strings(status, "rivals"))
        out.push_back({rival + " tunes this machine, too: what a lease sets it may set back, and the other way round",
                       "systemctl disable --now " + rival});
}

void look_at_nodes(const Dict& topology, Findings& out) {
    std::map<std::uint64_t, Bytes> memory;  // of nodes that have some
    std::set<std::uint64_t> sockets;
    std::set<std::uint64_t> with_cores;
    for (const auto& core : get_dicts(topology, "cores")) {
        with_cores.insert(get_number(core, "node"));
        sockets.insert(get_number(core, "socket"));
    }
    const auto nodes = get_dicts(topology, "nodes");
    for (const auto& node : nodes) {
        const auto id = get_number(node, "id");
        const auto total = get_number(node, "total");
        const bool has_cores = with_cores.contains(id);
        if (total == 0 && has_cores)
            out.push_back(
                {"node " + std::to_string(id) + " has CPUs and no memory: all that its cores use is on another",
                 "put memory modules into its slots"});
        if (total != 0 && has_cores) memory[id] = total;
    }
    if (sockets.size() > nodes.size())
        out.push_back({std::to_string(sockets.size()) + " sockets and " + std::to_string(nodes.size()) +
                           " node: the firmware spreads every page over the sockets, so that nothing can be local",
                       "switch off node interleaving (NPS0) in the firmware's set-up"});
    if (memory.empty()) return;
    const auto [least, most] = std::ranges::minmax_element(memory, {}, &std::pair<const std::uint64_t, Bytes>::second);
    constexpr Bytes kTwice = 2;
    if (most->second >= kTwice * least->second)
        out.push_back({"node " + std::to_string(most->first) + " has " + bytes_text(most->second) + " and node " +
                           std::to_string(least->first) + " " + bytes_text(least->second) +
                           ": what is interleaved evenly ends where the smaller one is full",
                       "--mempolicy weighted, or memory modules in the free slots"});
    for (const auto& line : get_strings(topology, "contradictions")) out.push_back({line, ""});
}

void look_at_cpus_and_devices(const Examined& examined, Findings& out) {
    if (const auto offline = get_text(examined.status, "offline_cpus"); !offline.empty())
        out.push_back({"CPUs " + offline + " are offline", "as root: echo 1 > /sys/devices/system/cpu/cpuN/online"});
    if (const auto isolated = get_text(examined.topology, "isolated"); !isolated.empty())
        out.push_back({"CPUs " + isolated + " are isolated by isolcpus=: they are leased to --isolated only", ""});
    unsigned number = 0;
    const bool several = get_dicts(examined.topology, "nodes").size() > 1;
    for (const auto& device : get_dicts(examined.topology, "devices")) {
        if (get_text(device, "kind") != "gpu") continue;
        const auto name = "gpu:" + std::to_string(number++);
        if (several && get_text(device, "nodes").empty())
            out.push_back({"of " + name + " (" + get_text(device, "pci") +
                               ") the firmware does not say on which node it is: it is taken to be on one by turns",
                           "a newer firmware, or --node"});
    }
}

/// Settings that somebody made for good, and that every other program feels, too.
void look_at_knobs(const Examined& examined, Findings& out) {
    const bool several = get_dicts(examined.topology, "nodes").size() > 1;
    for (const auto& knob : examined.knobs) {
        const auto name = get_text(knob, "knob");
        const auto value = get_text(knob, "value");
        if (const auto stuck = get_text(knob, "stuck"); !stuck.empty()) out.push_back({name + ": " + stuck, ""});
        if (value.empty() || !get_strings(knob, "held_by").empty()) continue;
        if (name == "numa_balancing" && value == "0" && several)
            out.push_back(
                {"kernel.numa_balancing is 0 and no lease wants that: programs without a lease stay where their "
                 "memory is not",
                 "sysctl kernel.numa_balancing=1, and look for it in /etc/sysctl.d"});
        if (name == "zone_reclaim_mode" && value != "0")
            out.push_back({"vm.zone_reclaim_mode is " + value +
                               " and no lease wants that: a full node drops its page cache, models too, before it uses "
                               "another",
                           "sysctl vm.zone_reclaim_mode=0, and look for it in /etc/sysctl.d"});
        if (knob.contains("free") && value != "0")
            out.push_back({value + " huge pages are reserved outside of any lease (" + name + "), " +
                               std::to_string(get_number(knob, "free")) + " of them free: nothing else can use them",
                           "look for vm.nr_hugepages in /etc/sysctl.d and on the kernel's command line"});
    }
    for (const auto& line : squatter_lines(examined.squatters)) out.push_back({line, "--shield keeps everybody away"});
}

bool is_in(const char* group) {
    const auto* entry = getgrnam(group);
    if (geteuid() == 0 || entry == nullptr) return true;  // without the group there is no rule for it
    std::array<gid_t, 256> own{};
    const int count = getgroups(static_cast<int>(own.size()), own.data());
    return count < 0 || getegid() == entry->gr_gid ||
           std::find(own.begin(), own.begin() + count, entry->gr_gid) != own.begin() + count;
}

int doctor(const Globals& globals) {
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return say_failure(daemon.error());
    auto status = daemon->status();
    if (!status) return say_failure(status.error());
    auto topology = daemon->topology();
    if (!topology) return say_failure(topology.error());
    auto knobs = daemon->knobs();
    if (!knobs) return say_failure(knobs.error());
    const auto findings = diagnose({.status = std::move(*status),
                                    .topology = std::move(*topology),
                                    .knobs = std::move(*knobs),
                                    .squatters = daemon->squatters().value_or(model::Value::Dicts{}),
                                    .may_lease = is_in(kGroup),
                                    .group = kGroup});
    std::string text;
    model::Value::Dicts list;
    for (const auto& it : findings) {
        text += printable(it.what) + '\n';
        if (!it.way_out.empty()) text += "    " + printable(it.way_out) + '\n';
        list.push_back({{"what", it.what}, {"way_out", it.way_out}});
    }
    const int failed = print(globals.json ? json_text(list) : findings.empty() ? "nothing is amiss\n" : text);
    return failed != 0 ? failed : findings.empty() ? 0 : 1;
}

}  // namespace

std::vector<Finding> diagnose(const Examined& examined) {
    Findings out;
    look_at_daemon(examined, out);
    look_at_nodes(examined.topology, out);
    look_at_cpus_and_devices(examined, out);
    look_at_knobs(examined, out);
    return out;
}

void add_doctor(CLI::App& verb, Globals& globals) {
    verb.callback([&globals] { globals.go = [&globals] { return doctor(globals); }; });
}

}  // namespace numalease::client
