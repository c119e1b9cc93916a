#include "core/schedule.hpp"

#include <gmock/gmock.h>

#include <csignal>

#include "support/fake_machine.hpp"

// Who is served first, who may go before, what the site lets a user have, and when a lease's time is up.

namespace numalease {
namespace {

using model::Errc;
using model::kGiB;
using model::LeaseState;
using model::Micros;
using test::FakeMachine;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Micros operator""_s(unsigned long long count) { return Micros(static_cast<std::int64_t>(count) * 1'000'000); }

/// Two nodes of four cores.
class Schedule : public ::testing::Test {
protected:
    FakeMachine machine{test::simple_topology(2, 4)};

    void TearDown() override { EXPECT_TRUE(machine.problems.empty()) << machine.problems.front(); }
    LeaseState state_of(const std::string& id) { return machine.lease(id).state; }
    bool runs(const std::string& id) { return state_of(id) == LeaseState::active; }
    void pass(Micros time) {
        machine.now.boot += time;
        machine.handle(core::Tick{});
    }
    std::vector<std::string> order() { return core::order_of(machine.state, machine.observed, machine.now.boot); }
    std::string estimate(const std::string& id) {
        for (const auto& it : core::forecast(machine.state, machine.observed, machine.now))
            if (it.lease == id) return std::to_string(it.position) + ": " + it.text;
        return "";
    }
    core::Extend extend(const std::string& id, Micros by, bool administrator = false) {
        return {.lease = id, .by = by, .may_pass_limits = administrator};
    }
};

TEST_F(Schedule, WhoNeedsNothingOfWhatTheFirstWaitsForGoesAhead) {
    const auto holder = machine.acquire("node=0");
    const auto first = machine.acquire("node=0 wait=forever", 1);
    const auto beside = machine.acquire("node=1 wait=no", 2);
    EXPECT_TRUE(runs(beside));
    machine.holder_gone(holder);
    EXPECT_TRUE(runs(first));
}

TEST_F(Schedule, AShortOneGoesAheadWhereItIsOverBeforeTheFirstStarts) {
    machine.acquire("node=0 time=1h");
    const auto whole = machine.acquire("node=all wait=forever time=1h", 1);
    const auto too_long = machine.acquire("node=1 wait=forever time=2h", 2);
    const auto endless = machine.acquire("node=1 wait=forever", 3);
    EXPECT_EQ(state_of(too_long), LeaseState::queued);
    EXPECT_EQ(state_of(endless), LeaseState::queued);
    EXPECT_THAT(machine.lease(endless).in_the_way, ElementsAre(HasSubstr("behind " + whole)));
    EXPECT_THAT(machine.lease(endless).in_the_way.front(), HasSubstr("--time"));
    EXPECT_TRUE(runs(machine.acquire("node=1 wait=no time=30min", 4)));
}

TEST_F(Schedule, WhereTheFirstMayWaitForEverWhatHasAnEndGoesAhead) {
    const auto chat = machine.acquire("node=0 command=llama-server");
    const auto whole = machine.acquire("node=all wait=forever", 1);
    EXPECT_EQ(estimate(whole), "1: never, unless " + chat + " (llama-server) ends");
    EXPECT_EQ(state_of(machine.acquire("node=1 wait=forever", 2)), LeaseState::queued);
    EXPECT_TRUE(runs(machine.acquire("node=1 wait=no time=30min", 3)));
}

TEST_F(Schedule, TheEstimateNamesWhoseEndItWaitsFor) {
    machine.acquire("node=0 time=1h command=first");
    const auto second = machine.acquire("node=1 time=100min command=llama-server");
    const auto whole = machine.acquire("node=all wait=forever time=10min", 1);
    EXPECT_EQ(estimate(whole), "1: when " + second + " (llama-server) ends, at the latest in 1h 40min");
    const auto next = machine.acquire("node=1 wait=forever", 2);
    EXPECT_EQ(estimate(next), "2: when " + whole + " (test) ends, at the latest in 1h 50min");
}

TEST_F(Schedule, ClassesThenTurnsThenAge) {
    machine.acquire("node=all time=1h");
    const auto batch = machine.acquire("node=0 class=batch wait=forever", 1);
    const auto one = machine.acquire("node=0 wait=forever", 1);
    const auto two = machine.acquire("node=0 wait=forever", 1);
    const auto other = machine.acquire("node=0 wait=forever", 2);
    const auto service = machine.acquire("node=0 class=service wait=forever", 3);
    EXPECT_THAT(order(), ElementsAre(service, one, other, two, batch));
    machine.observed.scheduling.aging = 600_s;
    machine.now.boot += 601_s;
    const auto young = machine.acquire("node=0 class=service wait=forever", 4);
    EXPECT_THAT(order(), ElementsAre(one, other, service, young, two, batch)) << "of each user the next one, by age";
}

TEST_F(Schedule, OneUsersHundredsDoNotBlockOthers) {
    machine.acquire("node=all time=1h", 1);
    const auto first = machine.acquire("node=0 wait=forever", 1);
    for (int i = 0; i < 60; ++i) machine.acquire("node=0 wait=forever", 1);
    const auto other = machine.acquire("node=0 wait=forever", 2);
    EXPECT_EQ(order().at(0), first) << "it was told when it starts";
    EXPECT_EQ(order().at(1), other);
}

TEST_F(Schedule, WhoKeptTheTurnHasHadItAllTheSame) {
    const auto holder = machine.acquire("node=all", 2);
    const auto first = machine.acquire("node=0 wait=forever", 1);
    const auto second = machine.acquire("node=1 wait=forever", 1);
    const auto other = machine.acquire("node=1 wait=forever", 2);
    pass(2_s);
    machine.holder_gone(holder);
    EXPECT_TRUE(runs(first));
    EXPECT_TRUE(runs(other)) << "it has used a little, and user 1 has had a turn";
    EXPECT_EQ(state_of(second), LeaseState::queued);
}

TEST_F(Schedule, WhoWasToldWhenToStartKeepsTheTurnOverARestart) {
    machine.acquire("node=all time=1h", 1);
    const auto told = machine.acquire("node=all wait=forever", 1);
    const auto other = machine.acquire("node=0 wait=forever", 2);
    EXPECT_THAT(order(), ElementsAre(told, other));
    machine.restart();
    EXPECT_THAT(order(), ElementsAre(told, other));
}

TEST_F(Schedule, WhoHasUsedMoreComesLaterAndUseIsForgotten) {
    machine.observed.scheduling.half_life = 3600_s;
    const auto greedy = machine.acquire("node=0", 1);
    pass(3600_s);
    machine.holder_gone(greedy);
    const auto used = core::usage_by_user(machine.state, machine.observed, machine.now.boot);
    EXPECT_NEAR(used.at(1), 3600 / 0.6931 * 0.5, 1) << "decayed while it was used";
    machine.acquire("node=all time=1h", 3);
    const auto first = machine.acquire("node=1 wait=forever", 4);
    const auto one = machine.acquire("node=0 wait=forever", 1);
    const auto two = machine.acquire("node=0 wait=forever", 2);
    EXPECT_THAT(order(), ElementsAre(first, two, one));
    machine.restart();
    machine.handle(core::Tick{});
    EXPECT_THAT(order(), ElementsAre(first, two, one)) << "it is in the journal";
    machine.observed.limits[1].weight = 1000;
    EXPECT_THAT(order(), ElementsAre(first, two, one)) << "whatever the weight, some is more than nothing";
    machine.now.boot += 36'000_s;
    EXPECT_LT(core::usage_by_user(machine.state, machine.observed, machine.now.boot).at(1), 3);
}

TEST_F(Schedule, LeasesThatDisagreeOnAKnobAreInEachOthersWay) {
    machine.acquire("node=0 numa-balancing=off required=numa-balancing time=1h", 1);
    const auto on = machine.acquire("node=1 numa-balancing=on required=numa-balancing wait=forever", 2);
    EXPECT_EQ(state_of(on), LeaseState::queued);
    EXPECT_THAT(estimate(on), HasSubstr("at the latest in 1h"));
    // It would keep the knob at the first's value beyond that.
    const auto off = machine.acquire("node=1 numa-balancing=off required=numa-balancing wait=forever time=2h", 3);
    EXPECT_EQ(state_of(off), LeaseState::queued);
    pass(3600_s);
}

TEST_F(Schedule, MemoryThatIsPromisedBecomesFreeWithItsLease) {
    machine.acquire("cores=1 node=0 memory=40G mempolicy=bind time=1h", 1);
    const auto waits = machine.acquire("cores=1 node=0 memory=40G mempolicy=bind wait=forever", 2);
    EXPECT_EQ(state_of(waits), LeaseState::queued);
    EXPECT_THAT(estimate(waits), HasSubstr("at the latest in 1h"));
    EXPECT_TRUE(runs(machine.acquire("cores=1 node=0 memory=10G mempolicy=bind wait=no", 3))) << "room for both";
    EXPECT_EQ(machine.acquire("cores=1 node=0 memory=14G mempolicy=bind wait=no", 4), "") << "the first needs it";
}

TEST_F(Schedule, MemoryOfOtherProgramsThatBecomesFreeIsSeen) {
    auto& memory = machine.observed.memory.at(0);
    ASSERT_TRUE(runs(machine.acquire("cores=1 node=0 memory=20G mempolicy=bind", 1)));
    memory.free = memory.total - 50 * kGiB;
    const auto waits = machine.acquire("cores=1 node=0 memory=30G mempolicy=bind wait=forever", 2);
    ASSERT_EQ(state_of(waits), LeaseState::queued);
    memory.free = memory.total - 5 * kGiB;  // what is promised to the other is taken off
    const auto due = core::next_deadline(machine.state);
    ASSERT_TRUE(due) << "nothing else tells of it";
    pass(*due - machine.now.boot);
    EXPECT_TRUE(runs(waits));
}

TEST_F(Schedule, AnEstimateOfWhatIsAsGoodAsEndlessIsNoTimeInThePast) {
    const std::string endless = "node=0 time=" + std::to_string(model::kNever.count()) + "us";
    machine.acquire(endless, 1);
    machine.acquire(endless + " wait=forever", 2);
    const auto last = machine.acquire("node=0 wait=forever", 3);
    for (const auto& it : core::forecast(machine.state, machine.observed, machine.now))
        if (it.lease == last) {
            EXPECT_GT(it.start.value_or(Micros::max()), Micros(model::kNever / 2)) << it.text;
        }
}

TEST_F(Schedule, APlanKnowsWhenCachesWereDropped) {
    machine.state.last_drop = machine.now.boot;
    const auto plan = [&] {
        return core::plan(machine.state, machine.observed, test::request("cores=1 page-cache=drop required=page-cache"),
                          machine.caller(), machine.now);
    };
    EXPECT_FALSE(plan());
    machine.now.boot += 61_s;
    EXPECT_TRUE(plan());
}

TEST_F(Schedule, HugePagesThatAnotherLeaseLeavesNoRoomForAreWaitedFor) {
    auto& memory = machine.observed.memory.at(0);
    const auto pages = machine.acquire("cores=1 node=0 hugepages=2M=1G required=hugepages time=1h", 1);
    ASSERT_TRUE(runs(pages));
    memory.free = memory.total - 62 * kGiB;
    const auto waits = machine.acquire("cores=1 node=0 hugepages=2M=2G required=hugepages wait=forever", 2);
    EXPECT_EQ(state_of(waits), LeaseState::queued);
    EXPECT_THAT(machine.lease(waits).in_the_way.front(), HasSubstr("hugepages: 2G asked on node 0, which has 1.7G"));
    EXPECT_THAT(estimate(waits), HasSubstr("when " + pages));
    EXPECT_TRUE(runs(machine.acquire("cores=1 node=1 hugepages=2M=1G required=hugepages wait=no", 3)));
}

// ── what a user may have ─────────────────────────────────────────────────────────────────────────────────────────

TEST_F(Schedule, WhatOnlyTheUsersOwnLimitHoldsBackHoldsUpNobody) {
    machine.observed.limits[1].leases = 1;
    const auto has = machine.acquire("cores=1", 1);
    const auto second = machine.acquire("cores=1 wait=forever", 1);
    EXPECT_EQ(state_of(second), LeaseState::queued);
    EXPECT_THAT(machine.lease(second).in_the_way.front(), HasSubstr("leases: 1 asked, uid 1 has 1 already"));
    EXPECT_TRUE(runs(machine.acquire("cores=1 wait=no", 2)));
    EXPECT_EQ(machine.acquire("cores=1 wait=no", 1), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::quota);
    machine.holder_gone(has);
    EXPECT_TRUE(runs(second));
}

TEST_F(Schedule, HoweverManyAUsersLimitHoldsBackOthersAreLookedAt) {
    machine.observed.limits[1].leases = 1;
    machine.acquire("cores=1 node=0 class=service", 1);
    // No two alike, so that nothing is passed over for being like another.
    for (int i = 0; i < 80; ++i)
        machine.acquire("cores=1 class=service wait=forever memory=" + std::to_string(i + 1) + "M", 1);
    EXPECT_TRUE(runs(machine.acquire("cores=1 class=batch wait=no", 2)));
}

TEST_F(Schedule, ACrowdIsServedAtOnceWhenRoomIsMadeAndOnceASecondWhenSomebodyComesOrGoes) {
    machine.light = true;
    const auto one = machine.acquire("node=0");
    const auto other = machine.acquire("node=1");
    std::vector<std::string> crowd;
    for (int i = 0; i < 70; ++i) crowd.push_back(machine.acquire("node=0 wait=forever"));
    // Free cores that nobody's end has told of: whoever comes next does not find them, but the next look does.
    machine.acquire("node=1 wait=forever", 1);
    machine.state.leases.edit(other).state = LeaseState::ended;
    machine.acquire("node=0 wait=forever", 2);
    EXPECT_EQ(machine.state.queue.size(), 72U);
    ASSERT_TRUE(machine.state.queue_retry_at);
    EXPECT_EQ(*machine.state.queue_retry_at, machine.now.boot + 1_s);
    pass(1_s);
    EXPECT_EQ(machine.state.queue.size(), 71U);
    machine.handle(core::HoldersGone{{crowd[50], crowd[51], crowd[52]}});
    EXPECT_EQ(machine.state.queue.size(), 68U);
    EXPECT_EQ(state_of(crowd[51]), LeaseState::refused);
    machine.holder_gone(one);
    EXPECT_TRUE(runs(crowd[0]));
}

TEST_F(Schedule, HoweverManyEndAtOnceTheyAreAllThereToBeToldOf) {
    machine.light = true;
    machine.acquire("node=all");
    core::HoldersGone gone;
    for (int i = 0; i < 100; ++i) gone.leases.push_back(machine.acquire("node=0 wait=forever"));
    machine.handle(gone);
    for (const auto& id : gone.leases) EXPECT_EQ(state_of(id), LeaseState::refused);
    machine.handle(core::Tick{});
    EXPECT_EQ(machine.state.leases.size(), 1U + 64U);
}

TEST_F(Schedule, WhatALimitNeverAllowsDoesNotWait) {
    machine.acquire("node=all", 2);
    machine.observed.limits[1].cores = 2;
    EXPECT_EQ(machine.acquire("cores=3 wait=forever", 1), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::impossible);
    EXPECT_THAT(machine.last_refusal.detail, HasSubstr("cores: 3 asked, 2 is the most for uid 1"));
}

TEST_F(Schedule, EveryLimitIsKept) {
    struct Row {
        const char* name;
        model::Limits limits;
        const char* fields;
        Errc code;
        const char* text;
    };
    const Row rows[] = {
        {"cores", {.cores = 2}, "cores=3", Errc::impossible, "cores: 3 asked, 2 is the most for uid 1"},
        {"nodes", {.nodes = 1}, "node=all", Errc::impossible, "nodes: 2 asked, 1 is the most"},
        {"memory", {.memory = 8 * kGiB}, "memory=9G", Errc::impossible, "memory: 9G asked, 8G is the most"},
        {"hugepages", {.hugepages = kGiB}, "hugepages=2M=2G", Errc::impossible, "hugepages: 2G asked, 1G is the most"},
        {"time", {.time = 3600_s}, "time=2h", Errc::quota, "time: 2h asked, at most 1h"},
        {"classes",
         {.classes = {{"batch"}}},
         "class=normal",
         Errc::quota,
         "class: normal is not allowed for you here; allowed: batch"},
        {"policies", {.policies = {{"single-node"}}}, "cores=1", Errc::quota, "policy: none is not allowed"},
        {"levers", {.levers = {{"thp"}}}, "numa-balancing=off", Errc::quota, "numa-balancing is not allowed"},
    };
    for (const auto& row : rows) {
        machine.observed.limits[1] = row.limits;
        EXPECT_EQ(machine.acquire(std::string(row.fields) + " wait=no", 1), "") << row.name;
        EXPECT_EQ(machine.last_refusal.code, row.code) << row.name << ": " << machine.last_refusal.detail;
        EXPECT_THAT(machine.last_refusal.detail, HasSubstr(row.text)) << row.name;
        EXPECT_TRUE(runs(machine.acquire(std::string(row.fields) + " wait=no", 0))) << row.name;
        machine.holder_gone(*machine.alive.begin());
    }
    machine.observed.limits.clear();
    EXPECT_EQ(machine.acquire("class=urgent", 1), "");
    EXPECT_THAT(machine.last_refusal.detail, HasSubstr("no 'urgent' here; there are batch, normal, service"));
}

TEST_F(Schedule, ALeaseInsideAnotherIsOneMoreAndNothingElse) {
    machine.observed.limits[1] = {.cores = 4, .leases = 2};
    const auto outer = machine.acquire("node=0", 1);
    EXPECT_TRUE(runs(machine.acquire("cores=4 share=yes", 1, outer))) << "of the cores that it has already";
    EXPECT_EQ(machine.acquire("cores=1 share=yes wait=forever", 1, outer), "")
        << "its own parent will not end before it";
    EXPECT_EQ(machine.last_refusal.code, Errc::quota);
    EXPECT_THAT(machine.last_refusal.detail, HasSubstr("leases: 1 asked, uid 1 has 2 already"));
}

TEST_F(Schedule, SoManyOfAUserMayWait) {
    machine.observed.limits[1].queued = 1;
    machine.acquire("node=0");
    EXPECT_EQ(state_of(machine.acquire("node=0 wait=forever", 1)), LeaseState::queued);
    EXPECT_EQ(machine.acquire("node=0 wait=forever", 1), "");
    EXPECT_EQ(machine.last_refusal.code, Errc::quota);
    EXPECT_THAT(machine.last_refusal.detail, HasSubstr("uid 1 has 1 requests in the queue"));
    EXPECT_EQ(state_of(machine.acquire("node=0 wait=forever", 2)), LeaseState::queued);
    EXPECT_TRUE(runs(machine.acquire("node=1 wait=forever", 1))) << "it need not wait";
}

TEST_F(Schedule, WhoNamesNoCoresGetsAsManyAsAllowed) {
    machine.observed.limits[1].cores = 2;
    const auto id = machine.acquire("node=any:1", 1);
    EXPECT_EQ(machine.lease(id).placement.cores, 2U);
    EXPECT_THAT(machine.lease(id).notes, ElementsAre(HasSubstr("cores: 2, the most for uid 1 here")));
}

TEST_F(Schedule, AClassesTimeIsTheEndOfWhoHasNone) {
    machine.observed.scheduling.classes["batch"].time = 60_s;
    const auto id = machine.acquire("cores=1 class=batch", 1);
    ASSERT_TRUE(machine.lease(id).expires);
    EXPECT_EQ(*machine.lease(id).expires, machine.now.boot + 60_s);
}

// ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(Schedule, AWarningThenTheEnd) {
    const auto id = machine.acquire("cores=1 time=1h warn=5min:USR1");
    pass(3299_s);
    EXPECT_TRUE(machine.signals.empty());
    pass(1_s);
    EXPECT_THAT(machine.signals, ElementsAre(SIGUSR1));
    machine.restart();
    pass(60_s);
    EXPECT_THAT(machine.signals, ElementsAre(SIGUSR1)) << "once, over a restart too";
    pass(240_s);
    EXPECT_THAT(machine.signals, ElementsAre(SIGUSR1, SIGTERM));
    pass(10_s);
    EXPECT_THAT(machine.signals, ElementsAre(SIGUSR1, SIGTERM, SIGKILL));
    EXPECT_EQ(machine.lease(id).reason, "its time is up");
}

TEST_F(Schedule, AnEndCanBePutOff) {
    const auto id = machine.acquire("cores=1 time=1h");
    const auto end = *machine.lease(id).expires;
    pass(3400_s);
    EXPECT_TRUE(machine.lease(id).warned);
    EXPECT_FALSE(machine.handle(extend(id, 1800_s)));
    EXPECT_EQ(*machine.lease(id).expires, end + 1800_s);
    EXPECT_FALSE(machine.lease(id).warned);
    pass(300_s);
    EXPECT_TRUE(machine.signals.empty());

    const auto endless = machine.acquire("cores=1");
    EXPECT_THAT(machine.handle(extend(endless, 60_s))->detail, HasSubstr("has no end"));
    EXPECT_EQ(machine.handle(extend("c99", 60_s))->code, Errc::no_such_lease);
    EXPECT_EQ(machine.handle(extend(id, Micros(-1)))->code, Errc::invalid_request);
    EXPECT_EQ(machine.handle(extend(id, Micros::max()))->code, Errc::invalid_request);
}

TEST_F(Schedule, NotPastALimitNorPastWhatTheFirstInTheQueueWasTold) {
    machine.observed.limits[1].time = 7200_s;
    const auto id = machine.acquire("node=0 time=1h", 1);
    EXPECT_EQ(machine.handle(extend(id, 3601_s))->code, Errc::quota);
    const auto first = machine.acquire("node=0 wait=forever", 2);
    const auto refused = machine.handle(extend(id, 1800_s));
    ASSERT_TRUE(refused);
    EXPECT_THAT(refused->detail, HasSubstr(first + " (uid 2) waits first in the queue"));
    EXPECT_FALSE(machine.handle(extend(id, 7200_s, true))) << "an administrator may";
}

TEST_F(Schedule, NorPastThatWhereAnotherIsOnlyHeldBackByItsUsersLimit) {
    machine.observed.limits[1].leases = 1;
    ASSERT_TRUE(runs(machine.acquire("node=1", 1)));
    const auto id = machine.acquire("node=0 time=1h", 3);
    machine.acquire("cores=1 class=service wait=forever", 1);
    const auto first = machine.acquire("node=0 wait=forever", 2);
    ASSERT_EQ(machine.state.first, first);
    const auto refused = machine.handle(extend(id, 7200_s));
    ASSERT_TRUE(refused);
    EXPECT_THAT(refused->detail, HasSubstr(first + " (uid 2) waits first in the queue"));
}

TEST_F(Schedule, AnExtensionThatDelaysNobodyIsGiven) {
    const auto id = machine.acquire("node=0 time=1h", 1);
    machine.acquire("node=1 time=4h", 1);
    machine.acquire("node=all wait=forever", 2);
    EXPECT_FALSE(machine.handle(extend(id, 7200_s))) << "the other node is busy for longer";
    EXPECT_TRUE(machine.handle(extend(id, 7200_s)));
}

}  // namespace
}  // namespace numalease
