#include "host/gpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/topology.hpp"
#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::Device;
using test::FakeRoot;
using ::testing::IsEmpty;

constexpr const char* kUuid = "GPU-d7b2a6b2-3c41-9f0e-1f3a-0a5b6c7d8e9f";

std::string information(const std::string& uuid, const char* excluded = "No") {
    return "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 255\nGPU UUID: \t " + uuid +
           "\nVideo BIOS: \t 92.00.45.00.03\nBus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n"
           "Bus Location: \t 0000:81:00.0\nDevice Minor: \t 0\nGPU Excluded:\t " +
           excluded + "\n";
}

TEST(Nvidia, SaysModelAndUuid) {
    EXPECT_EQ(parse_nvidia("0000:81:00.0", information(kUuid)),
              (NamedGpu{.pci = "0000:81:00.0", .vendor = "nvidia", .uuid = kUuid, .name = "NVIDIA A100-SXM4-40GB"}));
}

TEST(Nvidia, AUuidThatIsNoneYetIsNone) {
    const std::string longest = "GPU-" + std::string(100, 'a');
    for (const std::string& uuid : {"GPU-" + std::string(8, '?'), std::string("GPU-"), std::string("GPU-a b"),
                                    std::string("GPU-a,GPU-b"), std::string(), longest})
        EXPECT_EQ(parse_nvidia("x", information(uuid)).uuid, "") << uuid;
    EXPECT_EQ(parse_nvidia("x", information(kUuid, "Yes")).uuid, "") << "CUDA does not find it";
    EXPECT_EQ(parse_nvidia("x", "GPU UUID").uuid, "");
}

TEST(Amd, TheAddressIsInTheLocation) {
    const auto gpu = parse_amd(
        "cpu_cores_count 0\nsimd_count 304\nvendor_id 4098\ndevice_id 29857\nlocation_id 33281\ndomain 1\n"
        "unique_id 13364019268263428353\n");
    ASSERT_TRUE(gpu);
    EXPECT_EQ(*gpu, (NamedGpu{.pci = "0001:82:00.1", .vendor = "amd", .uuid = "GPU-b97688b808514101", .name = ""}));
}

TEST(Amd, CpusAreNoneAndAnIntegratedOneHasNoUuid) {
    EXPECT_FALSE(parse_amd("cpu_cores_count 64\nsimd_count 0\nlocation_id 0\nunique_id 0\n"));
    EXPECT_FALSE(parse_amd(""));
    EXPECT_EQ(parse_amd("simd_count 8\nlocation_id 1024\ndomain 0\nunique_id 0\n")->uuid, "");
    EXPECT_EQ(parse_amd("simd_count 8\nlocation_id 1024\nunique_id 99999999999999999999999\n")->uuid, "");
}

/// Two nodes of a CPU each.
FakeRoot machine() {
    FakeRoot fake{{"sys/devices/system/cpu/online", "0-1\n"},
                  {"sys/devices/system/cpu/present", "0-1\n"},
                  {"sys/devices/system/cpu/possible", "0-1\n"},
                  {"sys/devices/system/node/online", "0-1\n"},
                  {"sys/devices/system/node/node0/cpulist", "0\n"},
                  {"sys/devices/system/node/node0/cpumap", "1\n"},
                  {"sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 1 kB\n"},
                  {"sys/devices/system/node/node1/cpulist", "1\n"},
                  {"sys/devices/system/node/node1/cpumap", "2\n"},
                  {"sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 1 kB\n"},
                  {"proc/cpuinfo", "processor\t: 0\n"}};
    for (const std::string cpu : {"0", "1"}) {
        const auto path = "sys/devices/system/cpu/cpu" + cpu + "/topology/";
        const auto mask = cpu == "0" ? "1\n" : "2\n";
        fake.set(path + "physical_package_id", cpu + "\n");
        fake.set(path + "core_id", "0\n");
        for (const char* name : {"thread_siblings", "core_cpus", "core_siblings", "package_cpus"}) {
            fake.set(path + name, mask);
            fake.set(path + name + "_list", cpu + "\n");
        }
    }
    return fake;
}

void add_card(const FakeRoot& fake, const std::string& pci, const char* type, const char* vendor, const char* node,
              const char* driver = nullptr) {
    const auto path = "sys/bus/pci/devices/" + pci + "/";
    fake.set(path + "class", std::string(type) + "\n");
    fake.set(path + "vendor", std::string(vendor) + "\n");
    fake.set(path + "device", "0x20b0\n");
    fake.set(path + "numa_node", std::string(node) + "\n");
    if (driver == nullptr) return;
    fake.set(std::string("sys/bus/pci/drivers/") + driver + "/bind", "");
    fake.link(path + "driver", std::string("../../drivers/") + driver);
}

std::vector<Device> gpus_of(const FakeRoot& fake) {
    auto topology = probe_topology(fake.root());
    if (!topology) {
        ADD_FAILURE() << topology.error().detail;
        return {};
    }
    name_gpus(fake.root(), topology->devices);
    return topology->devices;
}

TEST(Gpus, AreFoundByClassWithDriverAndUuid) {
    const auto fake = machine();
    add_card(fake, "0000:c1:00.0", "0x120000", "0x1002", "1", "amdgpu");
    add_card(fake, "0000:81:00.0", "0x030200", "0x10de", "1", "nvidia");
    add_card(fake, "0000:02:00.0", "0x030000", "0x1234", "-1");  // a display, and no driver: it counts
    add_card(fake, "0000:03:00.0", "0x020000", "0x8086", "0", "e1000e");
    fake.set("proc/driver/nvidia/gpus/0000:81:00.0/information", information(kUuid));
    fake.set("proc/driver/nvidia/gpus/0000:f1:00.0/information", information(kUuid));  // no such device
    fake.set("sys/class/kfd/kfd/topology/nodes/0/properties", "simd_count 0\nlocation_id 0\n");
    fake.set("sys/class/kfd/kfd/topology/nodes/1/properties",
             "simd_count 304\nlocation_id 49408\ndomain 0\nunique_id 255\n");
    const auto gpus = gpus_of(fake);
    ASSERT_EQ(gpus.size(), 3U);
    EXPECT_EQ(gpus[0].pci, "0000:02:00.0");
    EXPECT_EQ(gpus[0].vendor + gpus[0].driver + gpus[0].uuid, "");
    EXPECT_THAT(gpus[0].nodes.items(), IsEmpty()) << "-1: the firmware does not say";
    EXPECT_EQ(gpus[1], (Device{.pci = "0000:81:00.0",
                               .kind = "gpu",
                               .name = "NVIDIA A100-SXM4-40GB",
                               .nodes = {1},
                               .vendor = "nvidia",
                               .driver = "nvidia",
                               .uuid = kUuid}));
    EXPECT_EQ(gpus[2].vendor + ' ' + gpus[2].driver + ' ' + gpus[2].uuid, "amd amdgpu GPU-00000000000000ff");
}

TEST(Gpus, ABoardsManagementChipIsNone) {
    const auto fake = machine();
    add_card(fake, "0000:01:00.0", "0x030000", "0x1a03", "0", "ast");
    add_card(fake, "0000:02:00.0", "0x030000", "0x102b", "0");
    add_card(fake, "0000:03:00.0", "0x030000", "0x19e5", "0", "hibmc-drm");
    EXPECT_THAT(gpus_of(fake), IsEmpty());
}

TEST(Gpus, WithoutTheirDriverHaveNoUuid) {
    const auto fake = machine();
    add_card(fake, "0000:81:00.0", "0x030200", "0x10de", "1", "vfio-pci");
    const auto gpus = gpus_of(fake);
    ASSERT_EQ(gpus.size(), 1U);
    EXPECT_EQ(gpus[0].vendor + ' ' + gpus[0].driver + ' ' + gpus[0].uuid, "nvidia vfio-pci ");
}

TEST(Gpus, ADriverThatIsLoadedLaterIsNoticed) {
    const auto fake = machine();
    const auto before = gpu_fingerprint(fake.root());
    fake.set("proc/driver/nvidia/gpus/0000:81:00.0/information", information(kUuid));
    const auto after = gpu_fingerprint(fake.root());
    EXPECT_NE(before, after);
    fake.set("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 8\n");
    EXPECT_NE(gpu_fingerprint(fake.root()), after);
}

}  // namespace
}  // namespace numalease::host
