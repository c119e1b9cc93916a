#include "host/partition.hpp"

#include <gtest/gtest.h>

#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::CpuSet;
using model::Errc;
using model::ShieldKind;
using test::FakeRoot;

constexpr auto kCgroup2 = "sys/fs/cgroup";
constexpr auto kScope = "/user.slice/user-1001.slice/numalease-c1.scope";
const CpuSet kCpus{2, 3};

/// A scope in a user's slice, as Linux 6.12 shows it; another user's slice and the system's beside it.
FakeRoot tree() {
    FakeRoot root;
    root.set("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    root.set("sys/fs/cgroup/cpuset.cpus.isolated", "\n");
    for (const std::string cgroup : {"user.slice", "user.slice/user-1001.slice", "user.slice/user-1002.slice",
                                     "user.slice/user-1001.slice/numalease-c1.scope",
                                     "user.slice/user-1001.slice/session-3.scope", "system.slice"}) {
        root.set("sys/fs/cgroup/" + cgroup + "/cpuset.cpus", "\n");
        root.set("sys/fs/cgroup/" + cgroup + "/cpuset.cpus.exclusive", "\n");
        root.set("sys/fs/cgroup/" + cgroup + "/cpuset.cpus.partition", "member\n");
    }
    root.set(std::string("sys/fs/cgroup") + kScope + "/cpuset.cpus", "2-3\n");
    return root;
}

std::string exclusive(const FakeRoot& root, const std::string& cgroup) {
    return std::string(model::trim(root.get("sys/fs/cgroup" + cgroup + "/cpuset.cpus.exclusive")));
}

TEST(Partition, KindIsToldFromTheFilesOfTheRootCgroup) {
    EXPECT_EQ(shields_of_kernel(tree().root(), kCgroup2), ShieldKind::path);
    const FakeRoot older{{"sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n"}};
    EXPECT_EQ(shields_of_kernel(older.root(), kCgroup2), ShieldKind::slice);
    const FakeRoot bare{{"sys/fs/cgroup/cgroup.controllers", "cpu memory\n"}};
    EXPECT_EQ(shields_of_kernel(bare.root(), kCgroup2), ShieldKind::none);
    EXPECT_EQ(shields_of_kernel(bare.root(), ""), ShieldKind::none);
}

TEST(Partition, CpusAreHandedDownFromTheTopAndTakenBackToTheLast) {
    const auto root = tree();
    ASSERT_TRUE(hand_down(root.root(), kCgroup2, kScope, kCpus));
    for (const std::string level : {"/user.slice", "/user.slice/user-1001.slice", kScope})
        EXPECT_EQ(exclusive(root, level), "2-3") << level;
    EXPECT_EQ(exclusive(root, "/user.slice/user-1002.slice"), "");
    ASSERT_TRUE(take_back(root.root(), kCgroup2, kScope, kCpus));
    for (const std::string level : {"/user.slice", "/user.slice/user-1001.slice", kScope})
        EXPECT_EQ(exclusive(root, level), "") << level;
}

TEST(Partition, CpusOfAnotherShieldOnTheSamePathStay) {
    const auto root = tree();
    ASSERT_TRUE(hand_down(root.root(), kCgroup2, "/user.slice/user-1002.slice", CpuSet{5}));
    ASSERT_TRUE(hand_down(root.root(), kCgroup2, kScope, kCpus));
    EXPECT_EQ(exclusive(root, "/user.slice"), "2-3,5");
    ASSERT_TRUE(take_back(root.root(), kCgroup2, kScope, kCpus));
    EXPECT_EQ(exclusive(root, "/user.slice"), "5");
    EXPECT_EQ(exclusive(root, "/user.slice/user-1002.slice"), "5");
}

TEST(Partition, WhatIsGoneNeedsNoTakingBack) {
    const FakeRoot root{{"sys/fs/cgroup/user.slice/cpuset.cpus.exclusive", "2-3\n"}};
    EXPECT_TRUE(end_partition(root.root(), kCgroup2, kScope));
    EXPECT_TRUE(take_back(root.root(), kCgroup2, kScope, kCpus));
    EXPECT_EQ(exclusive(root, "/user.slice"), "");
    EXPECT_EQ(read_partition(root.root(), kCgroup2, kScope).error().code, Errc::unsupported);
}

TEST(Partition, BeginsAndEndsAndLeavesAloneWhatSomebodyMadeOfIt) {
    const auto root = tree();
    const auto path = std::string("sys/fs/cgroup") + kScope + "/cpuset.cpus.partition";
    EXPECT_EQ(begin_partition(root.root(), kCgroup2, kScope).value_or("error"), "root");
    ASSERT_TRUE(end_partition(root.root(), kCgroup2, kScope));
    EXPECT_EQ(root.get(path), "member");
    root.set(path, "root invalid (Cpu list in cpuset.cpus not exclusive)\n");
    ASSERT_TRUE(end_partition(root.root(), kCgroup2, kScope));
    EXPECT_EQ(root.get(path), "member");
    root.set(path, "isolated\n");
    ASSERT_TRUE(end_partition(root.root(), kCgroup2, kScope));
    EXPECT_EQ(root.get(path), "isolated\n");
}

TEST(Partition, WhatIsInTheWayIsNamed) {
    auto root = tree();
    const auto way = [&](const std::string& cgroup) {
        return in_the_way_of_partition(root.root(), kCgroup2, {.kind = ShieldKind::path, .cgroup = cgroup}, kCpus);
    };
    EXPECT_EQ(way(kScope), "");
    root.set("sys/fs/cgroup/system.slice/cpuset.cpus", "0-7\n");
    EXPECT_EQ(way(kScope), "") << "it has others left";
    root.set("sys/fs/cgroup/system.slice/cpuset.cpus", "3\n");
    EXPECT_EQ(way(kScope), "/system.slice has CPUs 3 in its own cpuset.cpus (AllowedCPUs=)");
    root.set("sys/fs/cgroup/user.slice/user-1002.slice/cpuset.cpus.exclusive", "2\n");
    root.set("sys/fs/cgroup/system.slice/cpuset.cpus", "\n");
    EXPECT_EQ(way(kScope), "/user.slice/user-1002.slice has CPUs 2 for itself (cpuset.cpus.exclusive)");
}

TEST(Partition, BelowLinux67AnyCpuOfASiblingIsInTheWay) {
    const FakeRoot root{{"sys/fs/cgroup/system.slice/cpuset.cpus", "0-7\n"},
                        {"sys/fs/cgroup/user.slice/cpuset.cpus", "\n"},
                        {"sys/fs/cgroup/user.slice/user-1001.slice/cpuset.cpus", "2-3\n"}};
    const model::Shield shield{.kind = ShieldKind::slice, .cgroup = "/numaleaseshield.slice"};
    EXPECT_EQ(in_the_way_of_partition(root.root(), kCgroup2, shield, kCpus),
              "/system.slice has CPUs 2-3 in its own cpuset.cpus (AllowedCPUs=)");
    root.set("sys/fs/cgroup/system.slice/cpuset.cpus", "\n");
    EXPECT_EQ(in_the_way_of_partition(root.root(), kCgroup2, shield, kCpus), "");
    root.set("sys/fs/cgroup/numaleaseshield.slice/cpuset.cpus.partition", "root\n");
    EXPECT_EQ(in_the_way_of_partition(root.root(), kCgroup2, shield, kCpus), "") << "of another shield, or its remains";
}

TEST(Partition, WhatSomebodyHasSetOnThePathIsInTheWay) {
    const auto root = tree();
    const model::Shield shield{.kind = ShieldKind::path, .cgroup = kScope};
    const auto way = [&] { return in_the_way_of_partition(root.root(), kCgroup2, shield, kCpus); };
    root.set("sys/fs/cgroup/user.slice/cpuset.cpus.exclusive", "3-4\n");
    EXPECT_EQ(way(), "/user.slice has CPUs 3 for itself (cpuset.cpus.exclusive)");
    root.set("sys/fs/cgroup/user.slice/cpuset.cpus.exclusive", "4-5\n");
    EXPECT_EQ(way(), "") << "CPUs of other shields";
    for (const std::string state : {"isolated", "root", "root invalid (Cpu list in cpuset.cpus not exclusive)"}) {
        root.set(std::string("sys/fs/cgroup") + kScope + "/cpuset.cpus.partition", state + "\n");
        EXPECT_EQ(way(), std::string(kScope) + " is a partition already (" + state + ')');
    }
}

TEST(Partition, IsReleasedWhenTheRootCgroupHasItsCpusAgain) {
    const FakeRoot root{{"sys/fs/cgroup/cpuset.cpus.effective", "0-1,4-7\n"}};
    EXPECT_FALSE(is_released(root.root(), kCgroup2, kCpus));
    EXPECT_TRUE(is_released(root.root(), kCgroup2, CpuSet{4}));
    root.set("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n");
    EXPECT_TRUE(is_released(root.root(), kCgroup2, kCpus));
}

TEST(Partition, WaitingForCpusetsChangesNothing) {
    const auto root = tree();
    const std::string path = "sys/fs/cgroup/user.slice/cpuset.cpus.partition";
    await_cpusets(root.root(), kCgroup2, kScope);
    EXPECT_EQ(root.get(path), "member") << "written, as it was";
    root.set(path, "isolated\n");
    await_cpusets(root.root(), kCgroup2, kScope);
    EXPECT_EQ(root.get(path), "isolated\n");
}

TEST(Partition, LimitsOfASliceAreToldButForTheNumberOfTasks) {
    FakeRoot root{{"sys/fs/cgroup/user.slice/user-1001.slice/memory.max", "max\n"},
                  {"sys/fs/cgroup/user.slice/user-1001.slice/cpu.max", "max 100000\n"},
                  {"sys/fs/cgroup/user.slice/user-1001.slice/io.max", ""},
                  {"sys/fs/cgroup/user.slice/user-1001.slice/pids.max", "2451\n"},
                  {"sys/fs/cgroup/user.slice/pids.max", "9000\n"}};
    EXPECT_EQ(limits_of(root.root(), kCgroup2, "/user.slice/user-1001.slice"), "");
    EXPECT_EQ(tasks_limit_of(root.root(), kCgroup2, "/user.slice/user-1001.slice"), 2451U);
    root.set("sys/fs/cgroup/user.slice/user-1001.slice/memory.max", "1073741824\n");
    root.set("sys/fs/cgroup/user.slice/user-1001.slice/cpu.max", "50000 100000\n");
    EXPECT_EQ(limits_of(root.root(), kCgroup2, "/user.slice/user-1001.slice"),
              "memory.max=1073741824, cpu.max=50000 100000");
    EXPECT_EQ(tasks_limit_of(root.root(), kCgroup2, "/none.slice"), std::nullopt);
}

TEST(Partition, LimitsOfRareControllersAreToldToo) {
    const std::string slice = "sys/fs/cgroup/user.slice/user-1001.slice/";
    const FakeRoot root{{slice + "hugetlb.2MB.max", "max\n"},
                        {slice + "hugetlb.2MB.current", "4096\n"},
                        {slice + "misc.max", "sgx_epc max\n"},
                        {slice + "rdma.max", "mlx4_0 hca_handle=max hca_object=max\n"}};
    const auto limits = [&] { return limits_of(root.root(), kCgroup2, "/user.slice/user-1001.slice"); };
    EXPECT_EQ(limits(), "");
    root.set(slice + "hugetlb.1GB.rsvd.max", "0\n");
    EXPECT_EQ(limits(), "hugetlb.1GB.rsvd.max=0");
    root.set(slice + "rdma.max", "mlx4_0 hca_handle=max hca_object=2000\n");
    root.set(slice + "misc.max", "sgx_epc 4096\n");
    EXPECT_EQ(limits(),
              "misc.max=sgx_epc 4096, rdma.max=mlx4_0 hca_handle=max hca_object=2000, hugetlb.1GB.rsvd.max=0");
}

TEST(Partition, LimitsOfASessionAreThoseOfItsSlices) {
    const FakeRoot root{{"sys/fs/cgroup/user.slice/memory.max", "9\n"},
                        {"sys/fs/cgroup/user.slice/user-1001.slice/memory.max", "max\n"},
                        {"sys/fs/cgroup/user.slice/user-1001.slice/session-3.scope/memory.max", "5\n"},
                        {"sys/fs/cgroup/system.slice/memory.max", "7\n"}};
    const std::string session = "/user.slice/user-1001.slice/session-3.scope";
    EXPECT_EQ(limits_of_user(root.root(), kCgroup2, session), "memory.max=9");
    root.set("sys/fs/cgroup/user.slice/user-1001.slice/memory.max", "8\n");
    EXPECT_EQ(limits_of_user(root.root(), kCgroup2, session), "memory.max=8");
    EXPECT_EQ(limits_of_user(root.root(), kCgroup2, "/system.slice/a.service"), "");
    EXPECT_EQ(memory_limit_of(root.root(), kCgroup2, session), 5U);
    EXPECT_EQ(memory_limit_of(root.root(), kCgroup2, "/none.slice"), std::nullopt);
}

TEST(Partition, WhatStillRunsIsBoundKernelThreadsAndInterrupts) {
    FakeRoot proc;
    const auto thread = [&](const std::string& pid, const std::string& name, const std::string& flags,
                            const std::string& allowed) {
        proc.set(pid + "/stat", pid + " (" + name + ") S 2 0 0 0 -1 " + flags + " 0 0\n");
        proc.set(pid + "/comm", name + "\n");
        proc.set(pid + "/task/" + pid + "/status", "Name:\t" + name + "\nCpus_allowed_list:\t" + allowed + "\n");
    };
    thread("10", "ksoftirqd/2", "69238848", "2");  // PF_KTHREAD | PF_NO_SETAFFINITY | …
    thread("11", "ksoftirqd/3", "69238848", "3");
    thread("12", "migration/4", "69238848", "4");
    thread("13", "kworker/u16:0", "69238880", "0-7");
    thread("99", "a ) shell", "4194304", "2-3");  // a process
    proc.set("irq/24/effective_affinity_list", "3\n");
    proc.set("irq/24/virtio0-req.0/x", "");
    proc.set("irq/25/effective_affinity_list", "2\n");
    proc.set("irq/26/effective_affinity_list", "5\n");
    proc.set("irq/26/virtio1-req.0/x", "");
    EXPECT_EQ(
        what_still_runs_on(proc.root(), kCpus),
        "still run on CPUs 2-3: kernel threads bound to them (ksoftirqd ×2, kworker); interrupts 24 (virtio0-req.0)");
    EXPECT_EQ(what_still_runs_on(proc.root(), CpuSet{6}),
              "still run on CPUs 6: kernel threads bound to them (kworker)");
    EXPECT_EQ(what_still_runs_on(FakeRoot().root(), kCpus), "");
}

}  // namespace
}  // namespace numalease::host
