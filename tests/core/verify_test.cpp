#include "core/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/stepper.hpp"
#include "support/fake_machine.hpp"

namespace numalease {
namespace {

using model::ChargedByNode;
using model::kMiB;
using model::Mempolicy;
using test::FakeMachine;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr model::Charged anonymous(std::uint64_t mib) { return {.anonymous = mib * kMiB, .file = 0, .mapped = 0}; }
constexpr model::Charged files(std::uint64_t mib, std::uint64_t mapped) {
    return {.anonymous = 0, .file = mib * kMiB, .mapped = mapped * kMiB};
}

model::Lease leased(const model::NodeSet& nodes) {
    model::Lease out{.id = "c1"};
    out.placement.nodes = nodes;
    return out;
}

TEST(Verify, NamesWhatIsOutsideAndWhatIsNotUsed) {
    struct Row {
        const char* what;
        model::NodeSet nodes;
        Mempolicy policy;
        ChargedByNode charged;
        std::vector<std::string> warnings;
    };
    const std::vector<Row> rows{
        {"nothing at all", {0, 1}, Mempolicy::bind, {}, {}},
        {"as leased", {0}, Mempolicy::bind, {{0, anonymous(900)}, {1, {}}}, {}},
        {"a little", {0}, Mempolicy::bind, {{0, anonymous(900)}, {1, anonymous(9)}}, {}},
        {"libraries", {0}, Mempolicy::bind, {{0, anonymous(100)}, {1, files(60, 60)}}, {}},
        {"a model that was cached elsewhere",
         {0},
         Mempolicy::bind,
         {{0, anonymous(100)}, {1, files(100, 100)}},
         {"100M (50 %) is on node 1, outside of its nodes 0: 0 anonymous, 100M of files"}},
        {"memory of before",
         {0, 1},
         Mempolicy::interleave,
         {{0, anonymous(300)}, {1, anonymous(300)}, {3, anonymous(200)}},
         {"200M (25 %) is on node 3, outside of its nodes 0-1: 200M anonymous, 0 of files"}},
        {"case 31",
         {0, 1, 2},
         Mempolicy::bind,
         {{0, anonymous(300)}, {1, anonymous(1)}},
         {"of its nodes 0-2, nodes 1-2 hold next to nothing"}},
        {"too small to say", {0, 1}, Mempolicy::bind, {{0, anonymous(10)}}, {}},
        {"one of two is idle",
         {0, 1},
         Mempolicy::local,
         {{0, files(300, 300)}},
         {"of its nodes 0-1, node 1 holds next to nothing"}},
        {"interleaved, and not",
         {0, 1},
         Mempolicy::interleave,
         {{0, anonymous(300)}, {1, anonymous(100)}},
         {"imbalance: node 0 has 75 % of 2 nodes' anonymous memory, interleave wants 50 %"}},
        {"interleaved over the first only",
         {0, 1},
         Mempolicy::interleave,
         {{0, anonymous(300)}, {1, anonymous(1)}},
         {"of its nodes 0-1, node 1 holds next to nothing"}},
        {"one of four is nearly empty",
         {0, 1, 2, 3},
         Mempolicy::interleave,
         {{0, anonymous(100)}, {1, anonymous(100)}, {2, anonymous(100)}, {3, anonymous(10)}},
         {"imbalance: node 3 has 3 % of 4 nodes' anonymous memory, interleave wants 25 %"}},
    };
    for (const auto& row : rows)
        EXPECT_EQ(core::verify(leased(row.nodes), row.policy, row.charged).warnings, row.warnings) << row.what;
}

TEST(Verify, TheImbalanceIsTheFullestNodeAgainstItsPart) {
    const ChargedByNode uneven{{0, anonymous(300)}, {1, anonymous(100)}};
    EXPECT_EQ(core::verify(leased({0, 1}), Mempolicy::interleave, uneven).imbalance_permille, 1500U);
    EXPECT_FALSE(core::verify(leased({0, 1}), Mempolicy::bind, uneven).imbalance_permille);
    auto weighted = leased({0, 1});
    weighted.request.weights = {{0, 3}, {1, 1}};
    const auto even = core::verify(weighted, Mempolicy::weighted, uneven);
    EXPECT_EQ(even.imbalance_permille, 1000U);
    EXPECT_THAT(even.warnings, IsEmpty());
}

TEST(Verify, FirstTouchWantsAMappedModel) {
    auto lease = leased({0, 1});
    lease.request.page_cache = model::PageCache::evict;
    const ChargedByNode read{{0, {.anonymous = 600 * kMiB, .file = 600 * kMiB, .mapped = 2 * kMiB}},
                             {1, {.anonymous = 600 * kMiB, .file = 600 * kMiB, .mapped = 2 * kMiB}}};
    EXPECT_THAT(core::verify(lease, Mempolicy::local, read).warnings,
                ElementsAre(HasSubstr("only 4M is file-mapped, against 1.1G anonymous")));
    const ChargedByNode mapped{{0, {.anonymous = 900 * kMiB, .file = 600 * kMiB, .mapped = 500 * kMiB}},
                               {1, files(600, 500)}};
    EXPECT_THAT(core::verify(lease, Mempolicy::local, mapped).warnings, IsEmpty());
    EXPECT_THAT(core::verify(lease, Mempolicy::interleave, read).warnings, IsEmpty()) << "of first touch only";
}

TEST(Verify, IsKeptWithTheLeaseAndAcrossARestart) {
    FakeMachine machine(test::simple_topology(2, 4));
    machine.now.real = model::Micros(1'700'000'000'000'000);
    const auto id = machine.acquire("node=0");
    const ChargedByNode charged{{0, anonymous(100)}, {1, {.anonymous = 100 * kMiB, .file = 7, .mapped = 3}}};
    EXPECT_FALSE(machine.handle(core::Verified{.lease = id, .charged = charged, .unknown = {}}));
    const auto before = machine.lease(id).verified;
    EXPECT_EQ(before.at, machine.now.real);
    EXPECT_EQ(before.inside, 100 * kMiB);
    EXPECT_EQ(before.nodes, charged);
    EXPECT_THAT(before.warnings, ElementsAre(HasSubstr("is on node 1, outside of its nodes 0")));
    machine.restart();
    EXPECT_EQ(machine.lease(id).verified, before);
    EXPECT_TRUE(machine.problems.empty()) << machine.problems.front();
}

TEST(Verify, WhatCannotBeReadSaysWhyAndAnOutOfMemoryKillIsSaid) {
    FakeMachine machine(test::simple_topology(2, 4));
    machine.now.real = model::Micros(1);
    const auto id = machine.acquire("node=0");
    machine.handle(core::OutOfMemory{.lease = id, .events = {.oom = 1, .oom_kill = 2}});
    machine.handle(core::Verified{.lease = id, .charged = {}, .unknown = "it has no cgroup of its own"});
    EXPECT_EQ(model::verification_text(machine.lease(id).verified), "not known: it has no cgroup of its own");
    EXPECT_THAT(machine.lease(id).verified.warnings, ElementsAre("memory ran out in it: 2 processes were killed"));
}

TEST(Verify, ALeaseThatIsNotActiveIsNotVerified) {
    FakeMachine machine(test::simple_topology(2, 4));
    const auto id = machine.acquire("node=0");
    machine.holder_gone(id);
    const auto refusal = machine.handle(core::Verified{.lease = id, .charged = {}, .unknown = {}});
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->code, model::Errc::no_such_lease);
}

}  // namespace
}  // namespace numalease
