#include <gtest/gtest.h>

#include "core/stepper.hpp"
#include "support/fake_machine.hpp"

namespace numalease {
namespace {

using model::Knob;
using model::KnobKey;
using model::LeaseState;
using test::FakeMachine;

constexpr KnobKey kBalancing{.knob = Knob::numa_balancing};
const KnobKey kPool{.knob = Knob::hugepages, .node = 0, .page_size = 2 * model::kMiB};
const std::string kOff = "node=0 share=yes numa-balancing=off required=numa-balancing wait=no";
const std::string kPages = "node=0 share=yes hugepages=2M=32M required=hugepages wait=no";  // 16 pages

class Ledger : public ::testing::Test {
protected:
    FakeMachine machine{test::simple_topology(2, 4)};

    void TearDown() override { EXPECT_TRUE(machine.problems.empty()) << machine.problems.front(); }
    std::string& balancing() { return machine.knobs[kBalancing]; }
    test::FakePool& pool() { return machine.pools[kPool]; }
};

TEST_F(Ledger, RestoresPriorWhenLastHolderLeaves) {
    for (const std::string prior : {"1", "2", "3", "4"}) {
        balancing() = prior;
        const auto first = machine.acquire(kOff);
        const auto second = machine.acquire(kOff);
        EXPECT_EQ(machine.lease(first).state, LeaseState::active);
        EXPECT_EQ(balancing(), "0");
        machine.holder_gone(first);
        EXPECT_EQ(balancing(), "0");
        machine.holder_gone(second);
        EXPECT_EQ(balancing(), prior);
        EXPECT_TRUE(core::idle(machine.state));
    }
}

TEST_F(Ledger, LeavesAForeignValueAloneAndReportsBothValues) {
    const auto id = machine.acquire(kOff);
    balancing() = "2";
    machine.holder_gone(id);
    EXPECT_EQ(balancing(), "2");
    ASSERT_FALSE(machine.reports.empty());
    const auto& text = machine.reports.back();
    EXPECT_NE(text.find("found 2 where we wrote 0"), std::string::npos) << text;
    EXPECT_NE(text.find("before us: 1"), std::string::npos) << text;
    EXPECT_TRUE(core::idle(machine.state));
}

TEST_F(Ledger, AForeignValueSeenByANewcomerIsWhatComesBack) {
    const auto first = machine.acquire(kOff);
    balancing() = "2";
    const auto second = machine.acquire(kOff);
    EXPECT_EQ(balancing(), "0");
    machine.holder_gone(first);
    machine.holder_gone(second);
    EXPECT_EQ(balancing(), "2");
}

TEST_F(Ledger, ReportsAnOverwriteOfAHeldKnobOnceAndDoesNotFight) {
    const auto id = machine.acquire(kOff);
    balancing() = "1";
    machine.handle(core::Tick{});
    machine.handle(core::Tick{});
    EXPECT_EQ(machine.reports.size(), 1U);
    EXPECT_EQ(balancing(), "1");
    machine.holder_gone(id);
    EXPECT_EQ(balancing(), "1");
}

TEST_F(Ledger, NothingIsWrittenWhereThePriorIsAlreadyWhatIsWanted) {
    balancing() = "0";
    const auto id = machine.acquire(kOff);
    EXPECT_EQ(machine.lease(id).state, LeaseState::active);
    balancing() = "3";  // somebody else
    machine.holder_gone(id);
    EXPECT_EQ(balancing(), "3");
}

TEST_F(Ledger, RetriesAKnobThatRefusesToComeBackAndRestoresTheOthers) {
    const auto id = machine.acquire("node=0 numa-balancing=off thp=always required=numa-balancing,thp");
    ASSERT_EQ(machine.lease(id).state, LeaseState::active);
    machine.refusing.insert(kBalancing);
    machine.holder_gone(id);
    EXPECT_EQ(machine.knobs[{.knob = Knob::thp_enabled}], "madvise");
    EXPECT_EQ(balancing(), "0");
    EXPECT_FALSE(core::idle(machine.state));
    machine.settle(6);
    EXPECT_EQ(machine.lease(id).state, LeaseState::ended) << "a lease does not wait for ever for a knob";
    EXPECT_FALSE(machine.reports.empty());
    machine.refusing.clear();
    machine.settle();
    EXPECT_EQ(balancing(), "1");
    EXPECT_TRUE(core::idle(machine.state));
}

TEST_F(Ledger, ARequiredKnobThatRefusesUndoesEverything) {
    machine.refusing.insert(kBalancing);
    const auto id = machine.acquire("node=0 numa-balancing=off thp=always required=numa-balancing,thp");
    EXPECT_EQ(machine.lease(id).state, LeaseState::refused);
    EXPECT_EQ(machine.lease(id).failure, model::Errc::io);
    EXPECT_EQ(machine.knobs[{.knob = Knob::thp_enabled}], "madvise");
    EXPECT_TRUE(core::idle(machine.state));
}

TEST_F(Ledger, ABestEffortKnobThatRefusesIsSkippedAndSaid) {
    machine.refusing.insert(kBalancing);
    const auto id = machine.acquire("node=0 numa-balancing=off");
    EXPECT_EQ(machine.lease(id).state, LeaseState::active);
    ASSERT_FALSE(machine.lease(id).notes.empty());
    EXPECT_NE(machine.lease(id).notes.back().find("Permission denied"), std::string::npos);
    machine.holder_gone(id);
    EXPECT_TRUE(core::idle(machine.state));
}

TEST_F(Ledger, AMissingKnobIsUnsupportedAndOnlyFatalWhereRequired) {
    machine.knobs.erase(kBalancing);
    EXPECT_EQ(machine.acquire(kOff), "");
    EXPECT_EQ(machine.last_refusal.code, model::Errc::unsupported);
    EXPECT_EQ(machine.lease(machine.acquire("node=0 numa-balancing=off")).state, LeaseState::active);
}

TEST_F(Ledger, OnKeepsAnyValueThatIsOn) {
    balancing() = "3";
    const auto id = machine.acquire("node=0 numa-balancing=on required=numa-balancing");
    EXPECT_EQ(machine.lease(id).state, LeaseState::active);
    EXPECT_EQ(balancing(), "3");
    machine.holder_gone(id);
    EXPECT_EQ(balancing(), "3");
}

TEST_F(Ledger, AutoTurnsBalancingOffOnlyUnderTheLocalPolicy) {
    const auto bound = machine.acquire("node=0 share=yes mempolicy=bind");
    EXPECT_EQ(balancing(), "1");
    const auto local = machine.acquire("node=0 share=yes mempolicy=local");
    EXPECT_EQ(balancing(), "0");
    machine.holder_gone(bound);
    machine.holder_gone(local);
    EXPECT_EQ(balancing(), "1");
}

TEST_F(Ledger, WeightsComeBackBeforeTheSwitchThatWritingThemCleared) {
    const KnobKey weight{.knob = Knob::weight, .node = 0};
    const KnobKey automatic{.knob = Knob::weight_auto};
    machine.knobs[weight] = "1";
    machine.knobs[automatic] = "true";
    std::vector<std::string> order;
    machine.before_effect = [&](const core::Effect& effect) {
        if (const auto* write = std::get_if<core::WriteKnob>(&effect))
            order.push_back(write->key.text() + '=' + write->value);
    };
    const auto id = machine.acquire("node=0-1 mempolicy=weighted weights=0=3 required=weights");
    EXPECT_EQ(machine.knobs[weight], "3");
    machine.holder_gone(id);
    EXPECT_EQ(order,
              (std::vector<std::string>{"weight/node0=3", "weight_auto=false", "weight/node0=1", "weight_auto=true"}));
}

TEST_F(Ledger, WeightedWithoutWeightsGoesByFreeMemory) {
    const KnobKey first{.knob = Knob::weight, .node = 0};
    const KnobKey second{.knob = Knob::weight, .node = 1};
    machine.knobs[first] = machine.knobs[second] = "1";
    machine.observed.memory[0] = {.total = 64 * model::kGiB, .free = 20 * model::kGiB, .clean_cache = 10 * model::kGiB};
    machine.observed.memory[1] = {.total = 64 * model::kGiB, .free = 10 * model::kGiB, .clean_cache = 0};
    const auto id = machine.acquire("node=0-1 mempolicy=weighted required=mempolicy");
    EXPECT_EQ(machine.lease(id).request.weights, (std::map<unsigned, unsigned>{{0, 16}, {1, 5}}));
    EXPECT_EQ(machine.lease(id).notes, (std::vector<std::string>{"weights: 0=16,1=5, by free memory"}));
    EXPECT_EQ(machine.knobs[first] + ' ' + machine.knobs[second], "16 5");
    machine.observed.memory[1].free = 30 * model::kGiB;
    machine.restart();
    EXPECT_EQ(machine.lease(id).request.weights.at(0), 16U) << "what was chosen stays";
    machine.holder_gone(id);
    EXPECT_EQ(machine.knobs[first] + ' ' + machine.knobs[second], "1 1");
}

TEST_F(Ledger, WeightedIsEvenAndSaysSoWhereTheKernelHasNoWeights) {
    const auto id = machine.acquire("node=0-1 mempolicy=weighted required=mempolicy");
    EXPECT_EQ(machine.lease(id).request.mempolicy, model::Mempolicy::interleave);
    ASSERT_EQ(machine.lease(id).notes.size(), 1U);
    EXPECT_NE(machine.lease(id).notes[0].find("Linux 6.9"), std::string::npos);
    EXPECT_EQ(machine.acquire("node=0-1 share=yes mempolicy=weighted weights=0=1 required=weights"), "")
        << "typed weights are asked for by name";
    machine.holder_gone(id);
}

TEST(WeightsByFreeMemory, AreSmallAndNeverNone) {
    const auto gib = [](model::Bytes free) { return core::NodeMemory{.free = free * model::kGiB}; };
    using Weights = std::map<unsigned, unsigned>;
    EXPECT_EQ(core::weights_by_free_memory({0, 1}, {{0, gib(100)}, {1, gib(98)}}), (Weights{{0, 1}, {1, 1}}));
    EXPECT_EQ(core::weights_by_free_memory({0, 3}, {{0, gib(50)}, {1, gib(500)}, {3, gib(100)}}),
              (Weights{{0, 1}, {3, 2}}));
    EXPECT_EQ(core::weights_by_free_memory({0, 1}, {{0, gib(1000)}, {1, gib(0)}}), (Weights{{0, 16}, {1, 1}}));
    EXPECT_EQ(core::weights_by_free_memory({0, 1}, {}), (Weights{{0, 1}, {1, 1}}));
    EXPECT_EQ(core::weights_by_free_memory({}, {}), Weights{});
}

// ── Huge pages ───────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(Ledger, GivesBackExactlyItsOwnPages) {
    pool().persistent = 5;
    const auto first = machine.acquire(kPages);
    const auto second = machine.acquire(kPages);
    EXPECT_EQ(pool().persistent, 37U);
    machine.holder_gone(first);
    EXPECT_EQ(pool().persistent, 21U);
    machine.holder_gone(second);
    EXPECT_EQ(pool().persistent, 5U);
    EXPECT_TRUE(core::idle(machine.state));
}

TEST_F(Ledger, SaysAskedAndGotAndGivesAllBackWhereThePoolFallsShort) {
    pool().persistent = 2;
    pool().room = 12;
    const auto id = machine.acquire(kPages);
    EXPECT_EQ(machine.lease(id).state, LeaseState::refused);
    EXPECT_NE(machine.lease(id).reason.find("16 pages asked, 10 got"), std::string::npos) << machine.lease(id).reason;
    EXPECT_EQ(pool().persistent, 2U);
    EXPECT_TRUE(core::idle(machine.state));
}

TEST_F(Ledger, AtLeastSomePagesIsEnoughWhereAskedSo) {
    pool().room = 12;
    const auto id = machine.acquire("node=0 hugepages=2M=16M..32M required=hugepages");
    EXPECT_EQ(machine.lease(id).state, LeaseState::active);
    EXPECT_EQ(machine.lease(id).knobs.back().got, "12");
    machine.holder_gone(id);
    EXPECT_EQ(pool().persistent, 0U);
}

TEST_F(Ledger, ABystandersSurplusPagesStaySurplus) {
    pool().surplus = 12;
    pool().used = 12;
    const auto id = machine.acquire(kPages);
    EXPECT_EQ(machine.lease(id).state, LeaseState::active);
    EXPECT_EQ(pool().free(), 16U) << "taking over surplus pages alone gains nothing";
    machine.holder_gone(id);
    EXPECT_EQ(pool().persistent, 0U);
    EXPECT_EQ(pool().surplus, 12U);
    pool().unuse(12);
    EXPECT_EQ(pool().total(), 0U);
}

TEST_F(Ledger, KeepsPinnedPagesInTheLedgerAndRetries) {
    const auto id = machine.acquire(kPages);
    pool().used = 6;
    machine.holder_gone(id);
    EXPECT_EQ(pool().persistent, 6U);
    machine.settle(6);
    EXPECT_EQ(machine.lease(id).state, LeaseState::ended);
    EXPECT_FALSE(core::idle(machine.state));
    EXPECT_NE(machine.reports.back().find("6 pages of c1"), std::string::npos) << machine.reports.back();
    pool().unuse(6);
    machine.settle(3);
    EXPECT_EQ(pool().persistent, 0U);
    EXPECT_TRUE(core::idle(machine.state));
}

TEST_F(Ledger, PinnedPagesKeepNobodyElseFromGrowing) {
    const auto first = machine.acquire(kPages);
    pool().used = 16;
    machine.holder_gone(first);
    const auto second = machine.acquire(kPages);
    EXPECT_EQ(machine.lease(second).state, LeaseState::active);
    EXPECT_EQ(pool().free(), 16U);
    machine.holder_gone(second);
    pool().unuse(16);
    machine.settle();
    EXPECT_EQ(pool().persistent, 0U);
}

TEST_F(Ledger, AKnobThatRefusesIsNotWrittenForEverUnderAnActiveLease) {
    machine.acquire(kOff);
    balancing() = "1";  // somebody else
    machine.refusing.insert(kBalancing);
    const auto second = machine.acquire(kOff);
    EXPECT_EQ(machine.lease(second).state, LeaseState::refused);
    EXPECT_LT(machine.actions, 20U);
}

TEST_F(Ledger, PagesTakenAwayByOthersAreChargedToUsFirst) {
    pool().persistent = 10;
    const auto first = machine.acquire(kPages);
    pool().persistent -= 8;  // an administrator
    const auto second = machine.acquire(kPages);
    machine.holder_gone(first);
    EXPECT_EQ(pool().persistent, 10U + 16U);
    machine.holder_gone(second);
    EXPECT_EQ(pool().persistent, 10U);
}

TEST_F(Ledger, PagesAddedByOthersStay) {
    const auto id = machine.acquire(kPages);
    pool().persistent += 7;
    machine.holder_gone(id);
    EXPECT_EQ(pool().persistent, 7U);
}

TEST_F(Ledger, SpreadsPagesOverTheLeasedNodes) {
    const auto id = machine.acquire("node=0-1 hugepages=2M=10M required=hugepages");
    EXPECT_EQ(pool().persistent, 3U);
    EXPECT_EQ((machine.pools[{.knob = Knob::hugepages, .node = 1, .page_size = 2 * model::kMiB}].persistent), 2U);
    machine.holder_gone(id);
    EXPECT_EQ(pool().persistent, 0U);
}

TEST_F(Ledger, RefusesMorePagesThanTheNodeCanHold) {
    EXPECT_EQ(machine.acquire("node=0 hugepages=2M=65G required=hugepages"), "");
    EXPECT_EQ(machine.last_refusal.code, model::Errc::impossible);
    EXPECT_EQ(machine.acquire("node=0 hugepages=4M=8M required=hugepages"), "");
    EXPECT_NE(machine.last_refusal.detail.find("2M, 1G"), std::string::npos) << machine.last_refusal.detail;
}

}  // namespace
}  // namespace numalease
