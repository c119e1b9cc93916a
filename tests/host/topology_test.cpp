#include "host/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "host/sysfs.hpp"
#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::CpuSet;
using model::NodeKind;
using model::Topology;
using test::FakeRoot;
using test::TempDir;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NodeMeminfo, CountsOnlyPagesThatCanGoAtOnceAsCleanCache) {
    const auto reading = parse_node_meminfo(
        "Node 0 MemTotal:        8000 kB\nNode 0 MemFree:         1000 kB\nNode 0 Active(file):     500 kB\n"
        "Node 0 Inactive(file):   700 kB\nNode 0 Dirty:             50 kB\nNode 0 Writeback:         10 kB\n"
        "Node 0 Mapped:           140 kB\nNode 0 HugePages_Total:     0\n");
    ASSERT_TRUE(reading);
    EXPECT_EQ(reading->total, 8000 * model::kKiB);
    EXPECT_EQ(reading->free, 1000 * model::kKiB);
    EXPECT_EQ(reading->clean_cache, 1000 * model::kKiB);
}

TEST(NodeMeminfo, NeverGoesBelowZero) {
    const auto reading = parse_node_meminfo(
        "Node 3 MemTotal: 8000 kB\nNode 3 MemFree: 10 kB\nNode 3 Active(file): 5 kB\nNode 3 Mapped: 400 kB\n");
    ASSERT_TRUE(reading);
    EXPECT_EQ(reading->clean_cache, 0U);
}

TEST(NodeMeminfo, RefusesTextThatIsNone) {
    EXPECT_FALSE(parse_node_meminfo(""));
    EXPECT_FALSE(parse_node_meminfo("Node 0 MemTotal: many kB\n"));
    EXPECT_FALSE(parse_node_meminfo("Node 0 MemTotal: 99999999999999999999 kB\n"));
}

TEST(CpuMask, ReadsWordsFromTheRight) {
    EXPECT_EQ(parse_mask("00000001,0000000f", 64).value(), (model::IndexSet{0, 1, 2, 3, 32}));
    EXPECT_EQ(parse_mask("f0", 64).value(), (model::IndexSet{4, 5, 6, 7}));
    EXPECT_FALSE(parse_mask("x", 64));
    EXPECT_FALSE(parse_mask("1,00000000,00000000", 64));
    EXPECT_FALSE(parse_mask("1ffffffff", 64));
}

/// Two sockets that each have one core of two threads.
FakeRoot two_sockets() {
    FakeRoot fake{{"sys/devices/system/cpu/online", "0-3\n"},
                  {"sys/devices/system/cpu/present", "0-3\n"},
                  {"sys/devices/system/cpu/possible", "0-3\n"},
                  {"sys/devices/system/node/online", "0-1\n"},
                  {"sys/devices/system/node/node0/cpulist", "0-1\n"},
                  {"sys/devices/system/node/node0/cpumap", "3\n"},
                  {"sys/devices/system/node/node0/distance", "10 21\n"},
                  {"sys/devices/system/node/node1/cpulist", "2-3\n"},
                  {"sys/devices/system/node/node1/cpumap", "c\n"},
                  {"sys/devices/system/node/node1/distance", "21 10\n"},
                  {"sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 512 kB\n"},
                  {"sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 2048 kB\nNode 1 MemFree: 512 kB\n"},
                  {"proc/meminfo", "MemTotal: 3072 kB\n"},
                  {"proc/cpuinfo", "processor\t: 0\n"}};
    for (unsigned cpu = 0; cpu < 4; ++cpu) {
        const auto path = "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        const bool second = cpu >= 2;
        fake.set(path + "physical_package_id", second ? "1\n" : "0\n");
        fake.set(path + "core_id", "0\n");
        for (const char* list : {"thread_siblings_list", "core_cpus_list", "core_siblings_list", "package_cpus_list"})
            fake.set(path + list, second ? "2-3\n" : "0-1\n");
        for (const char* mask : {"thread_siblings", "core_cpus", "core_siblings", "package_cpus"})
            fake.set(path + mask, second ? "c\n" : "3\n");
    }
    return fake;
}

TEST(Probe, ReadsCoresNodesAndDistances) {
    const FakeRoot fake = two_sockets();
    const auto topology = probe_topology(fake.root());
    ASSERT_TRUE(topology) << topology.error().detail;
    ASSERT_EQ(topology->cores.size(), 2U);
    EXPECT_EQ(topology->cores[1].cpus, (CpuSet{2, 3}));
    EXPECT_EQ(topology->cores[1].package, 1U);
    EXPECT_EQ(topology->cores[1].node, 1U);
    EXPECT_NE(topology->cores[0].llc, topology->cores[1].llc);
    EXPECT_EQ(topology->distance_between(0, 1), 21U);
    EXPECT_EQ(topology->nodes[1].total, 2048 * model::kKiB);
    EXPECT_TRUE(topology->contradictions.empty());
}

TEST(Probe, NamesACoreOnTwoSockets) {
    const FakeRoot fake = two_sockets();
    fake.set("sys/devices/system/cpu/cpu1/topology/physical_package_id", "1\n");
    EXPECT_THAT(find_contradictions(fake.root(), CpuSet{0, 1, 2, 3}, {}),
                Contains("CPUs 0-1 are threads of one core but on different sockets"));
}

TEST(Probe, NamesACoreInTwoNodes) {
    const FakeRoot fake = two_sockets();
    fake.set("sys/devices/system/node/node0/cpulist", "0\n");
    fake.set("sys/devices/system/node/node1/cpulist", "1-3\n");
    std::vector<std::string> contradictions;
    const auto nodes = read_nodes(fake.root(), CpuSet{0, 1, 2, 3}, contradictions);
    EXPECT_THAT(find_contradictions(fake.root(), CpuSet{0, 1, 2, 3}, nodes),
                Contains("CPUs 0-1 are threads of one core but in different nodes"));
}

TEST(Probe, NamesACpuInTwoNodes) {
    const FakeRoot fake = two_sockets();
    fake.set("sys/devices/system/node/node1/cpulist", "1-3\n");
    std::vector<std::string> contradictions;
    const auto nodes = read_nodes(fake.root(), CpuSet{0, 1, 2, 3}, contradictions);
    EXPECT_THAT(contradictions, Contains("CPUs 1 are in node 1 and in another node"));
    EXPECT_EQ(nodes[1].cpus, (CpuSet{2, 3})) << "a CPU counts once";
}

TEST(Probe, NamesACacheThatTwoSocketsShare) {
    const FakeRoot fake = two_sockets();
    for (const char* cpu : {"0", "1", "2", "3"}) {
        const auto path = std::string("sys/devices/system/cpu/cpu") + cpu + "/cache/index3/";
        fake.set(path + "level", "3\n");
        fake.set(path + "shared_cpu_list", "0-3\n");
    }
    EXPECT_THAT(find_contradictions(fake.root(), CpuSet{0, 1, 2, 3}, {}),
                Contains("CPUs 0-3 share a last-level cache but are on different sockets"));
}

TEST(Probe, NamesSiblingsThatDoNotKnowEachOther) {
    const FakeRoot fake = two_sockets();
    fake.set("sys/devices/system/cpu/cpu1/topology/core_cpus_list", "1\n");
    EXPECT_THAT(find_contradictions(fake.root(), CpuSet{0, 1, 2, 3}, {}),
                Contains(HasSubstr("CPU 0 calls CPU 1 a thread of its core")));
}

TEST(Probe, IsNotLedAstrayByTheEnvironment) {
    const FakeRoot fake = two_sockets();
    ::setenv("HWLOC_SYNTHETIC", "node:4 core:4 pu:1", 1);
    ::setenv("HWLOC_FSROOT", "/nowhere", 1);
    ::setenv("HWLOC_XMLFILE", "/nowhere.xml", 1);
    const auto topology = probe_topology(fake.root());
    ASSERT_TRUE(topology);
    EXPECT_EQ(topology->online, (CpuSet{0, 1, 2, 3}));
    EXPECT_EQ(topology->cores.size(), 2U);
    EXPECT_EQ(::getenv("HWLOC_SYNTHETIC"), nullptr);
    EXPECT_EQ(::getenv("HWLOC_FSROOT"), nullptr) << "nothing of ours stays behind";
}

TEST(Probe, ReadsThisMachine) {
    const auto root = Root::open("/");
    ASSERT_TRUE(root);
    const auto topology = probe_topology(*root);
    ASSERT_TRUE(topology) << topology.error().detail;
    CpuSet in_cores;
    CpuSet in_nodes;
    for (const auto& core : topology->cores) in_cores |= core.cpus;
    for (const auto& node : topology->nodes) in_nodes |= node.cpus;
    EXPECT_EQ(in_cores, topology->online);
    EXPECT_EQ(in_nodes, topology->online);
}

TEST(Fingerprint, ChangesWhenACpuGoesOffline) {
    const FakeRoot fake = two_sockets();
    const auto before = topology_fingerprint(fake.root());
    EXPECT_EQ(topology_fingerprint(fake.root()), before);
    fake.set("sys/devices/system/cpu/online", "0-2\n");
    EXPECT_NE(topology_fingerprint(fake.root()), before);
}

// Dumps of real machines. Each is unpacked once: the larger ones hold ten thousand files.

class Dump {
public:
    explicit Dump(const std::string& name) {
        const std::filesystem::path archive = std::filesystem::path(NUMALEASE_MACHINES) / (name + ".tar.bz2");
        if (!std::filesystem::exists(archive)) return;
        const auto command = "tar xf '" + archive.string() + "' -C '" + directory_.text() + '\'';
        if (std::system(command.c_str()) != 0) return;
        // "NAME/sys", or "NAME/fsroot/sys" where the dump holds what CPUID says too.
        for (const auto& top : std::filesystem::directory_iterator(directory_.path()))
            for (const auto& root : {top.path(), top.path() / "fsroot"})
                if (std::filesystem::is_directory(root / "sys")) root_ = root.string();
    }
    [[nodiscard]] bool here() const { return !root_.empty(); }
    [[nodiscard]] model::Result<Topology> probe() const { return probe_topology(*Root::open(root_)); }

private:
    TempDir directory_;
    std::string root_;
};

/// What is to be seen in a dump.
struct Expected {
    std::string dump;
    std::string online;
    std::string nodes;
    std::size_t cores = 0;
    std::size_t packages = 0;
    std::string hugepages;
    void (*also)(const Topology&) = [](const Topology& topology) { EXPECT_THAT(topology.contradictions, IsEmpty()); };
};

void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.dump; }

class Machines : public ::testing::TestWithParam<Expected> {};

/// Every online CPU is in exactly one core and in exactly one node.
void expect_whole(const Topology& topology) {
    CpuSet in_cores;
    for (const auto& core : topology.cores) {
        EXPECT_FALSE(in_cores.intersects(core.cpus)) << core.cpus.text();
        in_cores |= core.cpus;
        ASSERT_NE(topology.node(core.node), nullptr);
        EXPECT_TRUE(topology.node(core.node)->cpus.intersects(core.cpus));
    }
    EXPECT_EQ(in_cores, topology.online);
    CpuSet in_nodes;
    for (const auto& node : topology.nodes) {
        EXPECT_FALSE(in_nodes.intersects(node.cpus)) << node.cpus.text();
        in_nodes |= node.cpus;
        EXPECT_GT(node.total, 0U) << node.id;
        EXPECT_EQ(node.cpus.empty(), node.kind != NodeKind::dram) << node.id;
    }
    EXPECT_EQ(in_nodes, topology.online);
}

TEST_P(Machines, AreReadAsTheyAre) {
    const Dump dump(GetParam().dump);
    if (!dump.here()) GTEST_SKIP() << "no dumps of machines in " NUMALEASE_MACHINES " (or no tar with bzip2)";
    const auto topology = dump.probe();
    ASSERT_TRUE(topology) << topology.error().detail;
    EXPECT_EQ(topology->online.text(), GetParam().online);
    EXPECT_EQ(topology->node_ids().text(), GetParam().nodes);
    EXPECT_EQ(topology->cores.size(), GetParam().cores);
    std::set<unsigned> packages;
    for (const auto& core : topology->cores) packages.insert(core.package);
    EXPECT_EQ(packages.size(), GetParam().packages);
    std::string sizes;
    for (const auto size : topology->hugepage_sizes) sizes += (sizes.empty() ? "" : " ") + model::bytes_text(size);
    EXPECT_EQ(sizes, GetParam().hugepages);
    expect_whole(*topology);
    GetParam().also(*topology);
}

void sparse_numbers_are_kept(const Topology& topology) {
    ASSERT_EQ(topology.distance.size(), 8U);
    EXPECT_EQ(topology.node(33)->cpus.text(), "18-23");
    EXPECT_EQ(topology.node(33)->package, topology.node(2)->package);
    EXPECT_EQ(topology.node(73)->package, topology.node(72)->package);
    EXPECT_EQ(topology.distance_between(45, 45), 10U);
    EXPECT_LT(topology.distance_between(72, 73), topology.distance_between(0, 73));
    EXPECT_THAT(topology.contradictions, IsEmpty());
}

void offline_threads_are_in_no_core(const Topology& topology) {
    const auto pairs = std::count_if(topology.cores.begin(), topology.cores.end(),
                                     [](const model::Core& core) { return core.cpus.size() == 2; });
    EXPECT_EQ(pairs, 5) << "twelve threads on seven cores";
}

void gpu_memory_is_no_ordinary_node(const Topology& topology) {
    for (const unsigned id : {250U, 251U, 252U, 253U, 254U, 255U})
        EXPECT_EQ(topology.node(id)->kind, NodeKind::gpu_memory) << id;
    ASSERT_EQ(topology.devices.size(), 6U);
    EXPECT_EQ(topology.devices[0].kind, "gpu");
    EXPECT_EQ(topology.devices[0].pci, "0004:05:00.0");
    EXPECT_EQ(topology.devices[0].nodes.text(), "0");
    EXPECT_EQ(topology.devices[5].pci, "0035:05:00.0");
    EXPECT_EQ(topology.devices[5].nodes.text(), "8");
    EXPECT_THAT(topology.contradictions, IsEmpty());
}

void slow_memory_is_memory_only(const Topology& topology) {
    for (const unsigned id : {4U, 6U, 8U, 9U}) EXPECT_EQ(topology.node(id)->kind, NodeKind::memory_only) << id;
}

void performance_cores_rank_higher(const Topology& topology) {
    for (const auto& core : topology.cores) EXPECT_EQ(core.efficiency, core.cpus.contains(4) ? 1U : 0U);
}

void devices_are_where_the_firmware_says(const Topology& topology) {
    std::map<std::string, std::string> near;
    for (const auto& device : topology.devices) near[device.kind + ' ' + device.name] = device.nodes.text();
    EXPECT_EQ(near.at("netdev ib0"), "2");
    EXPECT_EQ(near.at("netdev eth0"), "") << "numa_node is -1";
    EXPECT_EQ(near.at("block sda"), "");
}

void eight_accelerators_are_eight_devices(const Topology& topology) {
    unsigned count = 0;
    for (const auto& device : topology.devices) {
        if (device.kind != "gpu") continue;
        ++count;
        EXPECT_EQ(device.nodes.text(), "0") << device.pci;
    }
    EXPECT_EQ(count, 8U);
}

void an_impossible_map_is_named(const Topology& topology) {
    EXPECT_THAT(topology.contradictions, Contains("CPUs 20-23 are in node 4 and in another node"));
}

void cpus_of_an_offline_node_go_to_the_nearest(const Topology& topology) {
    EXPECT_EQ(topology.node(1)->cpus.text(), "4-20");
    EXPECT_THAT(topology.contradictions, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Dumps, Machines,
    ::testing::Values(
        Expected{"128arm-2pa2n8cluster4co", "0-127", "0-3", 128, 2, "64K 2M 32M 1G"},
        Expected{"16amd64-4n4c-cgroup-distance-merge", "0-15", "0-3", 16, 4, "2M"},
        Expected{"16em64t-4s2c2t-offlines", "0-1,3-4,6-12,15", "0", 7, 4, "", offline_threads_are_in_no_core},
        Expected{"16em64t-4s2c2t", "0-15", "0", 8, 4, ""}, Expected{"20s390-2g6s4c", "0-19", "0", 20, 8, "1M"},
        Expected{"256ia64-64n2s2c", "0-255", "0-63", 256, 128, ""},
        Expected{"2i386-2c-nohugepage", "0-1", "0", 2, 1, ""},
        Expected{"2i386-2t-hugepagesizecount", "0-1", "0", 1, 1, "2M 16G"},
        Expected{"32amd64-4s2n4c-cgroup2", "0-31", "0-7", 32, 4, "2M"},
        Expected{"32em64t-2n8c+dax+nvme+mic+dimms", "0-15", "0-1", 16, 2, "2M"},
        Expected{"32intel64-2p8co2t+8ve", "0-31", "0-1", 16, 2, "2M 1G", eight_accelerators_are_eight_devices},
        Expected{"40intel64-2g2n4c+pcilocality", "0-39", "0-3", 40, 4, "2M", devices_are_where_the_firmware_says},
        Expected{"48amd64-4pa2n6c-sparse", "0-47", "0-2,33-34,45,72-73", 48, 4, "", sparse_numbers_are_kept},
        Expected{"5intel64-hybrid-lakefield", "0-4", "0", 5, 1, "2M 1G", performance_cores_rank_higher},
        Expected{"64amd64-4s2n4ca2co", "0-63", "0-7", 64, 4, "2M"},
        Expected{"96em64t-4no4pa3ca2co", "0-95", "0-3", 96, 16, ""},
        Expected{"fakecpuid1f-64intel64-2p4d2n2c2t", "0-63", "0-15", 32, 4, "2M"},
        Expected{"fakeheterocpunuma", "0-23", "0-5", 12, 2, "", an_impossible_map_is_named},
        Expected{"fakeheteromemtiers", "0-5", "0-2,4,6,8-9", 6, 1, "2M", slow_memory_is_memory_only},
        Expected{"memorysidecaches", "0-79", "0-3", 40, 2, "2M 1G"},
        Expected{"nvidiagpunumanodes", "0-15,88-103", "0,8,250-255", 8, 2, "2M 1G", gpu_memory_is_no_ordinary_node},
        Expected{"offline-cpu0-node0", "4-20", "1", 17, 2, "2M 1G", cpus_of_an_offline_node_go_to_the_nearest}),
    [](const auto& parameter) {
        std::string name = parameter.param.dump;
        for (auto& c : name)
            if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
        return name;
    });

}  // namespace
}  // namespace numalease::host
