#include "host/sysfs.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>

#include "host/lines.hpp"
#include "host/topology.hpp"

namespace numalease::host {

using model::CpuSet;
using model::IndexSet;
using model::Node;
using model::NodeSet;

namespace {

constexpr const char* kNodes = "sys/devices/system/node";
constexpr const char* kCpus = "sys/devices/system/cpu";

/// Some dumped trees hold a page of zeros behind the text.
std::string_view first_text(std::string_view text) { return model::trim(text.substr(0, text.find('\0'))); }

std::string node_path(unsigned node, const char* file) {
    return std::string(kNodes) + "/node" + std::to_string(node) + '/' + file;
}

std::string cpu_path(unsigned cpu, const std::string& file) {
    return std::string(kCpus) + "/cpu" + std::to_string(cpu) + '/' + file;
}

/// Numbers N of the entries PREFIXN of a directory.
std::vector<unsigned> numbers_in(const Root& root, const std::string& path, std::string_view prefix, unsigned limit) {
    std::vector<unsigned> numbers;
    for (const auto& name : root.list(path)) {
        if (!name.starts_with(prefix)) continue;
        if (const auto number =
                model::parse_unsigned(std::string_view(name).substr(prefix.size()), "number", limit - 1))
            numbers.push_back(static_cast<unsigned>(*number));
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

/// CPUs that share the cache of the highest level with `cpu`; empty where the kernel does not say.
CpuSet read_last_level(const Root& root, unsigned cpu) {
    constexpr unsigned kMostCaches = 64;
    std::uint64_t highest = 0;
    std::string best;
    for (const auto index : numbers_in(root, cpu_path(cpu, "cache"), "index", kMostCaches)) {
        const auto path = cpu_path(cpu, "cache/index" + std::to_string(index) + '/');
        const auto text = root.read(path + "level");
        const auto level = model::parse_unsigned(first_text(text ? *text : std::string{}), "level", kMostCaches);
        if (!level || *level < highest) continue;
        highest = *level;
        best = path;
    }
    if (best.empty()) return {};
    return read_cpus(root, best + "shared_cpu_list", best + "shared_cpu_map").value_or(CpuSet{});
}

/// The kernel's own map of the CPUs, as far as contradictions can show in it.
struct Map {
    std::map<unsigned, std::string> package;
    std::map<unsigned, unsigned> node;
    std::map<unsigned, CpuSet> siblings;
    std::map<unsigned, CpuSet> last_level;
};

Map read_map(const Root& root, const CpuSet& online, const std::vector<Node>& nodes) {
    Map map;
    for (const auto& node : nodes)
        for (const auto cpu : node.cpus.items()) map.node[cpu] = node.id;
    for (const auto cpu : online.items()) {
        const auto package = root.read(cpu_path(cpu, "topology/physical_package_id"));
        map.package[cpu] = first_text(package ? *package : std::string{});
        auto siblings = read_cpus(root, cpu_path(cpu, "topology/core_cpus_list"), cpu_path(cpu, "topology/core_cpus"));
        if (!siblings)
            siblings = read_cpus(root, cpu_path(cpu, "topology/thread_siblings_list"),
                                 cpu_path(cpu, "topology/thread_siblings"));
        map.siblings[cpu] = siblings.value_or(CpuSet{cpu}) & online;
        map.last_level[cpu] = read_last_level(root, cpu) & online;
    }
    return map;
}

/// Adds what a set of CPUs that should lie in one place says about its places, unless it was said of the same set.
template <class Place>
void check_one_place(const CpuSet& cpus, const std::map<unsigned, Place>& places, const std::string& what,
                     std::vector<std::string>& out) {
    const Place* first = nullptr;
    for (const auto cpu : cpus.items()) {
        const auto found = places.find(cpu);
        if (found == places.end()) continue;
        if (first == nullptr) first = &found->second;
        if (found->second == *first) continue;
        const auto line = "CPUs " + cpus.text() + ' ' + what;
        if (std::find(out.begin(), out.end(), line) == out.end()) out.push_back(line);
        return;
    }
}

}  // namespace

std::optional<IndexSet> parse_mask(std::string_view text, unsigned limit) {
    constexpr unsigned kWordBits = 32;
    IndexSet set;
    unsigned base = 0;
    while (!text.empty()) {
        const auto comma = text.rfind(',');
        const auto word = comma == std::string_view::npos ? text : text.substr(comma + 1);
        std::uint32_t bits = 0;
        const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), bits, 16);
        if (problem != std::errc{} || end != word.data() + word.size()) return std::nullopt;
        for (unsigned bit = 0; bit < kWordBits; ++bit) {
            if ((bits >> bit & 1U) == 0) continue;
            if (base + bit >= limit) return std::nullopt;
            set.add(base + bit);
        }
        base += kWordBits;
        text = comma == std::string_view::npos ? std::string_view{} : text.substr(0, comma);
    }
    return set;
}

std::optional<CpuSet> read_cpus(const Root& root, const std::string& list_path, const std::string& mask_path) {
    if (const auto text = root.read(list_path)) {
        if (auto set = CpuSet::parse(first_text(*text))) return *set;
        return std::nullopt;
    }
    const auto text = root.read(mask_path);
    if (!text) return std::nullopt;
    auto set = parse_mask(first_text(*text), model::kCpuLimit);
    if (!set) return std::nullopt;
    return CpuSet(std::move(*set));
}

std::vector<Node> read_nodes(const Root& root, const CpuSet& online, std::vector<std::string>& contradictions) {
    std::vector<unsigned> ids;
    const auto text = root.read(std::string(kNodes) + "/online");
    const auto listed = text ? NodeSet::parse(first_text(*text)) : model::fail(model::Errc::unsupported, "");
    if (listed)
        ids = listed->items();
    else
        ids = numbers_in(root, kNodes, "node", model::kNodeLimit);

    std::vector<Node> nodes;
    CpuSet claimed;
    for (const auto id : ids) {
        Node node{.id = id};
        CpuSet cpus = read_cpus(root, node_path(id, "cpulist"), node_path(id, "cpumap")).value_or(CpuSet{}) & online;
        if (const CpuSet twice = cpus & claimed; !twice.empty())
            contradictions.push_back("CPUs " + twice.text() + " are in node " + std::to_string(id) +
                                     " and in another node");
        node.cpus = cpus - claimed;
        claimed |= cpus;
        if (const auto memory = read_node_memory(root, id)) node.total = memory->total;
        if (node.cpus.empty()) node.kind = model::NodeKind::memory_only;
        nodes.push_back(std::move(node));
    }
    return nodes;
}

std::vector<std::vector<unsigned>> read_distances(const Root& root, const std::vector<Node>& nodes) {
    std::vector<std::vector<unsigned>> rows;
    for (const auto& node : nodes) {
        const auto text = root.read(node_path(node.id, "distance"));
        if (!text) return {};
        std::vector<unsigned> row;
        for (const auto word : words_of(first_text(*text)))
            if (const auto value = model::parse_unsigned(word, "distance", std::numeric_limits<unsigned>::max()))
                row.push_back(static_cast<unsigned>(*value));
        if (row.size() != nodes.size()) return {};
        rows.push_back(std::move(row));
    }
    return rows;
}

NodeSet read_gpu_nodes(const Root& root) {
    constexpr const char* kGpus = "proc/driver/nvidia/gpus";
    NodeSet nodes;
    for (const auto& gpu : root.list(kGpus)) {
        const auto text = root.read(std::string(kGpus) + '/' + gpu + "/numa_status");
        if (!text) continue;
        // Format: "Node:      255", "Status:    online".
        for (const auto line : lines_of(*text)) {
            const auto words = words_of(line);
            if (words.size() != 2 || words[0] != "Node:") continue;
            if (const auto node = model::parse_unsigned(words[1], "node", model::kNodeLimit - 1))
                nodes.add(static_cast<unsigned>(*node));
        }
    }
    return nodes;
}

std::vector<model::Bytes> read_hugepage_sizes(const Root& root) {
    constexpr std::string_view kPrefix = "hugepages-";
    constexpr std::string_view kSuffix = "kB";
    std::vector<model::Bytes> sizes;
    for (const auto& entry : root.list("sys/kernel/mm/hugepages")) {
        std::string_view name(entry);
        if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
        name.remove_prefix(kPrefix.size());
        name.remove_suffix(kSuffix.size());
        constexpr auto kMost = std::numeric_limits<model::Bytes>::max() / model::kKiB;
        if (const auto kib = model::parse_unsigned(name, "page size", kMost)) sizes.push_back(*kib * model::kKiB);
    }
    std::sort(sizes.begin(), sizes.end());
    return sizes;
}

std::vector<std::string> find_contradictions(const Root& root, const CpuSet& online, const std::vector<Node>& nodes) {
    const auto map = read_map(root, online, nodes);
    std::vector<std::string> out;
    for (const auto& [cpu, siblings] : map.siblings) {
        check_one_place(siblings, map.package, "are threads of one core but on different sockets", out);
        check_one_place(siblings, map.node, "are threads of one core but in different nodes", out);
        for (const auto other : siblings.items())
            if (!map.siblings.at(other).contains(cpu))
                out.push_back("CPU " + std::to_string(cpu) + " calls CPU " + std::to_string(other) +
                              " a thread of its core, but not the other way round");
    }
    for (const auto& [cpu, cpus] : map.last_level)
        check_one_place(cpus, map.package, "share a last-level cache but are on different sockets", out);
    return out;
}

}  // namespace numalease::host
