#include <algorithm>
#include <array>
#include <cstdio>

#include "text/output.hpp"
#include "where/where.hpp"

namespace numalease::client {

namespace {

using model::bytes_text;
using model::Dict;
using model::Value;

constexpr std::size_t kShown = 16;  ///< mappings and files, each

const char* name_of(Kind kind) {
    switch (kind) {
        case Kind::anonymous: return "anonymous";
        case Kind::shared: return "shared";
        case Kind::file: return "file";
        case Kind::hugetlb: return "hugetlb";
    }
    return "";
}

std::string or_dash(Bytes bytes) { return bytes == 0 ? "-" : bytes_text(bytes); }

std::string address_text(std::uint64_t address) {
    std::array<char, 24> text{};
    (void)std::snprintf(text.data(), text.size(), "%llx", static_cast<unsigned long long>(address));
    return text.data();
}

Dict nodes_dict(const PerNode& nodes) {
    Dict out;
    for (const auto& [node, bytes] : nodes) out[std::to_string(node)] = bytes;
    return out;
}

Dict use_dict(const NodeUse& use, Bytes whole) {
    const auto share = whole == 0 ? 0.0 : static_cast<double>(use.total()) / static_cast<double>(whole);
    return {{"anonymous", use.anonymous}, {"shared", use.shared}, {"file", use.file},       {"hugetlb", use.hugetlb},
            {"kv_sized", use.large},      {"total", use.total()}, {"threads", use.threads}, {"share", share}};
}

Value::Dicts large_dicts(const std::vector<Large>& list) {
    Value::Dicts out;
    for (const auto& it : list) {
        Dict dict{{"kind", name_of(it.kind)}, {"bytes", it.size}, {"nodes", nodes_dict(it.nodes)}};
        if (!it.name.empty()) dict["file"] = it.name;
        if (!it.policy.empty()) dict["policy"] = it.policy;
        if (it.pid != 0) {
            dict["pid"] = static_cast<std::uint64_t>(it.pid);
            dict["address"] = address_text(it.start);
        }
        out.push_back(std::move(dict));
    }
    return out;
}

/// Nodes to be shown: what is leased, and what holds anything.
std::map<unsigned, NodeUse> shown_nodes(const Found& found, const Bounds& bounds) {
    std::map<unsigned, NodeUse> out;
    for (const auto node : (bounds.nodes & bounds.machine).items()) out[node];
    for (const auto& [node, use] : found.nodes)
        if (use.total() > 0 || use.threads > 0) out[node] = use;
    return out;
}

NodeUse inside_of(const Found& found, const Bounds& bounds) {
    NodeUse sum;
    for (const auto& [node, use] : found.nodes)
        if (bounds.nodes.contains(node)) sum += use;
    return sum;
}

std::string title(const Found& found, const Bounds& bounds) {
    const auto who = found.processes.size() == 1
                         ? found.processes[0].name + " (pid " + std::to_string(found.processes[0].pid) + ')'
                         : std::to_string(found.processes.size()) + " processes";
    if (bounds.lease.empty()) return who + ", in no lease; it may use " + nodes_text(bounds.nodes);
    return who + " in lease " + bounds.lease + ": " + nodes_text(bounds.nodes) + ", CPUs " + bounds.cpus.text();
}

std::string nodes_table(const Found& found, const Bounds& bounds, std::size_t width) {
    const auto all = found.all();
    Table rows{{"NODE", bounds.lease.empty() ? "ALLOWED" : "LEASED", "ANON", "SHARED", "FILE", "HUGETLB", "KV-SIZED",
                "TOTAL", "SHARE", "THREADS"}};
    const auto add = [&](const std::string& name, const std::string& leased, const NodeUse& use) {
        rows.push_back({name, leased, or_dash(use.anonymous), or_dash(use.shared), or_dash(use.file),
                        or_dash(use.hugetlb), or_dash(use.large), or_dash(use.total()),
                        share_text(use.total(), all.total()), use.threads == 0 ? "-" : std::to_string(use.threads)});
    };
    for (const auto& [node, use] : shown_nodes(found, bounds))
        add(std::to_string(node), bounds.nodes.contains(node) ? "yes" : "no", use);
    add("inside", "", inside_of(found, bounds));
    add("all", "", all);
    return table_text(rows, width);
}

std::string and_more(const std::vector<Large>& list) {
    if (list.size() <= kShown) return "";
    Bytes rest = 0;
    for (std::size_t i = kShown; i < list.size(); ++i) rest += list[i].size;
    return "and " + std::to_string(list.size() - kShown) + " more, " + bytes_text(rest) + " together\n";
}

std::string mappings_table(const Found& found, std::size_t width) {
    if (found.mappings.empty()) return "";
    Table rows{{"PID", "MAPPING", "KIND", "SIZE", "POLICY", "WHERE"}};
    for (std::size_t i = 0; i < std::min(kShown, found.mappings.size()); ++i) {
        const auto& it = found.mappings[i];
        rows.push_back({std::to_string(it.pid), address_text(it.start), name_of(it.kind), bytes_text(it.size),
                        it.policy.empty() ? "-" : it.policy, spread_text(it.nodes)});
    }
    return "KV-sized mappings, of " + bytes_text(found.kv_size) + " and more (neighbours of one policy are one):\n" +
           table_text(rows, width) + and_more(found.mappings);
}

std::string charged_table(const Found& found, std::size_t width) {
    if (found.charged.empty()) return "";
    constexpr std::array<std::pair<const char*, const char*>, 4> kRows{{{"anon", "anonymous"},
                                                                        {"anon_thp", "of it transparent huge"},
                                                                        {"file", "page cache"},
                                                                        {"shmem", "of it shared"}}};
    Table rows{{"CHARGED TO THE CGROUP", "TOTAL", "WHERE"}};
    for (const auto& [name, text] : kRows)
        if (const auto row = found.charged.find(name); row != found.charged.end() && sum_of(row->second) > 0)
            rows.push_back({text, bytes_text(sum_of(row->second)), spread_text(row->second)});
    return rows.size() == 1 ? "" : table_text(rows, width);
}

std::string effort_text(const Found& found) {
    constexpr double kMillion = 1e6;
    const auto time = model::duration_text(model::Micros(
        std::max<std::int64_t>(1000, static_cast<std::int64_t>(found.effort.seconds * kMillion) / 1000 * 1000)));
    if (found.effort.sampled == 0)
        return "every page was looked at: " + bytes_text(found.all().total()) + " in " + time;
    return "sampled: " + std::to_string(found.effort.sampled) + " pages in " + time +
           "; sizes by mapping and node are estimates (--exact looks at every page)";
}

}  // namespace

Dict to_dict(const Found& found, const Bounds& bounds) {
    const auto all = found.all();
    const auto inside = inside_of(found, bounds);
    Value::Dicts nodes;
    for (const auto& [node, use] : shown_nodes(found, bounds)) {
        auto dict = use_dict(use, all.total());
        dict["node"] = node;
        dict["inside"] = bounds.nodes.contains(node);
        nodes.push_back(std::move(dict));
    }
    Value::Dicts processes;
    for (const auto& it : found.processes)
        processes.push_back(
            {{"pid", static_cast<std::uint64_t>(it.pid)}, {"command", it.name}, {"resident", it.resident}});
    Value::Dicts verdict;
    for (const auto& it : judge(found, bounds)) verdict.push_back({{"fine", it.fine}, {"text", it.text}});
    Dict charged;
    for (const auto& [name, row] : found.charged) charged[name] = nodes_dict(row);
    Dict out{{"processes", processes},
             {"bounds", Dict{{"nodes", bounds.nodes.text()}, {"cpus", bounds.cpus.text()}}},
             {"nodes", nodes},
             {"inside", use_dict(inside, all.total())},
             {"all", use_dict(all, all.total())},
             {"kv_size", found.kv_size},
             {"mappings", large_dicts(found.mappings)},
             {"files", large_dicts(found.files)},
             {"swap", found.swap},
             {"threads", found.threads},
             {"threads_astray", found.threads_astray},
             {"cgroup", charged},
             {"sampled", std::uint64_t{found.effort.sampled}},
             {"seconds", found.effort.seconds},
             {"notes", found.notes},
             {"verdict", verdict}};
    if (!bounds.lease.empty()) out["lease"] = bounds.lease;
    if (bounds.verified.at.count() != 0) out["verified"] = to_dict(bounds.verified);
    if (!bounds.model.empty()) out["model"] = bounds.model;
    if (found.transparent_huge) out["transparent_huge"] = *found.transparent_huge;
    return out;
}

std::string where_text(const Found& found, const Bounds& bounds, std::size_t width) {
    auto out = printable(title(found, bounds)) + '\n' + nodes_table(found, bounds, width) +
               mappings_table(found, width) + charged_table(found, width);
    if (found.transparent_huge.value_or(0) > 0)
        out += "transparent huge pages: " + bytes_text(*found.transparent_huge) + " of " +
               bytes_text(found.all().anonymous) + " anonymous\n";
    for (const auto& it : judge(found, bounds)) out += (it.fine ? "ok: " : "amiss: ") + printable(it.text) + '\n';
    if (bounds.verified.at.count() != 0) {
        out += "when it was ready: " + printable(model::verification_text(bounds.verified)) + '\n';
        for (const auto& warning : bounds.verified.warnings) out += "amiss then: " + printable(warning) + '\n';
    }
    for (const auto& note : found.notes) out += "note: " + printable(note) + '\n';
    return out + effort_text(found) + '\n';
}

}  // namespace numalease::client
