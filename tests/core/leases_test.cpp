#include "core/leases.hpp"

#include <gmock/gmock.h>

namespace numalease::core {
namespace {

using model::LeaseId;
using model::LeaseState;
using testing::ElementsAre;
using testing::IsEmpty;

model::Lease lease(const LeaseId& id, LeaseState state) { return {.id = id, .state = state}; }

std::vector<LeaseId> begun(const Leases& leases) {
    return leases.begun_where([](const model::Lease&) { return true; });
}

/// c1 waits, c2 is active.
Leases two() {
    Leases out;
    out.add(lease("c2", LeaseState::active));
    out.add(lease("c1", LeaseState::queued));
    out.settle();
    return out;
}

TEST(LeasesOf, AreInTheOrderOfTheirIds) {
    const auto leases = two();
    std::vector<LeaseId> ids;
    for (const auto& [id, it] : leases) ids.push_back(id);
    EXPECT_THAT(ids, ElementsAre("c1", "c2"));
    EXPECT_EQ(leases.find("c2")->second.state, LeaseState::active);
    EXPECT_EQ(leases.find("c3"), leases.end());
    EXPECT_EQ(leases.get("c"), nullptr);
    EXPECT_FALSE(leases.contains("c10"));
}

TEST(LeasesOf, ThoseThatWaitAreApartOnceNobodyCanChangeThem) {
    auto leases = two();
    EXPECT_THAT(begun(leases), ElementsAre("c2"));
    leases.edit("c1").reason = "behind c2";
    EXPECT_THAT(begun(leases), ElementsAre("c1", "c2"));
    leases.settle();
    EXPECT_THAT(begun(leases), ElementsAre("c2"));
    leases["c1"].state = LeaseState::preparing;
    leases.settle();
    EXPECT_THAT(begun(leases), ElementsAre("c1", "c2"));
    leases.erase("c2");
    EXPECT_THAT(begun(leases), ElementsAre("c1"));
}

TEST(LeasesOf, ACopySharesWhatNeitherChanges) {
    const auto before = two();
    auto after = before;
    EXPECT_THAT(after.changed_since(before), IsEmpty());
    after.edit("c1").state = LeaseState::preparing;
    EXPECT_EQ(before.at("c1").state, LeaseState::queued);
    EXPECT_EQ(before.share("c2"), after.share("c2"));
    after.erase("c2");
    after.add(lease("c0", LeaseState::queued));
    EXPECT_THAT(after.changed_since(before), ElementsAre("c0", "c1", "c2"));
    EXPECT_THAT(before.changed_since(after), ElementsAre("c0", "c1", "c2"));
}

}  // namespace
}  // namespace numalease::core
