#include <gtest/gtest.h>

#include "service/daemon.hpp"

namespace numalease::service {
namespace {

core::State held(const model::KnobKey& key) {
    core::State state;
    state.ledger[key] = core::Row{.key = key, .prior = "1", .pool_expected = 100};
    return state;
}

TEST(JournalBroken, OnlyWritesThatGoBackToThePriorAreStillMade) {
    const model::KnobKey key{.knob = model::Knob::numa_balancing};
    EXPECT_FALSE(leaves_the_prior(core::WriteKnob{1, key, "1"}, held(key)));
    EXPECT_TRUE(leaves_the_prior(core::WriteKnob{1, key, "0"}, held(key)));
    EXPECT_TRUE(leaves_the_prior(core::WriteKnob{1, key, "1"}, {})) << "no row knows the prior";
}

TEST(JournalBroken, APoolMayShrinkButNotGrow) {
    const model::KnobKey key{.knob = model::Knob::hugepages, .node = 0, .page_size = 2 * model::kMiB};
    EXPECT_FALSE(leaves_the_prior(core::ResizePool{1, key, 84, false}, held(key)));
    EXPECT_TRUE(leaves_the_prior(core::ResizePool{1, key, 116, false}, held(key)));
}

TEST(JournalBroken, NothingNewIsConfinedButEverythingIsPutBack) {
    EXPECT_TRUE(leaves_the_prior(core::Confine{1, "c1", {}}, {}));
    EXPECT_FALSE(leaves_the_prior(core::Unconfine{1, "c1"}, {}));
    EXPECT_FALSE(leaves_the_prior(core::Kill{"c1", 15}, {}));
}

}  // namespace
}  // namespace numalease::service
