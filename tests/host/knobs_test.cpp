#include "host/knobs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "host/topology.hpp"
#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::Errc;
using model::kKiB;
using model::kMiB;
using model::Knob;
using model::KnobKey;
using test::FakeRoot;
using ::testing::HasSubstr;

constexpr KnobKey kBalancing{.knob = Knob::numa_balancing};
constexpr KnobKey kThp{.knob = Knob::thp_enabled};
constexpr KnobKey kPool{.knob = Knob::hugepages, .node = 0, .page_size = 2 * kMiB};
const std::string kPoolFiles = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/";
const std::atomic<bool> kGoOn{false};

TEST(Knobs, AreReadInTheFormInWhichTheyAreWritten) {
    const FakeRoot fake{
        {"proc/sys/kernel/numa_balancing", "3\n"},
        {"sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
        {"sys/kernel/mm/transparent_hugepage/defrag", "always defer [defer+madvise] madvise never\n"},
        {"proc/sys/vm/zone_reclaim_mode", "0\n"},
        {"sys/kernel/mm/mempolicy/weighted_interleave/node2", "17\n"},
        {"sys/kernel/mm/mempolicy/weighted_interleave/auto", "true\n"},
    };
    const auto root = fake.root();
    EXPECT_EQ(read_knob(root, kBalancing).value(), "3");
    EXPECT_EQ(read_knob(root, kThp).value(), "madvise");
    EXPECT_EQ(read_knob(root, {.knob = Knob::thp_defrag}).value(), "defer+madvise");
    EXPECT_EQ(read_knob(root, {.knob = Knob::zone_reclaim_mode}).value(), "0");
    EXPECT_EQ(read_knob(root, {.knob = Knob::weight, .node = 2}).value(), "17");
    EXPECT_EQ(read_knob(root, {.knob = Knob::weight_auto}).value(), "true");
}

TEST(Knobs, AMissingFileIsUnsupported) {
    const FakeRoot fake;
    EXPECT_EQ(read_knob(fake.root(), kBalancing).error().code, Errc::unsupported);
    EXPECT_EQ(write_knob(fake.root(), kBalancing, "0").error().code, Errc::unsupported);
    EXPECT_EQ(read_pool(fake.root(), kPool).error().code, Errc::unsupported);
    EXPECT_EQ(reclaim_node(fake.root(), 0, kMiB).error().code, Errc::unsupported);
}

TEST(Knobs, TextThatIsNoValueIsAnErrorAndNeverAPrior) {
    const FakeRoot fake{{"proc/sys/kernel/numa_balancing", "maybe\n"},
                        {"sys/kernel/mm/transparent_hugepage/enabled", "always madvise never\n"}};
    EXPECT_EQ(read_knob(fake.root(), kBalancing).error().code, Errc::io);
    EXPECT_EQ(read_knob(fake.root(), kThp).error().code, Errc::io);
    fake.set("proc/sys/kernel/numa_balancing", "");
    EXPECT_EQ(read_knob(fake.root(), kBalancing).error().code, Errc::io);
}

TEST(Knobs, AWriteIsReadBack) {
    const FakeRoot fake{{"proc/sys/kernel/numa_balancing", "1\n"},
                        {"sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"}};
    EXPECT_EQ(write_knob(fake.root(), kBalancing, "0").value(), "0");
    EXPECT_EQ(fake.get("proc/sys/kernel/numa_balancing"), "0");
    EXPECT_EQ(write_knob(fake.root(), kThp, "never").value(), "never");
}

/// Files of a pool of 2 MiB pages, and how it is understood.
struct PoolCase {
    const char *nr, *surplus, *free, *global_free, *reserved;
    std::uint64_t persistent;
};

TEST(Pool, CountsPersistentPages) {
    for (const auto& c :
         {PoolCase{"0\n", "0\n", "0\n", "0\n", "0\n", 0}, PoolCase{"12\n", "12\n", "0\n", "0\n", "0\n", 0},
          PoolCase{"22\n", "12\n", "10\n", "30\n", "4\n", 10}, PoolCase{"3\n", "5\n", "0\n", "0\n", "0\n", 0}}) {
        const FakeRoot fake{{kPoolFiles + "nr_hugepages", c.nr},
                            {kPoolFiles + "surplus_hugepages", c.surplus},
                            {kPoolFiles + "free_hugepages", c.free},
                            {"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", c.global_free},
                            {"sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", c.reserved}};
        const auto reading = read_pool(fake.root(), kPool);
        ASSERT_TRUE(reading) << reading.error().detail;
        EXPECT_EQ(reading->persistent(), c.persistent) << c.nr;
        EXPECT_EQ(reading->global_reserved, std::stoull(c.reserved));
    }
}

TEST(Pool, GrowsToTheTargetAcrossChunks) {
    const FakeRoot fake;
    fake.set_pool(0, 2048, 3, 3);
    const auto result = resize_pool(fake.root(), kPool, 2000, false, kGoOn);
    ASSERT_TRUE(result) << result.error().detail;
    EXPECT_EQ(result->reading.persistent(), 2000U);
    EXPECT_EQ(result->note, "");
}

TEST(Pool, NeverShrinksBelowWhatIsInUse) {
    const FakeRoot fake;
    fake.set_pool(0, 2048, 10, 4);
    const auto result = resize_pool(fake.root(), kPool, 0, false, kGoOn);
    ASSERT_TRUE(result);
    EXPECT_EQ(fake.get(kPoolFiles + "nr_hugepages").substr(0, 1), "6") << "the first write stops at what is used";
}

TEST(Pool, LeavesPagesThatAreFreeButPromised) {
    const FakeRoot fake;
    fake.set_pool(0, 2048, 10, 10);
    fake.set("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "10\n");
    const auto result = resize_pool(fake.root(), kPool, 0, false, kGoOn);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->reading.total, 10U);
    EXPECT_THAT(result->note, HasSubstr("10 pages still in use or promised"));
}

TEST(Pool, StopsBetweenChunksWhenCancelled) {
    const FakeRoot fake;
    fake.set_pool(0, 2048, 0, 0);
    const std::atomic<bool> cancelled{true};
    const auto result = resize_pool(fake.root(), kPool, 100, true, cancelled);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->reading.total, 0U);
    EXPECT_THAT(result->note, HasSubstr("cancelled"));
}

TEST(DropCaches, WritesOneAndNeverMore) {
    const FakeRoot fake{{"proc/sys/vm/drop_caches", "0\n"},
                        {"proc/meminfo", "Buffers: 1 kB\nCached: 100 kB\nMapped: 20 kB\nShmem: 3 kB\n"}};
    const auto cache = drop_page_cache(fake.root());
    ASSERT_TRUE(cache) << cache.error().detail;
    EXPECT_EQ(*cache, (DroppedCache{101 * kKiB, 101 * kKiB, 20 * kKiB, 3 * kKiB}));
    EXPECT_EQ(fake.get("proc/sys/vm/drop_caches"), "1");
}

TEST(Reclaim, WritesTheBytes) {
    const FakeRoot fake{{"sys/devices/system/node/node1/reclaim", ""},
                        {"sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 9 kB\nNode 1 MemFree: 5 kB\n"}};
    const auto freed = reclaim_node(fake.root(), 1, 64 * kMiB);
    ASSERT_TRUE(freed) << freed.error().detail;
    EXPECT_EQ(*freed, 0U);
    EXPECT_EQ(fake.get("sys/devices/system/node/node1/reclaim"), "67108864 swappiness=0");
}

// The real kernel, as root. What is changed is put back, also when an expectation fails.

class RealKernel : public ::testing::Test {
protected:
    void SetUp() override {
        if (::geteuid() != 0) GTEST_SKIP() << "only root may write kernel state";
        auto root = Root::open("/");
        ASSERT_TRUE(root);
        root_ = std::make_unique<Root>(std::move(*root));
    }
    [[nodiscard]] const Root& root() const { return *root_; }

private:
    std::unique_ptr<Root> root_;
};

TEST_F(RealKernel, BalancingTakesEveryValueAndGivesItBack) {
    const auto prior = read_knob(root(), kBalancing);
    if (!prior) GTEST_SKIP() << prior.error().detail;
    for (const char* value : {"0", "2", "3", "1"}) {
        const auto got = write_knob(root(), kBalancing, value);
        if (!got && got.error().err == EROFS) GTEST_SKIP() << got.error().detail;
        ASSERT_TRUE(got) << got.error().detail;
        EXPECT_EQ(*got, value);
    }
    EXPECT_EQ(write_knob(root(), kBalancing, *prior).value(), *prior);
}

TEST_F(RealKernel, BalancingRefusesNonsenseAndKeepsItsValue) {
    const auto prior = read_knob(root(), kBalancing);
    if (!prior) GTEST_SKIP() << prior.error().detail;
    const auto refused = write_knob(root(), kBalancing, "nonsense");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::io);
    EXPECT_EQ(read_knob(root(), kBalancing).value(), *prior);
}

TEST_F(RealKernel, FourHugePagesComeAndGo) {
    const auto before = read_pool(root(), kPool);
    if (!before) GTEST_SKIP() << before.error().detail;
    const auto grown = resize_pool(root(), kPool, before->persistent() + 4, true, kGoOn);
    ASSERT_TRUE(grown) << grown.error().detail;
    EXPECT_EQ(grown->reading.persistent(), before->persistent() + 4) << grown->note;
    EXPECT_EQ(grown->reading.free, before->free + 4);
    const auto back = resize_pool(root(), kPool, before->persistent(), false, kGoOn);
    ASSERT_TRUE(back);
    EXPECT_EQ(back->reading.total, before->total);
}

TEST_F(RealKernel, ReclaimNeverFailsForWantOfPages) {
    if (!root().exists("sys/devices/system/node/node0/reclaim")) GTEST_SKIP() << "this kernel has no nodeN/reclaim";
    const auto freed = reclaim_node(root(), 0, kMiB);
    EXPECT_TRUE(freed) << freed.error().detail;
}

}  // namespace
}  // namespace numalease::host
