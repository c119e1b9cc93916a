#include <algorithm>
#include <optional>
#include <sstream>

#include "client/top.hpp"
#include "model/index_set.hpp"
#include "model/units.hpp"
#include "model/use.hpp"
#include "text/output.hpp"
#include "text/render.hpp"
#include "text/sharing.hpp"

namespace numalease::client {

using model::CpuSet;
using model::get_dict;
using model::get_dicts;
using model::get_number;
using model::get_strings;
using model::get_text;
using model::Micros;

namespace {

constexpr std::uint64_t kTenth = 10;  // of a percent in thousandths

/// One column for each character: of other alphabets nobody knows how wide they are.
std::string plain(std::string_view text) {
    std::string out;
    for (const char c : printable(text))
        if ((static_cast<unsigned char>(c) & 0xc0U) != 0x80) out += static_cast<unsigned char>(c) < 0x80 ? c : '?';
    return out;
}

std::string cell(std::string_view text, std::size_t most) {
    auto out = plain(text);
    if (out.empty()) return "-";
    if (out.size() > most) out = out.substr(0, most - 1) + '+';
    return out;
}

std::string line(std::string_view text, std::size_t width) { return plain(text).substr(0, width); }

std::string percent(std::optional<std::uint64_t> permille) {
    return permille ? std::to_string((*permille + kTenth / 2) / kTenth) + '%' : "-";
}

CpuSet cpus_of(const model::Dict& dict) { return CpuSet::parse(get_text(dict, "cpus")).value_or(CpuSet()); }

bool occupies(const model::Dict& lease) {
    const auto state = get_text(lease, "state");
    return state == "active" || state == "preparing";
}

std::string command_of(const model::Dict& lease) {
    const auto command = get_text(get_dict(lease, "request"), "command");
    return command.empty() ? get_text(get_dict(lease, "caller"), "command") : command;
}

std::string user_of(const model::Dict& lease) { return user_name(get_number(get_dict(lease, "caller"), "uid")); }

std::string per_node_text(const Sight& sight, const std::string& id) {
    std::string out;
    if (const auto found = sight.memory.find(id); found != sight.memory.end())
        for (const auto& [node, bytes] : found->second)
            if (bytes >= model::kMiB)
                out += (out.empty() ? "" : " ") + std::to_string(node) + ':' + model::bytes_text(bytes);
    return out;
}

std::optional<std::uint64_t> busy_of(const Sight& before, const Sight& now, const CpuSet& cpus) {
    std::uint64_t busy = 0;
    std::uint64_t total = 0;
    for (const auto cpu : cpus.items()) {
        const auto from = before.cpus.find(cpu);
        const auto to = now.cpus.find(cpu);
        if (from == before.cpus.end() || to == now.cpus.end() || to->second.total <= from->second.total) continue;
        total += to->second.total - from->second.total;
        busy += to->second.busy > from->second.busy ? to->second.busy - from->second.busy : 0;
    }
    if (total == 0) return std::nullopt;
    return busy * 1000 / total;
}

/// A node as it is now.
struct NodeRow {
    unsigned id = 0;
    unsigned cores = 0;
    unsigned leased = 0;
    std::optional<std::uint64_t> busy;
    NodeMemory memory;
};

std::vector<NodeRow> node_rows(const Sight& before, const Sight& now) {
    CpuSet leased;
    for (const auto& lease : now.leases)
        if (occupies(lease)) leased |= cpus_of(get_dict(lease, "placement"));
    std::vector<NodeRow> out;
    const auto cores = get_dicts(now.topology, "cores");
    for (const auto& node : get_dicts(now.topology, "nodes")) {
        NodeRow row{.id = static_cast<unsigned>(get_number(node, "id")), .busy = busy_of(before, now, cpus_of(node))};
        for (const auto& core : cores) {
            if (get_number(core, "node") != row.id || cpus_of(core).empty()) continue;
            ++row.cores;
            if (cpus_of(core).intersects(leased)) ++row.leased;
        }
        if (const auto memory = now.nodes.find(row.id); memory != now.nodes.end()) row.memory = memory->second;
        out.push_back(row);
    }
    return out;
}

const model::Dict* same_lease(const Sight& sight, const std::string& id) {
    const auto found = std::ranges::find_if(sight.leases, [&](const auto& it) { return get_text(it, "id") == id; });
    return found == sight.leases.end() ? nullptr : &*found;
}

std::optional<std::uint64_t> busy_now(const Sight& before, const model::Dict& lease) {
    const auto* was = same_lease(before, get_text(lease, "id"));
    return was == nullptr ? std::nullopt : busy_between(*was, lease);
}

void add_table(std::vector<std::string>& out, const Table& rows, std::size_t width) {
    std::istringstream text(table_text(rows, width));
    for (std::string row; std::getline(text, row);) out.push_back(row);
}

void add_leases(std::vector<std::string>& out, const Sight& before, const Sight& now, std::size_t width) {
    constexpr std::size_t kId = 6;
    constexpr std::size_t kUser = 8;
    constexpr std::size_t kNodes = 7;
    constexpr std::size_t kMemory = 14;
    constexpr std::size_t kLeft = 9;
    Table rows{{"LEASE", "USER", "STATE", "NODES", "CORES", "BUSY", "LEFT", "MEMORY", "COMMAND"}};
    for (const auto& lease : now.leases) {
        const auto state = get_text(lease, "state");
        if (state == "queued" || state == "ended" || state == "refused") continue;
        const auto id = get_text(lease, "id");
        const auto placement = get_dict(lease, "placement");
        const auto cls = class_text(lease);
        rows.push_back({cell(id, kId), cell(user_of(lease), kUser), lease.contains("parked") ? "parked" : state,
                        cell(get_text(placement, "nodes"), kNodes), std::to_string(get_number(placement, "cores")),
                        percent(busy_now(before, lease)), cell(left_text(lease), kLeft),
                        cell(per_node_text(now, id), kMemory),
                        plain((cls.empty() ? "" : '[' + cls + "] ") + command_of(lease))});
    }
    if (rows.size() > 1)
        add_table(out, rows, width);
    else
        out.emplace_back("no leases");
}

void add_queue(std::vector<std::string>& out, const Sight& now, std::size_t width) {
    unsigned position = 0;
    for (const auto& lease : now.leases) {
        if (get_text(lease, "state") != "queued") continue;
        if (position++ == 0) {
            out.emplace_back();
            out.emplace_back("WAITING");
        }
        const auto request = get_dict(lease, "request");
        const auto place = get_number(lease, "position", position);
        std::string what;
        for (const auto* field : {"cores", "node", "socket", "memory", "gpu", "class"})
            if (const auto value = get_text(request, field); !value.empty() && value != "normal")
                what += std::string(what.empty() ? "" : " ") + field + '=' + value;
        const auto queued = get_number(get_dict(lease, "queued"), "real");
        constexpr std::uint64_t kSecond = 1'000'000;
        const auto age = (now.now > queued ? now.now - queued : 0) / kSecond * kSecond;
        out.push_back(line(std::to_string(place) + ". " + get_text(lease, "id") + ' ' + user_of(lease) + ", since " +
                               model::duration_text(Micros(static_cast<std::int64_t>(age))) + ": " + what + "  " +
                               command_of(lease),
                           width));
        for (const auto& why : get_strings(lease, "in_the_way")) out.push_back(line("   " + why, width));
        if (const auto estimate = get_text(lease, "estimate"); !estimate.empty())
            out.push_back(line("   " + estimate, width));
    }
    if (const auto more = more_waiting_text(now.status, now.leases); !more.empty())
        out.push_back(line(more.substr(0, more.size() - 1), width));
}

}  // namespace

std::optional<std::uint64_t> busy_between(const model::Dict& before, const model::Dict& now) {
    const auto from = get_dict(before, "use");
    const auto to = get_dict(now, "use");
    if (from.empty() || to.empty()) return std::nullopt;
    const auto used = model::since(model::use_from_dict(from), model::use_from_dict(to));
    const auto placement = get_dict(now, "placement");
    const auto cpus = std::max(get_number(placement, "threads"), get_number(placement, "cores"));
    return model::busy_permille(used.cpu, used.at - model::use_from_dict(from).at, static_cast<unsigned>(cpus));
}

std::vector<std::string> top_lines(const Sight& before, const Sight& now, std::size_t width) {
    std::vector<std::string> out;
    if (!now.amiss.empty()) return {line("numa-lease  " + now.clock, width), line(now.amiss, width)};
    const auto counts = get_dict(now.status, "leases");
    const auto mode = get_text(now.status, "mode");
    out.push_back(
        line("numa-lease  " + now.clock + "  " + std::to_string(get_number(counts, "active")) + " active, " +
                 std::to_string(get_number(counts, "queued")) + " waiting  " +
                 (mode == "read-only" ? "no numa-leased runs" : "numa-leased " + get_text(now.status, "version")),
             width));
    out.emplace_back();
    Table nodes{{"NODE", "CORES", "LEASED", "CPU", "MEMORY", "FREE"}};
    for (const auto& row : node_rows(before, now))
        nodes.push_back({std::to_string(row.id), std::to_string(row.cores), std::to_string(row.leased),
                         percent(row.busy), model::bytes_text(row.memory.total), model::bytes_text(row.memory.free)});
    add_table(out, nodes, width);
    out.emplace_back();
    add_leases(out, before, now, width);
    add_queue(out, now, width);
    if (!now.squatters.empty()) {
        out.emplace_back();
        out.emplace_back("WITHOUT A LEASE");
        for (const auto& squatter : squatter_lines(now.squatters)) out.push_back(line(squatter, width));
    }
    return out;
}

model::Dict top_dict(const Sight& before, const Sight& now) {
    model::Value::Dicts nodes;
    for (const auto& row : node_rows(before, now)) {
        nodes.push_back({{"id", row.id},
                         {"cores", row.cores},
                         {"leased", row.leased},
                         {"memory", row.memory.total},
                         {"free", row.memory.free}});
        if (row.busy) nodes.back()["busy_permille"] = *row.busy;
    }
    auto leases = now.leases;
    for (auto& lease : leases) {
        if (const auto busy = busy_now(before, lease)) lease["busy_now_permille"] = *busy;
        if (const auto found = now.memory.find(get_text(lease, "id")); found != now.memory.end()) {
            model::Dict memory;
            for (const auto& [node, bytes] : found->second) memory[std::to_string(node)] = bytes;
            lease["memory"] = memory;
        }
    }
    return {{"daemon", now.status}, {"nodes", nodes}, {"leases", leases}, {"squatters", now.squatters}};
}

std::map<unsigned, CpuTime> parse_cpu_times(std::string_view text) {
    constexpr std::size_t kIdle = 3;
    constexpr std::size_t kWait = 4;
    constexpr std::size_t kCounted = 8;  // guest time is in user time already
    std::map<unsigned, CpuTime> out;
    std::istringstream lines{std::string(text)};
    for (std::string row; std::getline(lines, row);) {
        if (!row.starts_with("cpu")) break;
        std::istringstream words(row);
        std::string name;
        words >> name;
        const auto cpu = model::parse_unsigned(std::string_view(name).substr(3), "cpu", model::kCpuLimit - 1);
        if (!cpu) continue;  // "cpu": all together
        auto& time = out[static_cast<unsigned>(*cpu)];
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < kCounted && words >> value; ++i) {
            time.total += value;
            if (i != kIdle && i != kWait) time.busy += value;
        }
    }
    return out;
}

NodeMemory parse_node_memory(std::string_view text) {
    NodeMemory out;
    std::istringstream words{std::string(text)};
    for (std::string word; words >> word;) {
        auto* target = word == "MemTotal:" ? &out.total : word == "MemFree:" ? &out.free : nullptr;
        if (target != nullptr && words >> *target) *target *= model::kKiB;
    }
    return out;
}

}  // namespace numalease::client
