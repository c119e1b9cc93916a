#include <gtest/gtest.h>

#include "core/stepper.hpp"
#include "support/fake_machine.hpp"

namespace numalease {
namespace {

using model::ConfinementKind;
using model::Errc;
using model::LeaseState;
using model::ShieldKind;
using test::FakeMachine;

constexpr auto kSession = "/user.slice/user-1001.slice/session-3.scope";
constexpr auto kService = "/system.slice/ollama.service";

FakeMachine machine_with(ShieldKind kernel, const std::string& cgroup = kSession) {
    FakeMachine machine(test::simple_topology(2, 4));
    machine.observed.systemd = true;
    machine.observed.shield.kernel = kernel;
    machine.cgroup = cgroup;
    return machine;
}

// ── What is asked for ────────────────────────────────────────────────────────────────────────────────────────────

TEST(Shield, ContradictsSharing) {
    const auto request = test::request("shield=yes share=yes");
    const auto valid = model::validate(request);
    ASSERT_FALSE(valid);
    EXPECT_EQ(valid.error().code, Errc::invalid_request);
    EXPECT_TRUE(model::validate(test::request("shield=yes")));
}

TEST(Shield, IsLeftOutWhereItsPlaceIsTakenAndOnlyAPolicyAskedForIt) {
    auto machine = machine_with(ShieldKind::path);
    machine.shield_in_the_way = "other.slice has CPUs 4 for itself";
    EXPECT_EQ(machine.acquire("node=1 shield=yes required=shield", 1001), "c1");
    EXPECT_EQ(machine.lease("c1").state, LeaseState::refused);
    const auto id = machine.acquire("node=1 shield=yes", 1001);
    const auto& lease = machine.lease(id);
    EXPECT_EQ(lease.state, LeaseState::active);
    EXPECT_EQ(lease.confinement.shield.kind, ShieldKind::none);
    EXPECT_EQ(lease.confinement.why.find("partition"), std::string::npos) << lease.confinement.why;
    ASSERT_FALSE(lease.notes.empty());
    EXPECT_NE(lease.notes[0].find("left out"), std::string::npos) << lease.notes[0];
}

// ── Where it can be had ──────────────────────────────────────────────────────────────────────────────────────────

TEST(Shield, OfASessionIsItsOwnScopeWhereTheKernelHandsCpusDownThePath) {
    auto machine = machine_with(ShieldKind::path);
    const auto id = machine.acquire("node=1 shield=yes required=shield", 1001);
    const auto& it = machine.lease(id).confinement;
    EXPECT_EQ(it.kind, ConfinementKind::scope);
    EXPECT_EQ(it.slice, "user-1001.slice");
    EXPECT_EQ(it.shield.cgroup, "/user.slice/user-1001.slice/numalease-" + id + ".scope");
    EXPECT_TRUE(it.shield.in_force);
}

TEST(Shield, OfAServiceIsItsOwnUnitWhereTheKernelHandsCpusDownThePath) {
    auto machine = machine_with(ShieldKind::path, kService);
    const auto& it = machine.lease(machine.acquire("node=1 shield=yes required=shield")).confinement;
    EXPECT_EQ(it.kind, ConfinementKind::unit);
    EXPECT_EQ(it.shield.cgroup, kService);
    EXPECT_TRUE(it.prior_known);
}

TEST(Shield, OfASessionOnAnOlderKernelIsTheOneTopLevelSlice) {
    auto machine = machine_with(ShieldKind::slice);
    const auto first = machine.acquire("node=1 cores=1 shield=yes required=shield", 1001);
    const auto second = machine.acquire("node=1 cores=1 shield=yes required=shield", 1001);
    for (const auto& id : {first, second}) {
        EXPECT_EQ(machine.lease(id).confinement.slice, "numaleaseshield.slice");
        EXPECT_EQ(machine.lease(id).confinement.shield.cgroup, "/numaleaseshield.slice");
    }
    EXPECT_EQ(machine.partitions.at("/numaleaseshield.slice"),
              model::CpuSet(machine.lease(first).placement.cpus | machine.lease(second).placement.cpus));
    machine.holder_gone(first);
    EXPECT_EQ(machine.partitions.at("/numaleaseshield.slice"), machine.lease(second).placement.cpus);
    machine.holder_gone(second);
    EXPECT_TRUE(machine.partitions.empty());
}

TEST(Shield, IsRefusedWithTheReasonWhereItCannotBeHad) {
    const auto refusal = [](FakeMachine machine) {
        EXPECT_EQ(machine.acquire("node=1 shield=yes required=shield", 1001), "");
        EXPECT_EQ(machine.last_refusal.code, Errc::unsupported);
        EXPECT_TRUE(machine.state.leases.empty());
        return machine.last_refusal.detail;
    };
    EXPECT_NE(refusal(machine_with(ShieldKind::none)).find("no cpuset partitions"), std::string::npos);
    EXPECT_NE(refusal(machine_with(ShieldKind::slice, kService)).find("ollama.service stays in its slice"),
              std::string::npos);
    EXPECT_NE(refusal(machine_with(ShieldKind::path, "/docker/1234")).find("not systemd's to confine"),
              std::string::npos);
    auto limited = machine_with(ShieldKind::slice);
    limited.observed.shield.limits["user-1001.slice"] = "memory.max=1073741824";
    EXPECT_NE(refusal(std::move(limited)).find("(memory.max=1073741824)"), std::string::npos);
}

TEST(Shield, LeavesTheUsersSliceOnlyWhereTheKernelIsOld) {
    auto machine = machine_with(ShieldKind::path);
    machine.observed.shield.limits["user-1001.slice"] = "memory.max=1073741824";
    EXPECT_NE(machine.acquire("node=1 shield=yes required=shield", 1001), "");
}

TEST(Shield, ThatAPolicyBroughtIsLeftOutAndSaidSo) {
    auto machine = machine_with(ShieldKind::none);
    const auto& lease = machine.lease(machine.acquire("node=0 shield=yes", 1001));
    EXPECT_EQ(lease.state, LeaseState::active);
    EXPECT_FALSE(lease.request.shield);
    EXPECT_EQ(lease.placement.cores, 4U) << "no core is held back for a shield that is not there";
    ASSERT_EQ(lease.notes.size(), 1U);
    EXPECT_NE(lease.notes[0].find("left out"), std::string::npos);
}

TEST(Shield, OfANestedLeaseIsThatOfItsParentOrNone) {
    auto machine = machine_with(ShieldKind::path);
    const auto bare = machine.acquire("node=1 cores=2");
    EXPECT_EQ(machine.acquire("cores=1 shield=yes required=shield", 0, bare), "");
    EXPECT_NE(machine.last_refusal.detail.find(bare + ", which this is nested in, has none"), std::string::npos);
    const auto shielded = machine.acquire("node=1 cores=2 shield=yes required=shield");
    const auto child = machine.acquire("cores=1 shield=yes required=shield", 0, shielded);
    ASSERT_NE(child, "");
    EXPECT_EQ(machine.lease(child).confinement.shield.kind, ShieldKind::none);
    EXPECT_EQ(machine.partitions.size(), 1U);
}

// ── Housekeeping ─────────────────────────────────────────────────────────────────────────────────────────────────

TEST(Shield, LeavesOneCoreOfTheMachineToEverybodyElse) {
    auto machine = machine_with(ShieldKind::path);
    const auto id = machine.acquire("node=all shield=yes required=shield");
    EXPECT_EQ(machine.lease(id).placement.cpus.text(), "1-7,9-15");
    EXPECT_EQ(machine.acquire("cores=8 shield=yes required=shield"), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::impossible);
    EXPECT_NE(machine.last_refusal.detail.find("CPUs 0,8 are held back"), std::string::npos)
        << machine.last_refusal.detail;
}

TEST(Shield, PrefersANodeThatIsWhole) {
    auto machine = machine_with(ShieldKind::path);
    const auto& lease = machine.lease(machine.acquire("node=any:1 shield=yes required=shield"));
    EXPECT_EQ(lease.placement.nodes.text(), "1");
    EXPECT_EQ(lease.placement.cores, 4U);
    ASSERT_FALSE(lease.placement.runners_up.empty());
    EXPECT_NE(lease.placement.runners_up[0].find("held back"), std::string::npos);
}

// ── While it lasts, and after ────────────────────────────────────────────────────────────────────────────────────

TEST(Shield, ThatTheKernelDoesNotMakeRefusesTheLeaseAndLeavesNothing) {
    auto machine = machine_with(ShieldKind::path);
    machine.partition_problem = "root invalid (Cpu list in cpuset.cpus not exclusive)";
    const auto id = machine.acquire("node=1 shield=yes required=shield", 1001);
    EXPECT_EQ(machine.lease(id).state, LeaseState::refused);
    EXPECT_EQ(machine.lease(id).failure, Errc::not_now);
    EXPECT_NE(machine.lease(id).reason.find("not exclusive"), std::string::npos);
    EXPECT_TRUE(core::idle(machine.state));
}

TEST(Shield, ThatIsLostUnderALiveLeaseIsSaidAndSoIsItsReturn) {
    auto machine = machine_with(ShieldKind::path);
    const auto id = machine.acquire("node=1 shield=yes required=shield", 1001);
    const auto now = [&](const std::string& problem) { machine.handle(core::ShieldChanged{id, problem}); };
    now("root invalid (x)");
    EXPECT_EQ(machine.lease(id).state, LeaseState::active);
    EXPECT_FALSE(machine.lease(id).confinement.shield.in_force);
    EXPECT_NE(machine.lease(id).reason.find("its shield does not hold"), std::string::npos);
    EXPECT_EQ(machine.lease(id).reason, model::degraded_text(machine.lease(id)));
    now("");
    EXPECT_TRUE(machine.lease(id).confinement.shield.in_force);
    EXPECT_EQ(machine.lease(id).reason, "its shield holds again");
    EXPECT_TRUE(machine.problems.empty()) << machine.problems.front();
}

TEST(Shield, ThatCannotBeTakenDownIsTriedAgainAndTheLeaseIsNotForgotten) {
    auto machine = machine_with(ShieldKind::path);
    const auto id = machine.acquire("node=1 shield=yes required=shield", 1001);
    machine.unconfine_error = model::Error{Errc::io, "busy"};
    machine.holder_gone(id);
    EXPECT_EQ(machine.lease(id).state, LeaseState::ending);
    EXPECT_EQ(machine.partitions.size(), 1U);
    machine.unconfine_error.reset();
    machine.settle();
    EXPECT_EQ(machine.lease(id).state, LeaseState::ended);
    EXPECT_TRUE(machine.partitions.empty());
}

TEST(Shield, GivesThreadsTheMasksThatTheyHadBeforeItOrHaveChosenSince) {
    const auto mask = [](int tid, std::initializer_list<unsigned> cpus) {
        return model::ThreadMask{.pid = tid, .thread = {.pid = tid, .start_time = 7}, .cpus = cpus};
    };
    const std::vector recorded{mask(1, {2}), mask(2, {2, 3, 4}), mask(3, {0, 1}), mask(4, {2, 5})};
    // Behind a shield of 2-3: 1 could keep nothing, 2 has the rest, 3 chose another, 4 was widened, 5 is new.
    const std::vector now{mask(2, {4}), mask(3, {5}), mask(5, {1})};
    const auto after = core::masks_behind_shields(recorded, now, model::CpuSet{2, 3});
    EXPECT_EQ(after, (std::vector{mask(1, {2}), mask(2, {2, 3, 4}), mask(3, {5}), mask(4, {2, 5}), mask(5, {1})}));
}

TEST(Shield, ComesDownAfterACrashAtEveryAction) {
    for (const auto kernel : {ShieldKind::slice, ShieldKind::path}) {
        const auto scenario = [](FakeMachine& machine) {
            const auto first = machine.acquire("node=1 cores=2 shield=yes required=shield numa-balancing=off", 1001);
            const auto second = machine.acquire("node=1 cores=1 shield=yes required=shield", 1001);
            machine.holder_gone(first);
            machine.holder_gone(second);
        };
        auto whole = machine_with(kernel);
        scenario(whole);
        ASSERT_TRUE(whole.partitions.empty());
        ASSERT_GT(whole.actions, 10U);
        for (const bool survives : {false, true})
            for (std::size_t n = 0; n <= whole.actions; ++n) {
                SCOPED_TRACE(std::to_string(n) + (survives ? " alive" : " dead"));
                auto machine = machine_with(kernel);
                machine.crash_after = n;
                try {
                    scenario(machine);
                } catch (const test::Crash&) {
                }
                machine.alive.clear();
                for (const auto& [id, lease] : core::replay(machine.journal, machine.reports).leases)
                    if (survives && lease.state == LeaseState::active) machine.alive.insert(id);
                machine.restart();
                machine.settle();
                for (const auto& id : std::set(machine.alive)) {
                    EXPECT_TRUE(machine.lease(id).placement.cpus.empty() ||
                                machine.partitions.at(machine.lease(id).confinement.shield.cgroup)
                                    .covers(machine.lease(id).placement.cpus));
                    machine.holder_gone(id);
                }
                machine.settle();
                EXPECT_TRUE(machine.partitions.empty());
                EXPECT_TRUE(core::idle(machine.state));
                EXPECT_TRUE(machine.problems.empty()) << machine.problems.front();
            }
    }
}

}  // namespace
}  // namespace numalease
