#include "text/render.hpp"

#include <algorithm>
#include <array>
#include <ctime>

#include "model/units.hpp"
#include "text/output.hpp"
#include "text/sharing.hpp"

namespace numalease::client {

using model::get_dict;
using model::get_dicts;
using model::get_number;
using model::get_strings;
using model::get_text;
using model::Value;

namespace {

std::string or_dash(std::string text) { return text.empty() ? "-" : std::move(text); }

bool is_over(const Dict& lease) {
    const auto state = get_text(lease, "state");
    return state == "ended" || state == "refused";
}

std::string command_of(const Dict& lease) {
    const auto command = get_text(get_dict(lease, "request"), "command");
    return command.empty() ? get_text(get_dict(lease, "caller"), "command") : command;
}

/// "3min 2s".
std::string age_text(std::uint64_t at, std::uint64_t now) {
    constexpr std::uint64_t kSecond = 1'000'000;
    const auto age = (now > at ? now - at : 0) / kSecond * kSecond;
    return model::duration_text(model::Micros(static_cast<std::int64_t>(age)));
}

/// How long ago `moment` of the lease was; empty where it has not come.
std::string ago(const Dict& lease, const char* moment, std::uint64_t now) {
    const auto at = get_number(get_dict(lease, moment), "real");
    return at == 0 ? "" : age_text(at, now);
}

std::string state_of(const Dict& lease) { return lease.contains("parked") ? "parked" : get_text(lease, "state"); }

/// "in 24s it ends …": of a lease that nobody holds; empty for any other.
std::string parked_text(const Dict& lease, std::uint64_t now) {
    if (!lease.contains("parked")) return "";
    constexpr std::int64_t kDefaultGrace = 30'000'000;
    const auto asked = get_text(get_dict(lease, "request"), "grace");
    const auto grace = model::parse_duration(asked).value_or(model::Micros(kDefaultGrace));
    const auto end = get_number(get_dict(lease, "parked"), "real") + static_cast<std::uint64_t>(grace.count());
    constexpr std::uint64_t kSecond = 1'000'000;
    const auto left = (end > now ? end - now : 0) / kSecond * kSecond;
    const auto seconds = static_cast<std::time_t>(end / kSecond);
    std::tm local{};
    localtime_r(&seconds, &local);
    std::array<char, 16> clock{};
    (void)std::strftime(clock.data(), clock.size(), "%H:%M:%S", &local);
    return "parked until " + std::string(clock.data()) + " (" +
           model::duration_text(model::Micros(static_cast<std::int64_t>(left))) + ')';
}

std::string since(const Dict& lease, std::uint64_t now) {
    auto started = ago(lease, "started", now);
    return started.empty() ? ago(lease, "queued", now) : started;
}

/// "active for 9d 3h, 2% busy; waited 12min for CPUs".
std::string state_text(const Dict& lease, std::uint64_t now) {
    auto out = get_text(lease, "state");
    const auto age = ago(lease, "started", now);
    if (out == "active" && !age.empty()) out += " for " + age;
    const auto use = use_text(lease);
    return use.empty() ? out : out + ", " + use;
}

void add_lines(std::string& out, const std::string& title, const Value::Strings& lines) {
    for (const auto& line : lines) out += title + printable(line) + '\n';
}

std::string joined(const Value::Strings& words) {
    std::string out;
    for (const auto& word : words) out += (out.empty() ? "" : ", ") + word;
    return out;
}

std::string plural(std::uint64_t count, const std::string& noun) {
    return std::to_string(count) + ' ' + noun + (count == 1 ? "" : "s");
}

std::string knob_line(const Dict& knob) {
    const auto name = get_text(knob, "knob");
    const auto wanted = get_text(knob, "wanted");
    const auto got = get_text(knob, "got");
    const auto prior = get_text(knob, "prior");
    const auto note = get_text(knob, "note");
    std::string out = name;
    if (name.starts_with("hugepages"))
        out += ": " + or_dash(got) + " of " + wanted + " pages";
    else if (!wanted.empty())
        out +=
            ": " + (got.empty() ? "wanted " + wanted : got) + (prior.empty() || prior == got ? "" : ", was " + prior);
    if (!got.empty() && !wanted.empty() && got != wanted && !name.starts_with("hugepages")) out += ", wanted " + wanted;
    return note.empty() ? out : out + " (" + note + ')';
}

/// "0000:81:00.0, 0000:c1:00.0"; empty for none.
std::string gpus_of(const Dict& placement) {
    Value::Strings out;
    for (const auto& gpu : get_dicts(placement, "gpus")) out.push_back(get_text(gpu, "pci"));
    return joined(out);
}

std::string where(const Dict& placement) {
    const auto gpus = gpus_of(placement);
    return "CPUs " + or_dash(get_text(placement, "cpus")) + ", nodes " + or_dash(get_text(placement, "nodes")) + " (" +
           plural(get_number(placement, "cores"), "core") + ", " + plural(get_number(placement, "threads"), "thread") +
           " for the engine)" + (gpus.empty() ? "" : ", GPU " + gpus);
}

std::string how_confined(const Dict& confinement) {
    const auto kind = get_text(confinement, "kind");
    const auto why = get_text(confinement, "why");
    std::string out = "confined by " + or_dash(kind);
    if (kind == "none" || kind.empty()) out = "not confined";
    if (const auto unit = get_text(confinement, "unit"); !unit.empty()) out += ' ' + unit;
    if (const auto cpus = get_text(confinement, "effective_cpus"); !cpus.empty()) {
        out += ", in force: CPUs " + cpus;
        if (const auto nodes = get_text(confinement, "effective_nodes"); !nodes.empty()) out += ", nodes " + nodes;
    }
    for (const auto& setting : get_dicts(confinement, "settings"))
        if (const auto bytes = model::parse_bytes(get_text(setting, "value"));
            get_text(setting, "property") == "MemoryMax" && bytes)
            out += ", memory at most " + model::bytes_text(*bytes);
    const auto shield = get_dict(confinement, "shield");
    if (get_flag(shield, "in_force")) out += ", shielded by the partition " + get_text(shield, "cgroup");
    return why.empty() ? out : out + " (" + why + ')';
}

/// "4-5", "4-5 shielded".
std::string cpus_of(const Dict& lease) {
    const auto cpus = or_dash(get_text(get_dict(lease, "placement"), "cpus"));
    const bool shielded = get_flag(get_dict(get_dict(lease, "confinement"), "shield"), "in_force");
    return shielded && !is_over(lease) ? cpus + " shielded" : cpus;
}

}  // namespace

std::string more_waiting_text(const Dict& status, const Value::Dicts& leases) {
    const auto shown = static_cast<std::uint64_t>(
        std::ranges::count_if(leases, [](const Dict& lease) { return get_text(lease, "state") == "queued"; }));
    const auto waiting = get_number(get_dict(status, "leases"), "queued");
    return waiting <= shown ? std::string()
                            : std::to_string(waiting - shown) + " more wait; numa-leasectl list --all shows them\n";
}

std::string leases_text(const Value::Dicts& leases, bool all, std::uint64_t now, std::size_t width) {
    Value::Dicts shown;
    for (const auto& lease : leases)
        if (all || !is_over(lease)) shown.push_back(lease);
    if (shown.empty()) return "no leases\n";
    const bool classes = std::ranges::any_of(shown, [](const Dict& lease) { return !class_text(lease).empty(); });
    // A column that few machines need.
    const bool gpus =
        std::ranges::any_of(shown, [](const Dict& lease) { return !gpus_of(get_dict(lease, "placement")).empty(); });
    constexpr std::ptrdiff_t kGpus = 5;
    Table rows{{"ID", "STATE", "USER", "CPUS", "NODES", "THREADS", "BUSY", "SINCE", "LEFT"}};
    if (gpus) rows[0].insert(rows[0].begin() + kGpus, "GPUS");
    if (classes) rows[0].emplace_back("CLASS");
    rows[0].emplace_back("COMMAND");
    for (const auto& lease : shown) {
        const auto placement = get_dict(lease, "placement");
        const auto threads = get_number(placement, "threads");
        rows.push_back({get_text(lease, "id"), state_of(lease), user_name(get_number(get_dict(lease, "caller"), "uid")),
                        cpus_of(lease), or_dash(get_text(placement, "nodes")),
                        threads == 0 ? "-" : std::to_string(threads), busy_text(lease), or_dash(since(lease, now)),
                        left_text(lease)});
        if (gpus) rows.back().insert(rows.back().begin() + kGpus, or_dash(gpus_of(placement)));
        if (classes) rows.back().push_back(or_dash(class_text(lease)));
        rows.back().push_back(command_of(lease));
    }
    auto out = table_text(rows, width);
    for (const auto& lease : leases)
        if (!is_over(lease)) {
            add_lines(out, get_text(lease, "id") + " waits: ", get_strings(lease, "in_the_way"));
            if (const auto line = line_text(lease); !line.empty())
                out += printable(get_text(lease, "id") + " waits: " + line) + '\n';
            if (lease.contains("parked"))
                out += printable(get_text(lease, "id") + " is " + parked_text(lease, now)) + '\n';
        }
    for (const auto& lease : leases)
        if (const auto degraded = get_text(lease, "degraded"); !degraded.empty())
            out += printable(get_text(lease, "id") + " is degraded: " + degraded) + '\n';
    for (const auto& lease : leases)
        if (!is_over(lease))
            for (const auto& warning : get_strings(get_dict(lease, "verified"), "warnings"))
                out += printable(get_text(lease, "id") + " when it was ready: " + warning) + '\n';
    return out;
}

std::string lease_text(const Dict& lease, std::uint64_t now) {
    const auto caller = get_dict(lease, "caller");
    Table rows{{"lease", get_text(lease, "id")},
               {"state", lease.contains("parked") ? parked_text(lease, now) : state_text(lease, now)},
               {"reason", or_dash(get_text(lease, "reason"))},
               {"command", or_dash(command_of(lease))},
               {"user", user_name(get_number(caller, "uid"))},
               {"queued", or_dash(ago(lease, "queued", now)) + " ago"}};
    if (const auto started = ago(lease, "started", now); !started.empty())
        rows.push_back({"started", started + " ago"});
    if (const auto ended = ago(lease, "ended", now); !ended.empty()) rows.push_back({"ended", ended + " ago"});
    if (const auto placement = get_dict(lease, "placement"); !get_text(placement, "cpus").empty()) {
        rows.push_back({"place", where(placement)});
        for (const auto& why : get_strings(placement, "why")) rows.push_back({"", why});
        for (const auto& gpu : get_dicts(placement, "gpus"))
            rows.push_back({"gpu", get_text(gpu, "pci") + ", " + or_dash(get_text(gpu, "name")) + ", " +
                                       or_dash(get_text(gpu, "uuid"))});
        rows.push_back({"confinement", how_confined(get_dict(lease, "confinement"))});
    }
    if (const auto degraded = get_text(lease, "degraded"); !degraded.empty()) rows.push_back({"degraded", degraded});
    std::string pids;
    for (const auto& holder : get_dicts(lease, "holders"))
        pids += (pids.empty() ? "" : ", ") + std::to_string(get_number(holder, "pid"));
    rows.push_back({"processes", or_dash(pids)});
    for (const auto& knob : get_dicts(lease, "knobs")) rows.push_back({"knob", knob_line(knob)});
    for (const auto& [field, value] : get_dict(lease, "request"))
        if (field != "command") rows.push_back({"asked", field + '=' + get_text(get_dict(lease, "request"), field)});
    for (const auto& line : get_strings(lease, "in_the_way")) rows.push_back({"in the way", line});
    if (const auto line = line_text(lease); !line.empty()) rows.push_back({"waits", line});
    if (lease.contains("left_usec")) rows.push_back({"time left", left_text(lease)});
    if (lease.contains("verified")) {
        const auto verified = get_dict(lease, "verified");
        rows.push_back({"verified", age_text(get_number(verified, "at"), now) + " ago: " + get_text(verified, "text")});
        for (const auto& warning : get_strings(verified, "warnings")) rows.push_back({"amiss then", warning});
    }
    for (const auto& note : get_strings(lease, "notes")) rows.push_back({"note", note});
    return table_text(rows, 0);
}

std::vector<std::string> grant_lines(const Dict& lease) {
    const auto id = get_text(lease, "id") + ": ";
    std::vector<std::string> out{id + where(get_dict(lease, "placement")) + ", " +
                                 how_confined(get_dict(lease, "confinement"))};
    for (const auto& knob : get_dicts(lease, "knobs")) out.push_back(id + knob_line(knob));
    for (const auto& note : get_strings(lease, "notes")) out.push_back(id + note);
    return out;
}

std::string progress_line(const Dict& lease) {
    const auto state = get_text(lease, "state");
    auto out = get_text(lease, "id") + " is " + state;
    if (state == "preparing") return out + " (" + get_text(lease, "stage") + ')';
    auto why = joined(get_strings(lease, "in_the_way"));
    if (why.empty()) why = get_text(lease, "reason");
    if (const auto turn = line_text(lease); !turn.empty()) why += (why.empty() ? "" : "; ") + turn;
    return why.empty() ? out : out + ": " + why;
}

namespace {

/// Where the site says something: how the queue is served, and where limits are from.
std::string configuration_text(const Dict& status) {
    const auto file = get_text(status, "configuration");
    if (file.empty()) return {};
    const auto time = [](const Dict& dict, const char* key) {
        return model::duration_text(model::Micros(static_cast<std::int64_t>(get_number(dict, key))));
    };
    const auto scheduling = get_dict(status, "scheduling");
    const auto classes = get_dict(scheduling, "classes");
    std::string shown;
    for (const auto& [name, value] : classes) {
        const auto one = get_dict(classes, name);
        shown += ", " + name + " has priority " + std::to_string(get_number(one, "priority"));
        if (one.contains("time")) shown += " for at most " + time(one, "time");
    }
    return printable("scheduling: half-life " + time(scheduling, "half_life") + ", aging " + time(scheduling, "aging") +
                     shown + "; limits: from " + file) +
           '\n';
}

}  // namespace

std::string status_text(const Dict& status, const Value::Dicts& leases, const Value::Dicts& knobs, std::uint64_t now,
                        std::size_t width) {
    const auto mode = get_text(status, "mode");
    std::string out = mode == "read-only" ? "no numa-leased runs\n"
                                          : "numa-leased " + printable(get_text(status, "version")) + ", pid " +
                                                std::to_string(get_number(status, "pid")) +
                                                (mode.empty() ? "" : ", " + printable(mode)) + '\n';
    out += leases_text(leases, false, now, width);
    for (const auto& knob : knobs) {
        const auto holders = get_strings(knob, "held_by");
        const auto stuck = get_text(knob, "stuck");
        if (holders.empty() && stuck.empty()) continue;
        out += "off its prior: " + printable(get_text(knob, "knob") + " is " + get_text(knob, "value") + ", was " +
                                             or_dash(get_text(knob, "prior")) + ", for " + or_dash(joined(holders)));
        out += stuck.empty() ? "\n" : printable("; " + stuck) + '\n';
    }
    if (const auto offline = get_text(status, "offline_cpus"); !offline.empty())
        out += "offline CPUs: " + printable(offline) + '\n';
    if (const auto rivals = get_strings(status, "rivals"); !rivals.empty())
        out += "also tuning this machine: " + printable(joined(rivals)) + '\n';
    out += configuration_text(status);
    add_lines(out, "degraded: ", get_strings(status, "degraded"));
    return out;
}

std::string topology_text(const Dict& topology, std::size_t width) {
    const auto nodes = get_dicts(topology, "nodes");
    const auto cores = get_dicts(topology, "cores");
    Table rows{{"NODE", "SOCKET", "KIND", "MEMORY", "CORES", "CPUS", "DISTANCES"}};
    for (const auto& node : nodes) {
        const auto id = get_number(node, "id");
        const auto count =
            std::ranges::count_if(cores, [&](const Dict& core) { return get_number(core, "node") == id; });
        std::string distances;
        for (const auto& distance : get_strings(node, "distances"))
            distances += (distances.empty() ? "" : " ") + distance;
        rows.push_back({std::to_string(id), std::to_string(get_number(node, "socket")), get_text(node, "kind"),
                        model::bytes_text(get_number(node, "total")), std::to_string(count),
                        or_dash(get_text(node, "cpus")), or_dash(distances)});
    }
    auto out = table_text(rows, width);
    std::string offline;
    for (const auto& core : cores)
        if (const auto cpus = get_text(core, "offline"); !cpus.empty()) offline += (offline.empty() ? "" : ",") + cpus;
    if (!offline.empty()) out += "offline CPUs: " + offline + '\n';
    if (const auto isolated = get_text(topology, "isolated"); !isolated.empty())
        out += "isolated CPUs: " + isolated + '\n';
    if (const auto sizes = get_strings(topology, "hugepage_sizes"); !sizes.empty())
        out += "huge pages: " + joined(sizes) + '\n';
    if (const auto devices = get_dicts(topology, "devices"); !devices.empty()) {
        const bool gpus =
            std::ranges::any_of(devices, [](const Dict& device) { return get_text(device, "kind") == "gpu"; });
        Table list{{"DEVICE", "PCI", "NODES", "NAME"}};
        if (gpus) list[0].insert(list[0].end(), {"DRIVER", "UUID"});
        unsigned number = 0;
        for (const auto& device : devices) {
            const bool gpu = get_text(device, "kind") == "gpu";
            list.push_back({get_text(device, "kind") + (gpu ? ':' + std::to_string(number++) : ""),
                            or_dash(get_text(device, "pci")), or_dash(get_text(device, "nodes")),
                            get_text(device, "name")});
            if (gpu)
                list.back().insert(list.back().end(),
                                   {or_dash(get_text(device, "driver")), or_dash(get_text(device, "uuid"))});
        }
        out += table_text(list, width);
    }
    add_lines(out, "contradiction: ", get_strings(topology, "contradictions"));
    if (const auto note = one_node_note(topology); !note.empty()) out += note + '\n';
    return out;
}

std::string knobs_text(const Value::Dicts& knobs, std::size_t width) {
    Table rows{{"KNOB", "VALUE", "PRIOR", "HELD BY", "NOTE"}};
    Value::Strings unsupported;
    for (const auto& knob : knobs) {
        if (knob.contains("unsupported")) {
            unsupported.push_back(get_text(knob, "knob"));
            continue;
        }
        auto note = get_text(knob, "stuck");
        if (note.empty() && knob.contains("free"))
            note = std::to_string(get_number(knob, "free")) + " free, " + std::to_string(get_number(knob, "surplus")) +
                   " surplus";
        rows.push_back({get_text(knob, "knob"), or_dash(get_text(knob, "value")), or_dash(get_text(knob, "prior")),
                        or_dash(joined(get_strings(knob, "held_by"))), note});
    }
    auto out = table_text(rows, width);
    if (!unsupported.empty()) out += "not on this kernel: " + printable(joined(unsupported)) + '\n';
    return out;
}

std::string paste_line(const Adapted& adapted) {
    if (adapted.argv.empty()) return "";
    std::string out;
    for (const auto& [name, value] : adapted.env)
        if (!name.starts_with("NUMA_LEASE_")) out += name + '=' + shell_word(value) + ' ';
    return out + shell_line(adapted.argv);
}

std::string plan_text(const Dict& placement, const Dict& request, const Adapted& adapted) {
    std::string out = where(placement) + '\n';
    add_lines(out, "  because ", get_strings(placement, "why"));
    add_lines(out, "  runner-up: ", get_strings(placement, "runners_up"));
    add_lines(out, "  in the way: ", get_strings(placement, "in_the_way"));
    for (const auto& [field, value] : request)
        if (field != "command" && field != "wait" && field != "required")
            out += "  asked: " + printable(field + '=' + get_text(request, field)) + '\n';
    if (!adapted.told.empty()) out += printable(adapted.told) + '\n';
    add_lines(out, "warning: ", adapted.warnings);
    if (const auto line = paste_line(adapted); !line.empty()) out += "command: " + printable(line) + '\n';
    return out;
}

std::string one_node_note(const Dict& topology) {
    return get_dicts(topology, "nodes").size() == 1
               ? "one node: interleave and balancing do nothing here; the gain is threads and exclusivity"
               : "";
}

}  // namespace numalease::client
