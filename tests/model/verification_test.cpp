#include "model/verification.hpp"

#include <gtest/gtest.h>

namespace numalease::model {
namespace {

Verification some() {
    return {.at = Micros(7),
            .unknown = {},
            .nodes = {{0, {.anonymous = 3 * kGiB, .file = kGiB, .mapped = 512 * kMiB}},
                      {2, {.anonymous = kMiB, .file = 0, .mapped = 0}}},
            .inside = 4 * kGiB,
            .imbalance_permille = 1490,
            .warnings = {"1M is elsewhere", "and so on"}};
}

TEST(Verification, GoesThroughAJournalLineUnchanged) {
    const auto back = unflatten(flatten(to_dict(some())));
    ASSERT_TRUE(back);
    EXPECT_EQ(verification_from_dict(*back), some());
    EXPECT_EQ(verification_from_dict({}), Verification{});
}

TEST(Verification, IsOneLineForPeople) {
    EXPECT_EQ(verification_text(some()),
              "4G, >99 % of it on leased nodes (node 0: 4G, node 2: 1M); 3G anonymous, 1G of files, 512M of it mapped; "
              "the fullest node has 149 % of its part");
    EXPECT_EQ(verification_text({}), "it is charged for no memory");
    auto unknown = some();
    unknown.unknown = "its cgroup /a has no memory.numa_stat";
    EXPECT_EQ(verification_text(unknown), "not known: its cgroup /a has no memory.numa_stat");
}

}  // namespace
}  // namespace numalease::model
