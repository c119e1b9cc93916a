#include "host/busy.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::Micros;
using test::FakeRoot;

constexpr std::uint64_t kKernel = 0x00200000;

struct Thread {
    int pid = 0;
    int tid = 0;
    std::uint64_t ticks = 0;
    unsigned cpu = 0;
    std::uint64_t flags = 0;
    std::uint64_t start = 7;
};

void show(const FakeRoot& proc, const Thread& it) {
    const auto folder = std::to_string(it.pid);
    auto text = std::to_string(it.tid) + " (a) b (c) R 1 1 1 0 -1 " + std::to_string(it.flags) + " 0 0 0 0 " +
                std::to_string(it.ticks) + " 0 0 0 20 0 1 0 " + std::to_string(it.start);
    for (int field = 23; field < 39; ++field) text += " 0";
    text += ' ' + std::to_string(it.cpu) + " 0 0\n";
    proc.set(folder + "/task/" + std::to_string(it.tid) + "/stat", text);
    proc.set(folder + "/stat", text);
    proc.set(folder + "/comm", "str\x1b[ess\n");
    proc.set(folder + "/cgroup", "0::/user.slice\n");
}

/// What so many ticks are of a second.
std::uint64_t percent(std::uint64_t of_a_cpu) {
    return of_a_cpu * static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK)) / 100;
}

std::vector<BusyProcess> busy_after(const FakeRoot& proc, const ThreadTimes& before) {
    return read_busy(proc.root(), before, Micros(1'000'000), {2, 3});
}

TEST(BusyThreads, AreThoseThatRanMoreThanAFifthOnTheCpus) {
    const FakeRoot proc;
    for (const int tid : {10, 11, 12, 13}) show(proc, {.pid = 10, .tid = tid});
    const auto before = read_thread_times(proc.root());
    EXPECT_EQ(before.size(), 4U);
    show(proc, {.pid = 10, .tid = 10, .ticks = percent(90), .cpu = 2});
    show(proc, {.pid = 10, .tid = 11, .ticks = percent(20), .cpu = 2});  // no more than that
    show(proc, {.pid = 10, .tid = 12, .ticks = percent(90), .cpu = 1});  // elsewhere
    show(proc, {.pid = 10, .tid = 13, .ticks = percent(50), .cpu = 3});
    const auto busy = busy_after(proc, before);
    ASSERT_EQ(busy.size(), 1U);
    EXPECT_EQ(busy[0].pid, 10);
    EXPECT_EQ(busy[0].uid, getuid());
    EXPECT_EQ(busy[0].command, "str?[ess");
    EXPECT_EQ(busy[0].cgroup, "/user.slice");
    EXPECT_EQ(busy[0].ancestry, (std::vector<model::Process>{{.pid = 10, .start_time = 7}}));
    ASSERT_EQ(busy[0].threads.size(), 2U);
    unsigned sum = 0;
    for (const auto& thread : busy[0].threads) sum += thread.percent;
    EXPECT_EQ(sum, 140U);
}

TEST(BusyThreads, AreNeitherTheKernelsNorOurOwnNorOtherOnesOfThatNumber) {
    const FakeRoot proc;
    show(proc, {.pid = 20, .tid = 20, .flags = kKernel});
    show(proc, {.pid = getpid(), .tid = getpid()});
    show(proc, {.pid = 30, .tid = 30});
    const auto before = read_thread_times(proc.root());
    EXPECT_EQ(before.size(), 1U);
    show(proc, {.pid = 20, .tid = 20, .ticks = percent(90), .cpu = 2, .flags = kKernel});
    show(proc, {.pid = getpid(), .tid = getpid(), .ticks = percent(90), .cpu = 2});
    show(proc, {.pid = 30, .tid = 30, .ticks = percent(90), .cpu = 2, .start = 8});
    EXPECT_TRUE(busy_after(proc, before).empty());
}

TEST(BusyThreads, ThatEndedOrCannotBeReadAreNone) {
    const FakeRoot proc;
    show(proc, {.pid = 40, .tid = 40});
    const auto before = read_thread_times(proc.root());
    proc.set("40/task/40/stat", "40 (x) R 1\n");
    EXPECT_TRUE(busy_after(proc, before).empty());
    EXPECT_TRUE(read_thread_times(proc.root()).empty());
}

}  // namespace
}  // namespace numalease::host
