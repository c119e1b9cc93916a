// Leases whose holder may come back: named ones, and units that systemd starts again (CASES 44, 55).

#include <gtest/gtest.h>

#include <csignal>
#include <utility>

#include "support/fake_machine.hpp"

namespace numalease {
namespace {

using model::ConfinementKind;
using model::Errc;
using model::Knob;
using model::KnobKey;
using model::LeaseState;
using model::Micros;
using test::Crash;
using test::FakeMachine;
using test::until_crash;

constexpr KnobKey kBalancing{.knob = Knob::numa_balancing};
constexpr const char* kHold = "name=llama node=0 numa-balancing=off required=numa-balancing";

class Parking : public ::testing::Test {
protected:
    FakeMachine machine{test::simple_topology(2, 4)};

    Parking() { machine.observed.systemd = true; }
    void TearDown() override { EXPECT_TRUE(machine.problems.empty()) << machine.problems.front(); }
    LeaseState state_of(const std::string& id) { return machine.lease(id).state; }
    bool is_parked(const std::string& id) { return machine.lease(id).parked.has_value(); }
    void pass(Micros time) {
        machine.now.boot += time;
        machine.handle(core::Tick{});
    }
    /// A service with one lease of its own.
    std::string unit() {
        machine.cgroup = "/system.slice/llama.service";
        machine.whole_unit = true;
        return machine.acquire("node=0 numa-balancing=off command=one");
    }
};

TEST_F(Parking, ANamedLeaseIsASlice) {
    const auto id = machine.acquire(kHold);
    EXPECT_EQ(machine.lease(id).confinement.kind, ConfinementKind::slice);
    EXPECT_EQ(machine.lease(id).confinement.unit, "numalease-llama.slice");
    EXPECT_EQ(state_of(id), LeaseState::active);
}

TEST_F(Parking, WithoutSystemdThereIsNoNamedLease) {
    machine.observed.systemd = false;
    EXPECT_EQ(machine.acquire(kHold), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::unsupported);
}

TEST_F(Parking, ANamedLeaseKeepsWhatItHasForTheGraceAndThenEnds) {
    const auto id = machine.acquire(kHold);
    machine.holder_gone(id);
    EXPECT_TRUE(is_parked(id));
    EXPECT_EQ(machine.knobs[kBalancing], "0");
    EXPECT_EQ(machine.acquire("node=0 wait=no"), "") << "it keeps its place";
    EXPECT_NE(machine.last_refusal.detail.find("parked"), std::string::npos) << machine.last_refusal.detail;
    const auto waiter = machine.acquire("node=0 wait=forever");
    pass(Micros(29'000'000));
    EXPECT_EQ(state_of(id), LeaseState::active);
    pass(Micros(1'000'000));
    EXPECT_EQ(state_of(id), LeaseState::ended);
    EXPECT_EQ(machine.knobs[kBalancing], "1");
    EXPECT_EQ(state_of(waiter), LeaseState::active);
}

TEST_F(Parking, TheSameHolderTakesItUpAheadOfTheQueueWithItsIdAndStart) {
    const auto id = machine.acquire(kHold);
    const auto started = machine.lease(id).started;
    machine.holder_gone(id);
    const auto waiter = machine.acquire("node=0 wait=forever");
    machine.now.boot += Micros(10'000'000);
    EXPECT_EQ(machine.acquire(std::string(kHold) + " wait=no command=again"), id);
    EXPECT_FALSE(is_parked(id));
    EXPECT_EQ(machine.lease(id).started, started);
    EXPECT_EQ(machine.lease(id).holders.size(), 1U);
    EXPECT_EQ(state_of(waiter), LeaseState::queued);
    pass(Micros(60'000'000));
    EXPECT_EQ(state_of(id), LeaseState::active);
    machine.holder_gone(id);
    EXPECT_TRUE(is_parked(id)) << "again, for the whole grace";
}

TEST_F(Parking, NobodyIsWarnedOfTheEndOfWhatNobodyHolds) {
    const auto id = machine.acquire(std::string(kHold) + " time=1h grace=30min");
    pass(Micros(std::int64_t{50 * 60} * 1'000'000));
    machine.holder_gone(id);
    ASSERT_TRUE(is_parked(id));
    pass(Micros(std::int64_t{8 * 60} * 1'000'000));
    const auto due = core::next_deadline(machine.state);
    ASSERT_TRUE(due);
    EXPECT_GT(*due, machine.now.boot) << "or the daemon would do nothing else than look";
}

TEST_F(Parking, WhatWasVerifiedWasTheFormerEngine) {
    const auto id = unit();
    machine.state.leases.edit(id).verified.at = machine.now.boot;
    machine.holder_gone(id);
    ASSERT_TRUE(is_parked(id));
    EXPECT_EQ(unit(), id);
    EXPECT_EQ(machine.lease(id).verified, model::Verification{});
}

TEST_F(Parking, OneLiveLeaseAName) {
    const auto id = machine.acquire(kHold);
    EXPECT_EQ(machine.acquire("name=llama node=1"), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::not_now);
    machine.holder_gone(id);
    EXPECT_EQ(machine.acquire(kHold, 1001), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::denied);
    EXPECT_NE(machine.acquire("name=other node=1"), "");
}

TEST_F(Parking, AChangedDefinitionIsANewLease) {
    const auto id = machine.acquire(kHold);
    machine.holder_gone(id);
    const auto next = machine.acquire("name=llama node=0-1");
    EXPECT_NE(next, id);
    EXPECT_EQ(state_of(id), LeaseState::ended);
    EXPECT_EQ(state_of(next), LeaseState::active);
}

TEST_F(Parking, AChangedDefinitionWaitsForWhatRunsInTheSlice) {
    const auto id = machine.acquire(kHold);
    machine.holder_gone(id);
    machine.inhabited.insert(id);
    EXPECT_EQ(machine.acquire("name=llama node=1"), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::in_use);
    EXPECT_EQ(state_of(id), LeaseState::active);
}

TEST_F(Parking, WhoJoinedTheSliceMeanwhileKeepsTheLease) {
    const auto id = machine.acquire(kHold);
    machine.holder_gone(id);
    machine.inhabited.insert(id);
    pass(Micros(30'000'000));
    EXPECT_FALSE(is_parked(id));
    EXPECT_EQ(state_of(id), LeaseState::active);
    machine.inhabited.clear();
    machine.holder_gone(id);
    pass(Micros(30'000'000));
    EXPECT_EQ(state_of(id), LeaseState::ended);
}

TEST_F(Parking, AParkedLeaseIsReleasedOrStoppedAtOnce) {
    for (const bool release : {true, false}) {
        const auto id = machine.acquire(kHold);
        machine.holder_gone(id);
        release ? machine.handle(core::Release{id, false}) : machine.handle(core::Stop{id, Micros(1), "root"});
        EXPECT_EQ(state_of(id), LeaseState::ended);
        EXPECT_TRUE(machine.signals.empty());
    }
}

TEST_F(Parking, AStoppedLeaseIsNotParked) {
    const auto id = machine.acquire(kHold);
    machine.handle(core::Stop{id, Micros(5'000'000), "root"});
    machine.holder_gone(id);
    EXPECT_EQ(state_of(id), LeaseState::ended);
}

TEST_F(Parking, WithoutAGraceThereIsNone) {
    const auto id = machine.acquire(std::string(kHold) + " grace=0s");
    machine.holder_gone(id);
    EXPECT_EQ(state_of(id), LeaseState::ended);
}

TEST_F(Parking, ARestartOfTheDaemonKeepsItParkedForTheSameTime) {
    const auto id = machine.acquire(kHold);
    machine.holder_gone(id);
    pass(Micros(20'000'000));
    machine.restart();
    EXPECT_TRUE(is_parked(id));
    pass(Micros(9'000'000));
    EXPECT_EQ(state_of(id), LeaseState::active);
    pass(Micros(1'000'000));
    EXPECT_EQ(state_of(id), LeaseState::ended);
}

TEST_F(Parking, AHolderThatEndedWhileNoDaemonRanMayStillComeBack) {
    const auto id = machine.acquire(kHold);
    machine.alive.clear();
    machine.restart();
    EXPECT_TRUE(is_parked(id));
    EXPECT_EQ(machine.acquire(kHold), id);
}

TEST_F(Parking, AUnitThatIsStartedAgainTakesUpItsLeaseWithoutQueueing) {
    const auto id = unit();
    EXPECT_EQ(machine.lease(id).confinement.kind, ConfinementKind::unit);
    machine.holder_gone(id);
    EXPECT_TRUE(is_parked(id));
    EXPECT_FALSE(machine.lease(id).confinement.prior_known) << "its mask is off before the next run";
    const auto cgroup = std::exchange(machine.cgroup, "/user.slice/user-1001.slice/session-1.scope");
    const auto waiter = machine.acquire("node=0 wait=forever", 1001);
    machine.cgroup = cgroup;
    EXPECT_EQ(machine.acquire("node=0 numa-balancing=off command=two"), id);
    EXPECT_EQ(state_of(waiter), LeaseState::queued);
    EXPECT_EQ(state_of(id), LeaseState::active);
    EXPECT_TRUE(machine.lease(id).confinement.prior_known);
    EXPECT_FALSE(is_parked(id));
}

TEST_F(Parking, AUnitThatHasEndedBlocksNobody) {
    const auto id = unit();
    machine.unit_is_over = true;
    machine.holder_gone(id);
    EXPECT_EQ(state_of(id), LeaseState::ended);
}

TEST_F(Parking, AUnitThatIsStoppedWhileItWaitsForItsRestartEndsWithinASecond) {
    const auto id = unit();
    machine.holder_gone(id);
    machine.unit_is_over = true;
    pass(Micros(1'000'000));
    EXPECT_EQ(state_of(id), LeaseState::ended);
}

TEST_F(Parking, TheNextRunOfAUnitWithAnotherRequestIsANewLease) {
    const auto id = unit();
    machine.holder_gone(id);
    const auto next = machine.acquire("node=0-1");
    EXPECT_NE(next, id);
    EXPECT_EQ(state_of(id), LeaseState::ended);
    EXPECT_EQ(state_of(next), LeaseState::active);
}

TEST_F(Parking, AMaskThatSystemdKeepsIsNoPriorOfTheNextRun) {
    const auto id = unit();
    machine.unconfine_error = model::Error{Errc::io, "systemd says no"};
    machine.holder_gone(id);
    ASSERT_TRUE(machine.lease(id).confinement.prior_known);
    bool inspected = false;
    machine.before_effect = [&](const core::Effect& effect) {
        inspected = inspected || std::holds_alternative<core::InspectUnit>(effect);
    };
    EXPECT_EQ(machine.acquire("node=0 numa-balancing=off"), id);
    EXPECT_EQ(state_of(id), LeaseState::active);
    EXPECT_FALSE(inspected);
    machine.unconfine_error.reset();
    machine.unit_is_over = true;
    machine.holder_gone(id);
    machine.settle();
    EXPECT_EQ(state_of(id), LeaseState::ended);
}

/// A hold and a unit that come and go, and come back.
void scenario(FakeMachine& machine) {
    machine.observed.systemd = true;
    const auto named = machine.acquire("name=llama node=0 numa-balancing=off thp=always hugepages=2M=32M");
    machine.holder_gone(named);
    machine.acquire("name=llama node=0 numa-balancing=off thp=always hugepages=2M=32M");
    machine.holder_gone(named);
    machine.cgroup = "/system.slice/llama.service";
    machine.whole_unit = true;
    const auto unit = machine.acquire("node=1 numa-balancing=off hugepages=2M=8M");
    machine.holder_gone(unit);
    machine.acquire("node=1 numa-balancing=off hugepages=2M=8M");
    machine.holder_gone(unit);
    machine.settle();
}

FakeMachine start() {
    FakeMachine machine(test::simple_topology(2, 4));
    machine.knobs[kBalancing] = "2";
    return machine;
}

void expect_as_at_start(FakeMachine& machine) {
    const auto begin = start();
    EXPECT_EQ(machine.knobs, begin.knobs);
    for (const auto& [key, pool] : begin.pools) EXPECT_EQ(machine.pools[key].persistent, pool.persistent) << key.text();
    EXPECT_TRUE(core::idle(machine.state));
    EXPECT_TRUE(machine.problems.empty()) << machine.problems.front();
}

TEST(ParkingCrash, AtEveryActionParkedLeasesAreKeptForTheirGraceAndTheMachineComesBack) {
    auto whole = start();
    scenario(whole);
    expect_as_at_start(whole);
    for (std::size_t n = 0; n <= whole.actions; ++n) {
        SCOPED_TRACE(n);
        auto machine = start();
        machine.crash_after = n;
        until_crash(machine, scenario);
        const auto held = core::replay(machine.journal, machine.reports);
        machine.alive.clear();
        machine.restart();
        for (const auto& [id, lease] : held.leases) {
            const auto now = machine.state.leases.find(id);
            const auto kept = lease.state == LeaseState::active && lease.confinement.kind != ConfinementKind::none;
            if (!kept) continue;
            EXPECT_TRUE(now != machine.state.leases.end() && now->second.parked) << id;
        }
        machine.settle();
        expect_as_at_start(machine);
    }
}

TEST(ParkingCrash, DyingAgainWhileRecoveringIsRecoveredToo) {
    auto whole = start();
    scenario(whole);
    for (std::size_t n = 0; n <= whole.actions; n += 2)
        for (std::size_t again = 1; again < 6; ++again) {
            SCOPED_TRACE(std::to_string(n) + " then " + std::to_string(again));
            auto machine = start();
            machine.crash_after = n;
            until_crash(machine, scenario);
            machine.alive.clear();
            try {
                std::vector<std::string> ignored;
                machine.state = core::replay(machine.journal, ignored);
                machine.crash_after = machine.actions + again;
                machine.handle(core::Recover{});
                machine.settle();
            } catch (const Crash&) {
            }
            machine.restart();
            machine.settle();
            expect_as_at_start(machine);
        }
}

}  // namespace
}  // namespace numalease
