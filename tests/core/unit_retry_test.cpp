#include <gtest/gtest.h>

#include "core/step.hpp"

namespace numalease::core {
namespace {

using model::LeaseState;
using std::chrono::microseconds;

/// One active lease whose holder is a system service.
State with_unit() {
    State state;
    auto& lease = state.leases["c1"];
    lease.id = "c1";
    lease.state = LeaseState::active;
    lease.confinement = {.kind = model::ConfinementKind::unit,
                         .unit = "foo.service",
                         .cgroup = "/system.slice/foo.service",
                         .prior_known = true};
    state.next_id = 2;
    return state;
}

model::Instant at(std::int64_t usec) { return {.boot = microseconds(usec), .real = microseconds(usec)}; }

/// The operation of the one effect of a step, which must be that a unit is put back.
std::uint64_t unconfine_of(const Step& step) {
    if (step.effects.size() != 1 || !std::holds_alternative<Unconfine>(step.effects[0])) return 0;
    return std::get<Unconfine>(step.effects[0]).op;
}

const model::Error kRefused{model::Errc::io, "foo.service could not be put back", 0};

TEST(UnitRetry, AnEndingWaitsUntilItsUnitIsPutBack) {
    auto step = core::step(with_unit(), HoldersGone{{"c1"}}, {}, at(1'000));
    auto op = unconfine_of(step);
    ASSERT_NE(op, 0U);
    step = core::step(step.next, Done{.op = op, .error = kRefused}, {}, at(2'000));
    EXPECT_EQ(step.next.leases.at("c1").state, LeaseState::ending);
    EXPECT_TRUE(step.effects.empty());
    EXPECT_EQ(step.reports.size(), 1U);
    EXPECT_FALSE(idle(step.next));

    const auto due = next_deadline(step.next);
    ASSERT_TRUE(due);
    EXPECT_GT(*due, microseconds(2'000));
    EXPECT_EQ(unconfine_of(core::step(step.next, Tick{}, {}, at(due->count() - 1))), 0U);
    step = core::step(step.next, Tick{}, {}, at(due->count()));
    op = unconfine_of(step);
    ASSERT_NE(op, 0U);
    EXPECT_FALSE(next_deadline(step.next)) << "no timer runs while the try is under way";

    step = core::step(step.next, Done{.op = op}, {}, at(due->count() + 1));
    EXPECT_EQ(step.next.leases.at("c1").state, LeaseState::ended);
    EXPECT_TRUE(idle(step.next));
}

/// The same lease while it is being confined, by operation 7.
State being_confined() {
    auto state = with_unit();
    auto& lease = state.leases.at("c1");
    lease.state = LeaseState::preparing;
    lease.stage = model::Stage::confine;
    state.lease_ops[7] = "c1";
    state.next_op = 8;
    return state;
}

TEST(UnitRetry, WhatIsStillBeingConfinedIsPutBackWhenThatIsOver) {
    auto step = core::step(being_confined(), HoldersGone{{"c1"}}, {}, at(1'000));
    EXPECT_EQ(step.next.leases.at("c1").state, LeaseState::ending);
    EXPECT_TRUE(step.effects.empty()) << "it would be confined after it was put back";
    auto confined = step.next.leases.at("c1").confinement;
    confined.effective_cpus = model::CpuSet{0};
    step = core::step(step.next, Done{.op = 7, .confinement = confined}, {}, at(2'000));
    const auto op = unconfine_of(step);
    ASSERT_NE(op, 0U);
    EXPECT_EQ(step.next.leases.at("c1").confinement.effective_cpus, model::CpuSet{0});
    step = core::step(step.next, Done{.op = op}, {}, at(3'000));
    EXPECT_EQ(step.next.leases.at("c1").state, LeaseState::refused);
    EXPECT_TRUE(idle(step.next));
}

TEST(UnitRetry, ALeaseParkedWhileItIsConfinedAnewIsPutBackWhenThatIsOver) {
    auto state = being_confined();
    auto& lease = state.leases.at("c1");
    lease.started = at(500);
    lease.request.grace = microseconds(60'000'000);
    auto step = core::step(state, HoldersGone{{"c1"}}, {}, at(1'000));
    ASSERT_TRUE(step.next.leases.at("c1").parked);
    EXPECT_EQ(step.effects.size(), 1U) << "only its unit is asked about";
    step = core::step(step.next, Done{.op = 7, .error = kRefused}, {}, at(2'000));
    EXPECT_NE(unconfine_of(step), 0U);
}

TEST(UnitRetry, AnOrderlyRestartKeepsALeaseThatIsTakenUpAgain) {
    auto state = being_confined();
    auto& lease = state.leases.at("c1");
    lease.started = at(500);
    lease.request.grace = microseconds(60'000'000);
    const auto step = core::step(state, Shutdown{.keeps_leases = true}, {}, at(1'000));
    EXPECT_EQ(step.next.leases.at("c1").state, LeaseState::preparing);
}

TEST(UnitRetry, ARefusalIsReportedOnceAndNobodyIsKeptWaitingForEver) {
    auto step = core::step(with_unit(), HoldersGone{{"c1"}}, {}, at(1'000));
    std::size_t reports = 0;
    auto now = at(1'000);
    int tries = 0;
    for (; !is_stuck(step.next, "c1") && tries < 100; ++tries) {
        step = core::step(step.next, Done{.op = unconfine_of(step), .error = kRefused}, {}, now);
        reports += step.reports.size();
        now = at(next_deadline(step.next).value().count());
        step = core::step(step.next, Tick{}, {}, now);
    }
    EXPECT_LT(tries, 10);
    EXPECT_EQ(reports, 1U);
    EXPECT_EQ(step.next.leases.at("c1").notes.size(), 1U);
    EXPECT_NE(step.next.leases.at("c1").reason.find("could not be put back"), std::string::npos);
    EXPECT_NE(unconfine_of(step), 0U) << "it is tried on all the same";
}

TEST(UnitRetry, ARestartTriesAgainAtOnce) {
    const auto ending = core::step(with_unit(), HoldersGone{{"c1"}}, {}, at(1'000)).next;
    const auto failed = core::step(ending, Done{.op = 1, .error = kRefused}, {}, at(2'000)).next;
    std::vector<std::string> ignored;
    const auto replayed = replay(snapshot(failed), ignored);
    EXPECT_TRUE(ignored.empty());
    EXPECT_NE(unconfine_of(core::step(replayed, Recover{}, {}, at(3'000))), 0U);
}

TEST(UnitOwner, TheNextRunOfAUnitIsLookedAtOnlyWhenTheFormerLeaseIsOffIt) {
    auto state = core::step(with_unit(), HoldersGone{{"c1"}}, {}, at(1'000)).next;
    auto& next = state.leases["c2"];
    next.id = "c2";
    next.state = LeaseState::preparing;
    next.stage = model::Stage::hugepages;
    next.caller.cgroup = "/system.slice/foo.service";
    const Observed observed{.systemd = true};
    auto step = core::step(state, Tick{}, observed, at(2'000));
    EXPECT_TRUE(step.effects.empty());
    step = core::step(step.next, Done{.op = 1}, observed, at(3'000));
    ASSERT_EQ(step.effects.size(), 1U);
    EXPECT_EQ(std::get<InspectUnit>(step.effects[0]).lease, "c2");
}

TEST(UnitOwner, ASecondProcessOfAUnitDoesNotTakeItsMask) {
    auto state = with_unit();
    auto& second = state.leases["c2"];
    second.id = "c2";
    second.state = LeaseState::preparing;
    second.stage = model::Stage::hugepages;
    second.caller.cgroup = "/system.slice/foo.service";
    const auto step = core::step(state, Tick{}, Observed{.systemd = true}, at(2'000));
    EXPECT_EQ(step.next.leases.at("c2").state, LeaseState::refused);
    EXPECT_TRUE(step.effects.empty()) << "the first lease's mask stays";
    EXPECT_EQ(step.next.leases.at("c1").state, LeaseState::active);
}

}  // namespace
}  // namespace numalease::core
