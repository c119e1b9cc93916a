#include <gtest/gtest.h>

#include "support/fake_machine.hpp"

namespace numalease {
namespace {

using model::kGiB;
using test::FakeMachine;

/// Two nodes of 64 GiB, with 40 GiB and 20 GiB free and no reserve.
class Overcommit : public ::testing::Test {
protected:
    Overcommit() {
        machine.observed.reserve = 0;
        machine.observed.overcommit = true;
        machine.observed.memory[0] = {.total = 64 * kGiB, .free = 40 * kGiB, .clean_cache = 0};
        machine.observed.memory[1] = {.total = 64 * kGiB, .free = 20 * kGiB, .clean_cache = 0};
    }
    void TearDown() override { EXPECT_TRUE(machine.problems.empty()) << machine.problems.front(); }

    /// Its one note about memory.
    std::string note(const std::string& id) const {
        for (const auto& line : machine.lease(id).notes)
            if (line.starts_with("memory: ")) return line;
        return {};
    }

    FakeMachine machine{test::simple_topology(2, 4)};
};

TEST_F(Overcommit, AnEstimateThatNeverFitsIsPlacedWhereItGetsMostAndSaysSo) {
    const auto id = machine.acquire("memory=640G memory-is-estimate=yes");
    ASSERT_FALSE(id.empty()) << machine.last_refusal.detail;
    EXPECT_EQ(machine.lease(id).placement.nodes.text(), "0-1");
    EXPECT_EQ(machine.lease(id).request.memory, 60 * kGiB);
    EXPECT_EQ(note(id).find("memory: an estimated 640G does not fit, which this site allows; it is placed as if it "
                            "needed 60G: never on this machine: "),
              0U)
        << note(id);
    EXPECT_NE(note(id).find("node 1 64G of 64G"), std::string::npos) << note(id);
}

TEST_F(Overcommit, AnEstimateThatDoesNotFitNowDoesNotWait) {
    const auto id = machine.acquire("node=1 memory=32G memory-is-estimate=yes wait=forever");
    ASSERT_FALSE(id.empty());
    EXPECT_EQ(machine.lease(id).state, model::LeaseState::active);
    EXPECT_EQ(machine.lease(id).placement.promise.at(1), 20 * kGiB);
    EXPECT_NE(note(id).find("node 1 20G of 64G"), std::string::npos) << note(id);
    // What is left is nothing: its CPUs are still its own.
    const auto next = machine.acquire("node=0 cores=1 memory=41G memory-is-estimate=yes");
    ASSERT_FALSE(next.empty());
    const auto last = machine.acquire("node=0 cores=1 memory=41G memory-is-estimate=yes");
    ASSERT_FALSE(last.empty());
    EXPECT_FALSE(machine.lease(last).placement.cpus.intersects(machine.lease(next).placement.cpus));
    EXPECT_LT(machine.lease(last).request.memory.value_or(0), kGiB);
}

TEST_F(Overcommit, WhatFitsIsPlacedAsEver) {
    const auto id = machine.acquire("memory=30G memory-is-estimate=yes");
    EXPECT_EQ(machine.lease(id).request.memory, 30 * kGiB);
    EXPECT_EQ(note(id), "");
}

TEST_F(Overcommit, WhatWasTypedIsRefusedAndSoIsAnEstimateWhereTheSiteDoesNotSay) {
    EXPECT_EQ(machine.acquire("memory=640G"), "");
    EXPECT_EQ(machine.last_refusal.code, model::Errc::impossible);
    machine.observed.overcommit = false;
    EXPECT_EQ(machine.acquire("memory=640G memory-is-estimate=yes"), "");
    EXPECT_NE(machine.last_refusal.detail.find("an estimated 640G is needed"), std::string::npos);
}

TEST_F(Overcommit, CoresThatAreMissingAreStillARefusal) {
    EXPECT_EQ(machine.acquire("cores=9 memory=640G memory-is-estimate=yes"), "");
    EXPECT_EQ(machine.last_refusal.code, model::Errc::impossible);
}

TEST_F(Overcommit, APlanSaysItToo) {
    const auto plan = core::plan(machine.state, machine.observed, test::request("memory=640G memory-is-estimate=yes"),
                                 machine.caller(), machine.now);
    ASSERT_TRUE(plan);
    EXPECT_TRUE(
        std::ranges::any_of(plan->why, [](const auto& line) { return line.starts_with("memory: an estimated"); }));
}

}  // namespace
}  // namespace numalease
