#include "host/topology.hpp"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>

#include "host/devices.hpp"
#include "host/lines.hpp"
#include "host/sysfs.hpp"

namespace numalease::host {

using model::Core;
using model::CpuSet;
using model::Errc;
using model::fail;
using model::Node;
using model::Result;
using model::Topology;

namespace {

struct DestroyTopology {
    void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Hwloc = std::unique_ptr<hwloc_topology, DestroyTopology>;

/// The environment as hwloc may see it while it loads. Any HWLOC_* variable could have a root daemon read another
/// machine or load a plug-in, so none is left; and only by one can hwloc be told of another root (2.x has no call for
/// it), so for a root that is not "/" that one is set, and gone again afterwards.
class HwlocEnvironment {
public:
    explicit HwlocEnvironment(const Root& root) {
        constexpr std::string_view kPrefix = "HWLOC_";
        std::vector<std::string> names;
        for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
            if (const std::string_view text(*entry); text.starts_with(kPrefix))
                names.emplace_back(text.substr(0, text.find('=')));
        for (const auto& name : names) ::unsetenv(name.c_str());
        set_ = !root.is_this_machine();
        if (set_) ::setenv(kRootVariable, root.directory().c_str(), 1);
    }
    HwlocEnvironment(const HwlocEnvironment&) = delete;
    HwlocEnvironment& operator=(const HwlocEnvironment&) = delete;
    ~HwlocEnvironment() {
        if (set_) ::unsetenv(kRootVariable);
    }

private:
    static constexpr const char* kRootVariable = "HWLOC_FSROOT";
    bool set_ = false;
};

Result<Hwloc> load(const Root& root) {
    const HwlocEnvironment environment(root);
    const auto failed = [&] {
        const int err = errno;
        return fail(Errc::io, "cannot read the topology below " + root.directory() + ": " + errno_text(err), err);
    };
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0) return failed();
    Hwloc topology(raw);
    // The kernel's files only: the x86 component would move us over every CPU, the others open GPU drivers.
    for (const char* component : {"x86", "pci", "opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"})
        hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    // Disallowed too: what the daemon's own cpuset leaves out is still there to be leased.
    hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_NO_DISTANCES |
                                      HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS);
    hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(raw) != 0) return failed();
    return topology;
}

/// Socket numbers by hwloc object: the kernel's own, unless it has none (-1 on s390) or uses one twice.
std::map<hwloc_obj_t, unsigned> number_packages(hwloc_topology_t topology) {
    std::map<hwloc_obj_t, unsigned> by_os;
    std::map<hwloc_obj_t, unsigned> by_order;
    std::vector<unsigned> seen;
    bool usable = true;
    hwloc_obj_t package = nullptr;
    while ((package = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PACKAGE, package)) != nullptr) {
        const unsigned os = package->os_index;
        usable = usable && os != HWLOC_UNKNOWN_INDEX && std::find(seen.begin(), seen.end(), os) == seen.end();
        seen.push_back(os);
        by_os[package] = os;
        by_order[package] = package->logical_index;
    }
    return usable ? by_os : by_order;
}

/// The largest cache around a core, else its socket, else the machine.
hwloc_obj_t last_level_of(hwloc_topology_t topology, hwloc_obj_t core) {
    hwloc_obj_t best = nullptr;
    for (auto* up = core; up != nullptr; up = up->parent)
        if (hwloc_obj_type_is_dcache(up->type) != 0) best = up;
    if (best == nullptr) best = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, core);
    return best != nullptr ? best : hwloc_get_root_obj(topology);
}

/// Higher is faster; 0 where all are alike or hwloc cannot rank them.
unsigned efficiency_of(hwloc_topology_t topology, hwloc_obj_t core) {
    const int kind = hwloc_cpukinds_get_by_cpuset(topology, core->cpuset, 0);
    int efficiency = -1;
    if (kind < 0 ||
        hwloc_cpukinds_get_info(topology, static_cast<unsigned>(kind), nullptr, &efficiency, nullptr, nullptr, 0) != 0)
        return 0;
    return efficiency > 0 ? static_cast<unsigned>(efficiency) : 0;
}

/// Cores as hwloc sees them; where it sees none (a kernel that does not say), every thread counts as one.
std::vector<hwloc_obj_t> core_objects(hwloc_topology_t topology) {
    std::vector<hwloc_obj_t> out;
    hwloc_obj_t thread = nullptr;
    while ((thread = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, thread)) != nullptr) {
        auto* core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, thread);
        if (core == nullptr) core = thread;
        if (out.empty() || out.back() != core) out.push_back(core);
    }
    return out;
}

/// The node that lists the CPUs. CPUs whose own node is offline are in none: then the nearest that hwloc names, else
/// the first with CPUs.
Node& node_of(hwloc_obj_t object, const CpuSet& cpus, std::vector<Node>& nodes) {
    const auto near = from_bitmap(object->nodeset, model::kNodeLimit);
    Node* best = nullptr;
    for (auto& node : nodes) {
        if (node.cpus.intersects(cpus)) return node;
        if (node.cpus.empty()) continue;
        if (best == nullptr || (near.contains(node.id) && !near.contains(best->id))) best = &node;
    }
    return best != nullptr ? *best : nodes.front();
}

void add_cores(hwloc_topology_t hwloc, Topology& topology) {
    const auto packages = number_packages(hwloc);
    std::map<hwloc_obj_t, unsigned> caches;
    CpuSet known;
    CpuSet all_in_nodes;
    for (const auto& node : topology.nodes) all_in_nodes |= node.cpus;
    for (auto* object : core_objects(hwloc)) {
        const auto all = from_bitmap(object->complete_cpuset, model::kCpuLimit);
        Core core{.id = static_cast<unsigned>(topology.cores.size())};
        core.cpus = all & topology.online;
        core.offline = all - topology.online;
        if (core.cpus.empty()) continue;
        known |= core.cpus;
        const auto package = packages.find(hwloc_get_ancestor_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, object));
        if (package != packages.end()) core.package = package->second;
        auto& node = node_of(object, core.cpus, topology.nodes);
        core.node = node.id;
        node.cpus |= core.cpus - all_in_nodes;
        const auto next = static_cast<unsigned>(caches.size());
        core.llc = caches.emplace(last_level_of(hwloc, object), next).first->second;
        core.efficiency = efficiency_of(hwloc, object);
        topology.cores.push_back(std::move(core));
    }
    if (const CpuSet unknown = topology.online - known; !unknown.empty())
        topology.contradictions.push_back("CPUs " + unknown.text() + " are online but belong to no core");
}

/// A kernel without NUMA: one node with everything.
Node whole_machine(hwloc_topology_t hwloc, const CpuSet& online) {
    Node node{.cpus = online};
    if (const auto* object = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, 0))
        node.total = object->attr->numanode.local_memory;
    return node;
}

/// Sockets of the nodes: that of their CPUs, else that of the nearest node that has some.
void add_packages(Topology& topology) {
    std::map<unsigned, unsigned> by_node;
    for (const auto& core : topology.cores) by_node.emplace(core.node, core.package);
    for (auto& node : topology.nodes) {
        unsigned nearest = ~0U;
        for (const auto& [other, package] : by_node) {
            const auto away = other == node.id ? 0 : topology.distance_between(node.id, other);
            if (away >= nearest) continue;
            nearest = away;
            node.package = package;
        }
    }
}

}  // namespace

Result<Topology> probe_topology(const Root& root) {
    // Without CPUs below its root hwloc quietly reports those of the machine it runs on.
    if (!root.exists("sys/devices/system/cpu"))
        return fail(Errc::io, root.directory() + ": no sys/devices/system/cpu there, so this is no machine's root");
    auto loaded = load(root);
    if (!loaded) return std::unexpected(loaded.error());
    auto* hwloc = loaded->get();

    Topology topology;
    const auto online = read_cpus(root, "sys/devices/system/cpu/online", "");
    const auto all = from_bitmap(hwloc_get_root_obj(hwloc)->cpuset, model::kCpuLimit);
    topology.online = online ? *online : CpuSet(all);
    if (topology.online.empty()) return fail(Errc::io, "no CPU is online below " + root.directory());
    topology.isolated = read_cpus(root, "sys/devices/system/cpu/isolated", "").value_or(CpuSet{});
    topology.nodes = read_nodes(root, topology.online, topology.contradictions);
    if (topology.nodes.empty()) topology.nodes.push_back(whole_machine(hwloc, topology.online));
    const auto gpu_nodes = read_gpu_nodes(root);
    for (auto& node : topology.nodes)
        if (node.cpus.empty() && gpu_nodes.contains(node.id)) node.kind = model::NodeKind::gpu_memory;
    topology.distance = read_distances(root, topology.nodes);
    add_cores(hwloc, topology);
    add_packages(topology);
    topology.devices = read_devices(root, hwloc, topology.node_ids());
    topology.hugepage_sizes = read_hugepage_sizes(root);
    for (auto& line : find_contradictions(root, topology.online, topology.nodes))
        topology.contradictions.push_back(std::move(line));
    return topology;
}

std::string topology_fingerprint(const Root& root) {
    std::string text;
    for (const char* file : {"cpu/online", "cpu/isolated", "node/online", "node/has_cpu", "node/has_memory"}) {
        const auto content = root.read(std::string("sys/devices/system/") + file);
        text += std::string(file) + '=' + (content ? std::string(model::trim(*content)) : std::string{}) + '\n';
    }
    return text;
}

Result<NodeMemoryReading> parse_node_meminfo(std::string_view text) {
    std::map<std::string_view, model::Bytes> values;
    for (const auto line : lines_of(text)) {
        const auto words = words_of(line);  // "Node", "0", "MemFree:", "3275412", "kB"
        if (words.size() < 4 || words[0] != "Node") continue;
        constexpr auto kMost = ~model::Bytes{0} / model::kKiB;
        if (const auto kib = model::parse_unsigned(words[3], "meminfo", kMost)) values[words[2]] = *kib * model::kKiB;
    }
    if (!values.contains("MemTotal:")) return fail(Errc::io, "no MemTotal in a node's meminfo");
    NodeMemoryReading reading{.total = values["MemTotal:"], .free = values["MemFree:"], .clean_cache = 0};
    const auto cache = values["Active(file):"] + values["Inactive(file):"];
    const auto busy = values["Mapped:"] + values["Dirty:"] + values["Writeback:"];
    reading.clean_cache = cache - std::min(cache, busy);
    return reading;
}

Result<NodeMemoryReading> read_node_memory(const Root& root, unsigned node) {
    const auto text = root.read("sys/devices/system/node/node" + std::to_string(node) + "/meminfo");
    if (!text) return std::unexpected(text.error());
    return parse_node_meminfo(*text);
}

}  // namespace numalease::host
