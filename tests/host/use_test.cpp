#include "host/use.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::Micros;
using test::FakeRoot;

TEST(Use, OfACgroupIsItsCpuTimeAndWhatItWaited) {
    const FakeRoot root{
        {"cg/a/cpu.stat", "usage_usec 87654\nuser_usec 80000\nsystem_usec 7654\n"},
        {"cg/a/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 total=7\n"},
        {"cg/a/memory.pressure", "some avg10=1.00 avg60=0.00 avg300=0.00 total=45\nfull avg10=0.00 total=8\n"}};
    const auto use = read_cgroup_use(root.root(), "cg", "/a");
    ASSERT_TRUE(use) << use.error().detail;
    EXPECT_EQ(*use, (model::Use{.cpu = Micros(87654), .cpu_pressure = Micros(123), .memory_pressure = Micros(45)}));
}

TEST(Use, NeedsNoPressureFiles) {
    const FakeRoot root{{"cg/a/cpu.stat", "usage_usec 5\n"}};
    EXPECT_EQ(*read_cgroup_use(root.root(), "cg", "/a"), model::Use{.cpu = Micros(5)});
}

TEST(Use, OfWhatIsGoneOrMakesNoSenseIsNotKnown) {
    const FakeRoot root{{"cg/odd/cpu.stat", "usage_usec many\n"}};
    EXPECT_FALSE(read_cgroup_use(root.root(), "cg", "/gone"));
    EXPECT_FALSE(read_cgroup_use(root.root(), "cg", "/odd"));
    EXPECT_FALSE(read_cgroup_use(root.root(), "", "/a"));
    EXPECT_FALSE(read_cgroup_use(root.root(), "cg", ""));
}

TEST(Use, OfProcessesIsThatOfTheLivingAndTheirReapedChildren) {
    const FakeRoot proc{{"5/stat", "5 (a ) b) S 1 1 1 0 -1 4194304 0 0 0 0 10 20 3 4 20 0 1 0 7 0 0\n"},
                        {"6/stat", "6 (x) S 1 1 1 0 -1 4194304 0 0 0 0 1000 0 0 0 20 0 1 0 8 0 0\n"}};
    const auto tick = 1'000'000 / sysconf(_SC_CLK_TCK);
    const auto use = read_process_use(
        proc.root(), {{.pid = 5, .start_time = 7}, {.pid = 6, .start_time = 7}, {.pid = 9, .start_time = 1}});
    ASSERT_TRUE(use) << use.error().detail;
    EXPECT_EQ(use->cpu, Micros(37 * tick));
    EXPECT_FALSE(read_process_use(proc.root(), {{.pid = 6, .start_time = 7}}));
    EXPECT_FALSE(read_process_use(proc.root(), {}));
}

}  // namespace
}  // namespace numalease::host
