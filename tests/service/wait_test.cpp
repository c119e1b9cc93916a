#include <gtest/gtest.h>

#include "service/manager.hpp"

namespace numalease::service {
namespace {

using model::Errc;
using model::LeaseState;

model::Lease lease(LeaseState state) { return {.id = "c1", .state = state, .reason = "because"}; }

TEST(Wait, ForActiveGetsTheLeaseOnceItIs) {
    EXPECT_FALSE(wait_answer(lease(LeaseState::queued), true));
    EXPECT_FALSE(wait_answer(lease(LeaseState::preparing), true));
    const auto answer = wait_answer(lease(LeaseState::active), true);
    ASSERT_TRUE(answer && *answer);
    EXPECT_EQ(model::get_text(**answer, "id"), "c1");
}

TEST(Wait, ForActiveGetsTheReasonOfARefusalAsAnError) {
    auto refused = lease(LeaseState::refused);
    refused.failure = Errc::impossible;
    const auto answer = wait_answer(refused, true);
    ASSERT_TRUE(answer && !*answer);
    EXPECT_EQ(answer->error(), (model::Error{Errc::impossible, "because"}));
}

TEST(Wait, ForActiveDoesNotHangOnALeaseThatIsOver) {
    for (const auto state : {LeaseState::ending, LeaseState::ended}) {
        const auto answer = wait_answer(lease(state), true);
        ASSERT_TRUE(answer && !*answer);
        EXPECT_NE(answer->error().detail.find("because"), std::string::npos);
    }
}

TEST(Wait, ForActiveWaitsForAFailingLeaseToBeUndone) {
    auto failing = lease(LeaseState::ending);
    failing.failure = Errc::unsupported;
    EXPECT_FALSE(wait_answer(failing, true));
}

TEST(Wait, ForEndedGetsTheLeaseHoweverItEnded) {
    EXPECT_FALSE(wait_answer(lease(LeaseState::active), false));
    EXPECT_FALSE(wait_answer(lease(LeaseState::ending), false));
    EXPECT_TRUE(wait_answer(lease(LeaseState::ended), false)->has_value());
    EXPECT_TRUE(wait_answer(lease(LeaseState::refused), false)->has_value());
}

}  // namespace
}  // namespace numalease::service
