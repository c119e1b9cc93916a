#include <gtest/gtest.h>

#include <csignal>

#include "core/stepper.hpp"
#include "support/fake_machine.hpp"
#include "support/topologies.hpp"

namespace numalease {
namespace {

using model::Errc;
using model::Knob;
using model::KnobKey;
using model::LeaseState;
using model::Micros;
using test::FakeMachine;

constexpr KnobKey kBalancing{.knob = Knob::numa_balancing};

class Step : public ::testing::Test {
protected:
    FakeMachine machine{test::simple_topology(2, 4)};

    void TearDown() override { EXPECT_TRUE(machine.problems.empty()) << machine.problems.front(); }
    LeaseState state_of(const std::string& id) { return machine.lease(id).state; }
    void pass(Micros time) {
        machine.now.boot += time;
        machine.handle(core::Tick{});
    }
};

TEST_F(Step, IdsNeverRepeatAcrossARestart) {
    const auto first = machine.acquire("node=0");
    machine.holder_gone(first);
    machine.restart();
    EXPECT_NE(machine.acquire("node=0"), first);
}

TEST_F(Step, ALeaseIsDegradedWhileACpuOfItsIsOfflineAndWholeAgainAfterwards) {
    const auto whole = machine.observed.topology;
    const auto id = machine.acquire("node=0");
    const auto other = machine.acquire("node=1");
    test::take_offline(machine.observed.topology, 1);
    pass(Micros(1));
    EXPECT_EQ(machine.lease(id).offline, model::CpuSet{1});
    EXPECT_NE(model::degraded_text(machine.lease(id)).find("offline: 1"), std::string::npos);
    EXPECT_EQ(model::degraded_text(machine.lease(other)), "");
    machine.restart();
    EXPECT_EQ(machine.lease(id).offline, model::CpuSet{1});
    machine.observed.topology = whole;
    pass(Micros(1));
    EXPECT_EQ(model::degraded_text(machine.lease(id)), "");
    EXPECT_EQ(state_of(id), LeaseState::active);
}

TEST_F(Step, ALeaseWithAllItsCpusOfflineSaysThatItRunsElsewhere) {
    const auto id = machine.acquire("node=0");
    for (const auto cpu : machine.lease(id).placement.cpus.items()) test::take_offline(machine.observed.topology, cpu);
    pass(Micros(1));
    EXPECT_NE(model::degraded_text(machine.lease(id)).find("runs on any other"), std::string::npos);
}

TEST_F(Step, TheSecondOnOneNodeWaitsAndIsGrantedWhenTheFirstEnds) {
    const auto first = machine.acquire("node=0 command=llama-server");
    const auto second = machine.acquire("node=0 wait=forever");
    EXPECT_EQ(state_of(second), LeaseState::queued);
    ASSERT_FALSE(machine.lease(second).in_the_way.empty());
    EXPECT_NE(machine.lease(second).in_the_way[0].find(first + " (llama-server, uid 0"), std::string::npos)
        << machine.lease(second).in_the_way[0];
    machine.holder_gone(first);
    EXPECT_EQ(state_of(second), LeaseState::active);
}

TEST_F(Step, WithoutWaitingTheAnswerNamesWhoIsInTheWayAndTheWaysOut) {
    const auto first = machine.acquire("node=0 command=llama-server", 1001);
    EXPECT_EQ(machine.acquire("node=0 wait=no"), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::not_now);
    for (const std::string part : {first.c_str(), "llama-server", "uid 1001", "--node 1", "--wait=forever"})
        EXPECT_NE(machine.last_refusal.detail.find(part), std::string::npos)
            << part << " in " << machine.last_refusal.detail;
}

TEST_F(Step, NobodyPassesTheHeadOfTheQueue) {
    const auto small = machine.acquire("node=0");
    const auto whole = machine.acquire("node=0-1 wait=forever");
    const auto late = machine.acquire("node=1 wait=forever");
    EXPECT_EQ(state_of(late), LeaseState::queued) << "node 1 is free, but the head waits for it";
    EXPECT_EQ(machine.acquire("node=1 wait=no"), "");
    machine.holder_gone(small);
    EXPECT_EQ(state_of(whole), LeaseState::active);
    machine.holder_gone(whole);
    EXPECT_EQ(state_of(late), LeaseState::active);
}

TEST_F(Step, AWaiterGivesUpWhenItsTimeIsOver) {
    machine.acquire("node=0");
    const auto waiter = machine.acquire("node=0 wait=10s");
    ASSERT_TRUE(core::next_deadline(machine.state));
    pass(Micros(9'000'000));
    EXPECT_EQ(state_of(waiter), LeaseState::queued);
    pass(Micros(1'000'000));
    EXPECT_EQ(state_of(waiter), LeaseState::refused);
    EXPECT_EQ(machine.lease(waiter).failure, Errc::not_now);
}

TEST_F(Step, AWaiterThatVanishesLeavesTheQueue) {
    const auto first = machine.acquire("node=0");
    const auto waiter = machine.acquire("node=0 wait=forever");
    const auto next = machine.acquire("node=0 wait=forever");
    machine.holder_gone(waiter);
    EXPECT_TRUE(model::is_over(state_of(waiter)));
    machine.holder_gone(first);
    EXPECT_EQ(state_of(next), LeaseState::active);
}

TEST_F(Step, LeasesThatDisagreeOnAKnobExcludeEachOther) {
    const auto off = machine.acquire("node=0 numa-balancing=off required=numa-balancing");
    const auto on = machine.acquire("node=1 numa-balancing=on required=numa-balancing wait=forever");
    EXPECT_EQ(state_of(on), LeaseState::queued);
    EXPECT_NE(machine.lease(on).in_the_way[0].find("numa_balancing: held at 0"), std::string::npos);
    EXPECT_EQ(machine.acquire("node=1 numa-balancing=on required=numa-balancing wait=no"), "");
    machine.holder_gone(off);
    EXPECT_EQ(state_of(on), LeaseState::active);
    EXPECT_EQ(machine.knobs[kBalancing], "1");
}

TEST_F(Step, AKnobOfAPolicyThatIsHeldOtherwiseIsSkippedAndSaid) {
    machine.acquire("node=0 numa-balancing=off required=numa-balancing");
    const auto second = machine.acquire("node=1 numa-balancing=on");
    EXPECT_EQ(state_of(second), LeaseState::active);
    ASSERT_FALSE(machine.lease(second).notes.empty());
    EXPECT_NE(machine.lease(second).notes[0].find("left as it is"), std::string::npos);
}

TEST_F(Step, KeepConflictsWithNobody) {
    machine.acquire("node=0 numa-balancing=off required=numa-balancing");
    EXPECT_EQ(state_of(machine.acquire("node=1 numa-balancing=keep required=numa-balancing")), LeaseState::active);
}

TEST_F(Step, ANestedLeaseIsASubsetAndNeverWaitsOnItsAncestor) {
    const auto parent = machine.acquire("node=0 numa-balancing=off required=numa-balancing");
    const auto child = machine.acquire("cores=1", 0, parent);
    EXPECT_EQ(state_of(child), LeaseState::active);
    EXPECT_TRUE(machine.lease(parent).placement.cpus.covers(machine.lease(child).placement.cpus));
    EXPECT_EQ(machine.acquire("cores=1 numa-balancing=on required=numa-balancing wait=forever", 0, parent), "")
        << "its own parent will not end before it";
    const auto sibling = machine.acquire("cores=3", 0, parent);
    EXPECT_FALSE(machine.lease(child).placement.cpus.intersects(machine.lease(sibling).placement.cpus));
    machine.holder_gone(parent);
    EXPECT_EQ(state_of(child), LeaseState::active);
    EXPECT_EQ(machine.lease(child).caller.parent, "");
}

/// One card on each of the two nodes.
void add_gpus(model::Topology& topology) {
    topology.devices = {{.pci = "0000:01:00.0", .kind = "gpu", .nodes = {0}, .uuid = "GPU-a"},
                        {.pci = "0000:02:00.0", .kind = "gpu", .nodes = {1}, .uuid = "GPU-b"}};
}

TEST_F(Step, WhoWantsALeasedGpuWaitsForItsHolder) {
    add_gpus(machine.observed.topology);
    const auto first = machine.acquire("cores=1 gpu=0 command=llama-server");
    EXPECT_EQ(machine.acquire("cores=1 gpu=0 wait=no"), "");
    for (const std::string part : {first.c_str(), "0000:01:00.0", "llama-server", "--gpu any:1"})
        EXPECT_NE(machine.last_refusal.detail.find(part), std::string::npos) << machine.last_refusal.detail;
    const auto second = machine.acquire("cores=1 gpu=0 wait=forever");
    EXPECT_EQ(state_of(second), LeaseState::queued);
    machine.restart();
    EXPECT_EQ(machine.lease(first).placement.gpus.at(0).uuid, "GPU-a") << "the journal keeps it";
    EXPECT_EQ(machine.acquire("cores=1 gpu=0 wait=no"), "");
    machine.holder_gone(first);
    EXPECT_EQ(state_of(second), LeaseState::active);
}

TEST_F(Step, ANestedLeaseTakesSomeOfItsParentsGpus) {
    add_gpus(machine.observed.topology);
    const auto parent = machine.acquire("node=all gpu=any:2");
    const auto child = machine.acquire("cores=1 gpu=1", 0, parent);
    EXPECT_EQ(state_of(child), LeaseState::active);
    EXPECT_EQ(machine.lease(child).placement.nodes, model::NodeSet{1}) << "where its GPU is";
    EXPECT_EQ(machine.acquire("cores=1 gpu=1 wait=no", 0, parent), "") << "a sibling has it";
    EXPECT_EQ(state_of(machine.acquire("cores=1 gpu=any:1", 0, parent)), LeaseState::active);
    const auto none = machine.acquire("cores=1", 0, parent);
    EXPECT_EQ(machine.acquire("cores=1 gpu=any:1 wait=forever", 0, none), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::impossible);
    EXPECT_NE(machine.last_refusal.detail.find("asked from has none"), std::string::npos)
        << machine.last_refusal.detail;
}

TEST_F(Step, ReleaseRefusesWhileProcessesLive) {
    const auto id = machine.acquire("node=0");
    const auto refused = machine.handle(core::Release{id, true});
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->code, Errc::in_use);
    EXPECT_EQ(state_of(id), LeaseState::active);
    EXPECT_FALSE(machine.handle(core::Release{id, false}));
    EXPECT_EQ(state_of(id), LeaseState::ended);
    EXPECT_EQ(machine.handle(core::Release{"c99", false})->code, Errc::no_such_lease);
}

TEST_F(Step, StopIsTermThenKillAfterTheGrace) {
    const auto id = machine.acquire("node=0");
    machine.handle(core::Stop{id, Micros(5'000'000), "root"});
    EXPECT_EQ(machine.signals, std::vector<int>{SIGTERM});
    pass(Micros(4'000'000));
    EXPECT_EQ(machine.signals.size(), 1U);
    pass(Micros(1'000'000));
    EXPECT_EQ(machine.signals, (std::vector<int>{SIGTERM, SIGKILL}));
    machine.holder_gone(id);
    EXPECT_EQ(state_of(id), LeaseState::ended);
    EXPECT_NE(machine.lease(id).reason.find("stopped by root"), std::string::npos);
}

TEST_F(Step, AStopNeverPutsAnEndOff) {
    constexpr Micros kDay{std::int64_t{86'400} * 1'000'000};
    const auto id = machine.acquire("node=0 time=60s");
    machine.handle(core::Stop{id, kDay, "its owner"});
    EXPECT_EQ(*machine.lease(id).expires, Micros(1'000'000 + 70'000'000)) << "its own end, and then SIGKILL";
    machine.handle(core::Stop{id, Micros(5'000'000), "root"});
    EXPECT_EQ(*machine.lease(id).expires, Micros(1'000'000 + 5'000'000));
    machine.handle(core::Stop{id, kDay, "its owner"});
    EXPECT_EQ(*machine.lease(id).expires, Micros(1'000'000 + 5'000'000));
    pass(Micros(5'000'000));
    EXPECT_EQ(machine.signals.back(), SIGKILL);
    machine.handle(core::Stop{id, kDay, "its owner"});
    EXPECT_EQ(machine.signals.back(), SIGKILL);
}

TEST_F(Step, TimeIsUpAfterTheTimeAskedFor) {
    const auto id = machine.acquire("node=0 time=60s");
    pass(Micros(59'000'000));
    EXPECT_TRUE(machine.signals.empty());
    pass(Micros(1'000'000));
    EXPECT_EQ(machine.signals, std::vector<int>{SIGTERM});
    pass(Micros(10'000'000));
    EXPECT_EQ(machine.signals.back(), SIGKILL);
    EXPECT_EQ(state_of(id), LeaseState::active) << "until its processes are really gone";
}

TEST_F(Step, AJoinedProcessIsAHolder) {
    const auto id = machine.acquire("node=0");
    EXPECT_FALSE(machine.handle(core::Join{id, {.pid = 77, .start_time = 5}, {}}));
    EXPECT_EQ(machine.lease(id).holders.size(), 2U);
    EXPECT_TRUE(machine.handle(core::Join{"c99", {}, {}}));
}

TEST_F(Step, HoldersThatEndedAreDroppedAndNobodyIsListedTwice) {
    const auto id = machine.acquire("node=0");
    const auto first = machine.lease(id).holders.front();
    machine.handle(core::Join{id, {.pid = 77, .start_time = 5}, {}});
    machine.handle(core::Join{id, {.pid = 77, .start_time = 5}, {}});
    machine.handle(core::Join{id, {.pid = 78, .start_time = 5}, {{.pid = 77, .start_time = 5}}});
    EXPECT_EQ(machine.lease(id).holders, (std::vector<model::Process>{first, {.pid = 78, .start_time = 5}}));
}

TEST_F(Step, APlanMeetsWhatAnAcquireWouldMeet) {
    const auto plan = [&](const std::string& fields) {
        auto seen = machine.observed;
        const core::Acquire input{test::request(fields), machine.caller()};
        for (const auto& key : core::watched(machine.state, input, seen.topology)) {
            if (machine.knobs.contains(key)) seen.knobs[key].value = machine.knobs[key];
            if (machine.pools.contains(key)) seen.knobs[key].pool = machine.pools[key].reading();
        }
        return core::plan(machine.state, seen, input.request, input.caller, machine.now);
    };
    EXPECT_TRUE(plan("node=0 hugepages=2M=1G required=hugepages"));
    EXPECT_FALSE(plan("node=0 hugepages=2M=65G required=hugepages"));
    EXPECT_FALSE(plan("node=0 hugepages=4M=1G required=hugepages"));
    machine.acquire("node=0 numa-balancing=off required=numa-balancing");
    EXPECT_FALSE(plan("node=1 numa-balancing=on required=numa-balancing"));
}

TEST_F(Step, NothingIsGrantedWhileTheDaemonStops) {
    const auto id = machine.acquire("node=0 numa-balancing=off required=numa-balancing");
    machine.handle(core::Shutdown{});
    EXPECT_EQ(state_of(id), LeaseState::ended);
    EXPECT_EQ(machine.knobs[kBalancing], "1");
    EXPECT_EQ(machine.acquire("node=1"), "");
}

TEST_F(Step, WhoWaitsKeepsTheirPlaceOverARestart) {
    const auto active = machine.acquire("node=0");
    const auto gone = machine.acquire("node=0 wait=forever");
    const auto second = machine.acquire("node=0 wait=forever");
    const auto third = machine.acquire("node=0 wait=forever");
    machine.alive.erase(gone);
    machine.restart();
    EXPECT_EQ(state_of(gone), LeaseState::refused);
    EXPECT_EQ(machine.lease(gone).reason, "its caller ended while no daemon ran");
    EXPECT_EQ(machine.state.queue, (std::vector<model::LeaseId>{second, third}));
    machine.holder_gone(active);
    EXPECT_EQ(state_of(second), LeaseState::active);
    EXPECT_EQ(state_of(third), LeaseState::queued);
}

TEST_F(Step, AShutdownThatKeepsLeasesKeepsTheQueueToo) {
    const auto active = machine.acquire("node=0 numa-balancing=off required=numa-balancing");
    const auto waiting = machine.acquire("node=0 wait=forever");
    const auto started = machine.lease(active).started;
    machine.handle(core::Shutdown{.keeps_leases = true});
    EXPECT_EQ(state_of(active), LeaseState::active);
    EXPECT_EQ(state_of(waiting), LeaseState::queued);
    EXPECT_EQ(machine.acquire("node=1"), "");
    EXPECT_EQ(machine.knobs[kBalancing], "0");
    machine.restart();
    EXPECT_EQ(state_of(active), LeaseState::active);
    EXPECT_EQ(machine.lease(active).started, started);
    machine.holder_gone(active);
    EXPECT_EQ(machine.knobs[kBalancing], "1");
    EXPECT_EQ(state_of(waiting), LeaseState::active);
}

TEST_F(Step, DroppingCachesIsRateLimitedAndSparesOtherUsers) {
    const auto first = machine.acquire("node=0 share=yes page-cache=drop required=page-cache", 1001);
    EXPECT_EQ(state_of(first), LeaseState::active);
    EXPECT_EQ(machine.acquire("node=0 share=yes page-cache=drop required=page-cache", 1001), "");
    EXPECT_NE(machine.last_refusal.detail.find("once a minute"), std::string::npos);
    machine.now.boot += Micros(61'000'000);
    EXPECT_EQ(machine.acquire("node=0 share=yes page-cache=drop required=page-cache", 1002), "");
    EXPECT_NE(machine.last_refusal.detail.find("another user's lease"), std::string::npos);
}

TEST_F(Step, ReclaimingANodeIsRateLimitedAndSparesOtherUsersOnThatNode) {
    const std::string reclaim = " share=yes page-cache=reclaim required=page-cache";
    for (const auto& node : machine.observed.topology.nodes)
        machine.knobs[{.knob = model::Knob::reclaim, .node = node.id}] = "";
    machine.acquire("node=0 share=yes", 1002);
    EXPECT_EQ(machine.acquire("node=0" + reclaim, 1001), "");
    EXPECT_NE(machine.last_refusal.detail.find("another user's lease"), std::string::npos);
    EXPECT_EQ(state_of(machine.acquire("node=1" + reclaim, 1001)), LeaseState::active);
    EXPECT_EQ(machine.acquire("node=1" + reclaim, 1001), "");
    EXPECT_NE(machine.last_refusal.detail.find("once a minute"), std::string::npos);
}

TEST_F(Step, EvictingIsTheClientsOwnAndRefusedToNobody) {
    machine.acquire("node=0 share=yes", 1002);
    const auto id = machine.acquire("node=0 share=yes page-cache=evict required=page-cache", 1001);
    EXPECT_EQ(state_of(id), LeaseState::active);
    EXPECT_EQ(machine.lease(id).request.page_cache, model::PageCache::evict);
}

TEST_F(Step, APolicysPageCacheActionIsBestEffort) {
    machine.acquire("node=0 share=yes", 1001);
    const auto id = machine.acquire("node=0 share=yes page-cache=drop", 1002);
    EXPECT_EQ(state_of(id), LeaseState::active);
    EXPECT_NE(machine.lease(id).notes.at(0).find("another user's lease"), std::string::npos);
}

TEST_F(Step, AUnitIsPutBackBeforeItsLeaseEndsAndRetriedWhereSystemdRefuses) {
    machine.observed.systemd = true;
    machine.cgroup = "/system.slice/llama.service";
    const auto id = machine.acquire("node=0");
    EXPECT_EQ(machine.lease(id).confinement.kind, model::ConfinementKind::unit);
    machine.unconfine_error = model::Error{Errc::io, "systemd says no"};
    machine.holder_gone(id);
    EXPECT_EQ(state_of(id), LeaseState::ending);
    machine.settle(6);
    EXPECT_EQ(state_of(id), LeaseState::ending) << "the journal must not forget it";
    EXPECT_TRUE(core::is_stuck(machine.state, id));
    const auto next = machine.acquire("node=1");
    EXPECT_EQ(state_of(next), LeaseState::refused) << "what the unit says now is ours, and no prior";
    machine.unconfine_error.reset();
    machine.settle(2);
    EXPECT_EQ(state_of(id), LeaseState::ended);
    EXPECT_EQ(state_of(machine.acquire("node=1")), LeaseState::active);
}

TEST_F(Step, NothingIsDueWhileNothingWaits) {
    machine.acquire("node=0 numa-balancing=off hugepages=2M=4M");
    EXPECT_FALSE(core::next_deadline(machine.state));
}

TEST_F(Step, AnUnknownRecordIsIgnoredByName) {
    std::vector<std::string> ignored;
    const auto state = core::replay(
        {{.type = "future", .key = "x"}, {.type = "row", .key = "nonsense"}, {.type = "lease", .key = "c1"}}, ignored);
    EXPECT_EQ(ignored.size(), 3U);
    EXPECT_TRUE(core::idle(state));
}

TEST(ChooseConfinement, FollowsWhereTheCallerIs) {
    struct Case {
        std::string cgroup;
        bool systemd;
        std::string parent;
        model::ConfinementKind kind;
        std::string unit;
        std::string slice;
    };
    using enum model::ConfinementKind;
    for (const auto& it : std::vector<Case>{
             {"/user.slice/user-1001.slice/session-3.scope", true, "", scope, "numalease-c5.scope", "user-1001.slice"},
             {"/user.slice/user-0.slice/user@0.service/app.slice/x.service", true, "", scope, "numalease-c5.scope",
              "user-0.slice"},
             {"/system.slice/llama.service", true, "", unit, "llama.service", ""},
             {"/system.slice/system-getty.slice/getty@tty1.service", true, "", unit, "getty@tty1.service", ""},
             {"/system.slice/docker-abc.scope", true, "", affinity, "", ""},
             {"/system.slice/containerd.service/kubepods/pod1", true, "", affinity, "", ""},
             {"/machine.slice/libpod-1.scope/container", true, "", affinity, "", ""},
             {"/init.scope", true, "", affinity, "", ""},
             {"/", true, "", affinity, "", ""},
             {"", true, "", affinity, "", ""},
             {"/user.slice/user-1001.slice/session-3.scope", false, "", affinity, "", ""},
             {"/user.slice/user-1001.slice/numalease-c1.scope", true, "c1", affinity, "", ""}}) {
        const model::Caller caller{.cgroup = it.cgroup, .parent = it.parent};
        const auto chosen = core::choose_confinement(caller, "c5", it.systemd);
        EXPECT_EQ(chosen.kind, it.kind) << it.cgroup;
        EXPECT_EQ(chosen.unit, it.unit) << it.cgroup;
        EXPECT_EQ(chosen.slice, it.slice) << it.cgroup;
        EXPECT_FALSE(chosen.why.empty());
    }
}

}  // namespace
}  // namespace numalease
