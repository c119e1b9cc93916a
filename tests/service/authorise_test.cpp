#include "service/authorise.hpp"

#include <gtest/gtest.h>

namespace numalease::service {
namespace {

using model::Errc;
using model::Request;

constexpr Action kAll[] = {Action::acquire, Action::acquire_kernel_state, Action::shield, Action::drop_caches,
                           Action::manage};

Request request(std::string_view field, std::string_view text) {
    Request out;
    EXPECT_TRUE(model::set_field(out, field, text)) << field;
    return out;
}

TEST(Authorise, RootMayDoEverything) {
    for (const auto action : kAll) EXPECT_TRUE(decide_without_polkit(action, 0, false, "root", "numa-lease"));
}

TEST(Authorise, TheGroupMayLeaseButNeitherDropCachesNorManageOthers) {
    const auto decide = [](Action action) { return decide_without_polkit(action, 1001, true, "ann", "numa-lease"); };
    EXPECT_TRUE(decide(Action::acquire));
    EXPECT_TRUE(decide(Action::acquire_kernel_state));
    EXPECT_TRUE(decide(Action::shield));
    EXPECT_FALSE(decide(Action::drop_caches));
    EXPECT_FALSE(decide(Action::manage));
}

TEST(Authorise, NobodyElseMayDoAnythingAndIsToldTheWayIn) {
    for (const auto action : kAll) {
        const auto verdict = decide_without_polkit(action, 1001, false, "ann", "gpu-people");
        ASSERT_FALSE(verdict);
        EXPECT_EQ(verdict.error().code, Errc::denied);
        EXPECT_NE(verdict.error().detail.find(action_id(action)), std::string::npos) << verdict.error().detail;
    }
    const auto verdict = decide_without_polkit(Action::acquire, 1001, false, "ann", "gpu-people");
    EXPECT_NE(verdict.error().detail.find("usermod -aG gpu-people ann"), std::string::npos) << verdict.error().detail;
}

TEST(Authorise, CoresAndMemoryNeedNoMoreThanALease) {
    EXPECT_EQ(actions_of({}), std::vector{Action::acquire});
    EXPECT_EQ(actions_of(request("cores", "4")), std::vector{Action::acquire});
    EXPECT_EQ(actions_of(request("numa-balancing", "keep")), std::vector{Action::acquire});
}

TEST(Authorise, EveryKnobThatOthersFeelNeedsTheKernelStateAction) {
    const std::pair<const char*, const char*> fields[] = {
        {"numa-balancing", "off"}, {"numa-balancing", "on"},  {"thp", "always"},
        {"thp-defrag", "never"},   {"zone-reclaim", "1"},     {"weights", "0=2"},
        {"hugepages", "2M=32M"},   {"page-cache", "reclaim"}, {"mempolicy", "weighted"}};
    for (const auto& [field, text] : fields)
        EXPECT_EQ(actions_of(request(field, text)), (std::vector{Action::acquire, Action::acquire_kernel_state}))
            << field;
}

TEST(Authorise, AShieldIsAnActionOfItsOwn) {
    EXPECT_EQ(actions_of(request("shield", "yes")), (std::vector{Action::acquire, Action::shield}));
}

TEST(Authorise, DroppingCachesIsAnActionOfItsOwn) {
    EXPECT_EQ(actions_of(request("page-cache", "drop")), (std::vector{Action::acquire, Action::drop_caches}));
}

TEST(Authorise, ANamedLeaseIsASliceOfTheSystem) {
    EXPECT_EQ(actions_of(request("name", "llama")), (std::vector{Action::acquire, Action::manage}));
}

TEST(Authorise, MembershipComesFromTheAccountAndAMissingGroupHasNoMembers) {
    Accounts accounts;
    for (int again = 0; again < 2; ++again) {
        EXPECT_TRUE(accounts.is_member(0, "root"));
        EXPECT_FALSE(accounts.is_member(0, "no-such-group-at-all"));
        EXPECT_FALSE(accounts.is_member(4'000'000'000U, "root"));
        EXPECT_FALSE(accounts.is_member(4'000'000'000U, "no-such-group-at-all"));
    }
    EXPECT_EQ(user_name(0), "root");
    EXPECT_EQ(user_name(4'000'000'000U), "4000000000");
}

}  // namespace
}  // namespace numalease::service
