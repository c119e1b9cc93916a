#include "host/threads.hpp"

#include <gtest/gtest.h>

#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::CpuSet;
using model::ThreadMask;
using test::FakeRoot;

constexpr auto kCgroup2 = "sys/fs/cgroup";

/// /proc/PID/stat of a thread, as far as its start time.
std::string stat_of(int tid, std::uint64_t start_time) {
    return std::to_string(tid) + " (worker) S 1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 " +
           std::to_string(start_time) + " 0 0\n";
}

void add_thread(const FakeRoot& proc, int pid, int tid, const std::string& cpus, const std::string& before = {}) {
    proc.set(std::to_string(pid) + "/task/" + std::to_string(tid) + "/status",
             before + "Cpus_allowed_list:\t" + cpus + "\n");
    proc.set(std::to_string(tid) + "/stat", stat_of(tid, 7));
}

TEST(ThreadMasks, AreThoseNarrowerThanTheCpuset) {
    const FakeRoot root{{"sys/fs/cgroup/a.slice/cpuset.cpus.effective", "0-7\n"}};
    const FakeRoot proc{{"100/cgroup", "0::/a.slice\n"}};
    add_thread(proc, 100, 100, "0-7");
    add_thread(proc, 100, 101, "2-3");
    const auto masks = read_thread_masks(root.root(), proc.root(), kCgroup2);
    ASSERT_EQ(masks.kept.size(), 1U);
    EXPECT_EQ(masks.kept[0], (ThreadMask{.pid = 100, .thread = {.pid = 101, .start_time = 7}, .cpus = {2, 3}}));
    EXPECT_EQ(masks.left_out, 0U);
}

TEST(ThreadMasks, OfAProcessWithOneThreadAreInOneFile) {
    const FakeRoot root{{"sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"},
                        {"sys/fs/cgroup/a.slice/cpuset.cpus.effective", "0-3\n"}};
    const FakeRoot proc{
        {"100/cgroup", "0::/b.slice\n"}, {"101/cgroup", "0::/b.slice\n"}, {"102/cgroup", "0::/a.slice\n"}};
    const auto add = [&](int pid, const std::string& cpus) { add_thread(proc, pid, pid, cpus, "Threads:\t1\n"); };
    add(100, "0-7");
    add(101, "4");
    add(102, "0-3");  // all that its cgroup has
    const auto masks = read_thread_masks(root.root(), proc.root(), kCgroup2);
    ASSERT_EQ(masks.kept.size(), 1U);
    EXPECT_EQ(masks.kept[0], (ThreadMask{.pid = 101, .thread = {.pid = 101, .start_time = 7}, .cpus = {4}}));
}

TEST(ThreadMasks, SeenWhileACpusetChangesAreNobodysOwn) {
    // PID 1's mask of before beside its cpuset of after, when a partition ended between the two (seen with Linux 6.1).
    const FakeRoot root{{"sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"},
                        {"sys/fs/cgroup/init.scope/cpuset.cpus.effective", "0-7\n"}};
    const FakeRoot proc{{"1/cgroup", "0::/init.scope\n"}, {"20/cgroup", "0::/\n"}};
    add_thread(proc, 1, 1, "0-5");
    add_thread(proc, 20, 20, "2-3");
    const std::vector<ThreadMask> seen{{.pid = 1, .thread = {.pid = 1, .start_time = 7}, .cpus = {0, 1, 2, 3, 4, 5}},
                                       {.pid = 20, .thread = {.pid = 20, .start_time = 7}, .cpus = {2, 3}}};
    EXPECT_EQ(still_own(root.root(), proc.root(), kCgroup2, seen), seen);
    add_thread(proc, 1, 1, "0-7");
    EXPECT_EQ(still_own(root.root(), proc.root(), kCgroup2, seen), std::vector{seen[1]});
    add_thread(proc, 1, 1, "0-5");
    root.set("sys/fs/cgroup/init.scope/cpuset.cpus.effective", "0-5\n");
    EXPECT_EQ(still_own(root.root(), proc.root(), kCgroup2, seen), std::vector{seen[1]});
    proc.remove("20/cgroup");
    EXPECT_TRUE(still_own(root.root(), proc.root(), kCgroup2, seen).empty());
}

TEST(ThreadMasks, BeyondWhatARecordHoldsAreCounted) {
    const FakeRoot root{{"sys/fs/cgroup/a.slice/cpuset.cpus.effective", "0-7\n"}};
    const FakeRoot proc{{"100/cgroup", "0::/a.slice\n"}};
    constexpr int kFirst = 100;
    constexpr int kMore = 3;
    for (int i = 0; i < static_cast<int>(kMostThreadMasks) + kMore; ++i) add_thread(proc, kFirst, kFirst + i, "2-3");
    const auto masks = read_thread_masks(root.root(), proc.root(), kCgroup2);
    EXPECT_EQ(masks.kept.size(), kMostThreadMasks);
    EXPECT_EQ(masks.left_out, std::size_t{kMore});
}

TEST(ThreadMasks, OfThreadsThatHaveEndedAreNotKept) {
    const FakeRoot proc{{"5/stat", stat_of(5, 7)}};
    const ThreadMask alive{.pid = 5, .thread = {.pid = 5, .start_time = 7}, .cpus = {1}};
    auto reused = alive;
    reused.thread.start_time = 6;
    auto gone = alive;
    gone.thread.pid = 6;
    const auto few = living_masks(proc.root(), {reused, alive, gone});
    EXPECT_EQ(few.kept, std::vector{alive});
    EXPECT_EQ(few.left_out, 0U);
    const auto many = living_masks(proc.root(), std::vector(kMostThreadMasks + 2, alive));
    EXPECT_EQ(many.kept.size(), kMostThreadMasks);
    EXPECT_EQ(many.left_out, 2U);
}

}  // namespace
}  // namespace numalease::host
