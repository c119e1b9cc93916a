#include <gmock/gmock.h>

#include "support/placing.hpp"

namespace numalease {
namespace {

using model::Errc;
using model::kGiB;
using model::kMiB;
using test::Machine;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

TEST(PlaceMemory, PromisesOnTheOneNodeThatHoldsIt) {
    const auto got = Machine(test::dual_socket_four_nodes()).placed({{"memory", "60G"}});
    EXPECT_THAT(got.promise, ElementsAre(Pair(0, 60 * kGiB)));
    EXPECT_THAT(test::text(got.why), HasSubstr("fits 60G (node 0 64G of 64G available)"));
}

TEST(PlaceMemory, GrowsToTheFewestNodesThatHoldIt) {
    const auto got = Machine(test::dual_socket_four_nodes()).placed({{"memory", "100G"}});
    EXPECT_EQ(got.nodes.text(), "0-1");
    EXPECT_THAT(got.promise, ElementsAre(Pair(0, 50 * kGiB), Pair(1, 50 * kGiB)));
    EXPECT_EQ(Machine(test::dual_socket_four_nodes()).placed({{"memory", "200G"}}).nodes.text(), "0-3");
}

TEST(PlaceMemory, TakesMemoryOfANodeWhoseCoresAreAllTaken) {
    const auto got =
        Machine(test::regular({.nodes_per_socket = 2})).lease("c1", "4-7").placed({{"cores", "2"}, {"memory", "100G"}});
    EXPECT_EQ(got.nodes.text(), "0-1");
    EXPECT_EQ(got.cpus.text(), "0-1");
}

TEST(PlaceMemory, KeepsTheReserveOnEveryNode) {
    Machine machine(test::regular({.nodes_per_socket = 2}));
    machine.occupancy.reserve = 256 * kMiB;
    EXPECT_EQ(machine.placed({{"memory", "64G"}}).nodes.text(), "0-1");
    EXPECT_EQ(machine.refused({{"memory", "128G"}}).error.code, Errc::impossible);
}

TEST(PlaceMemory, CountsCleanPageCacheAsRoom) {
    Machine machine(test::one_node());
    machine.observed.memory[0] = {.total = 64 * kGiB, .free = 10 * kGiB, .clean_cache = 20 * kGiB};
    EXPECT_THAT(machine.placed({{"memory", "30G"}}).promise, ElementsAre(Pair(0, 30 * kGiB)));
    EXPECT_EQ(machine.refused({{"memory", "31G"}}).error.code, Errc::not_now);
}

TEST(PlaceMemory, KeepsWhatOthersWerePromisedAndHaveNotYetUsed) {
    Machine machine(test::dual_socket_four_nodes());
    machine.promise("c1", 0, 40 * kGiB);
    EXPECT_EQ(machine.placed({{"memory", "30G"}}).nodes.text(), "1");
    const auto no = machine.refused({{"node", "0"}, {"memory", "30G"}});
    EXPECT_EQ(no.error.code, Errc::not_now);
    EXPECT_THAT(no.in_the_way, ElementsAre("c1"));
    EXPECT_THAT(no.error.detail, HasSubstr("30G is asked for, available: node 0 24G of 64G"));
    EXPECT_EQ(no.fits_now, "--node 1");
}

TEST(PlaceMemory, NamesWhoHoldsTheMemoryInUse) {
    Machine machine(test::one_node());
    machine.promise("c1", 0, 0, 50 * kGiB);
    EXPECT_THAT(machine.refused({{"memory", "30G"}}).in_the_way, ElementsAre("c1"));
}

TEST(PlaceMemory, NamesNobodyWhereTheMemoryIsHeldOutsideOfLeases) {  // CASES 25
    Machine machine(test::one_node());
    machine.observed.memory[0].free = 10 * kGiB;
    const auto no = machine.refused({{"memory", "30G"}});
    EXPECT_EQ(no.error.code, Errc::not_now);
    EXPECT_THAT(no.in_the_way, IsEmpty());
    EXPECT_THAT(no.error.detail, HasSubstr("node 0 10G of 64G"));
    EXPECT_THAT(no.error.detail, HasSubstr("outside numa-lease"));
}

TEST(PlaceMemory, RefusesMoreThanThereIsForGoodWithTheNumbersPerNode) {  // CASES 25
    const auto no = Machine(test::regular({.nodes_per_socket = 2})).refused({{"memory", "129G"}});
    EXPECT_EQ(no.error.code, Errc::impossible);
    EXPECT_THAT(no.error.detail, HasSubstr("129G is asked for, in all: node 0 64G of 64G, node 1 64G of 64G"));
}

TEST(PlaceMemory, SaysWhereTheFigureIsAnEstimate) {
    auto request = test::ask({{"memory", "129G"}});
    request.memory_is_estimate = true;
    const Machine machine(test::one_node());
    const auto no = core::place(machine.observed, machine.occupancy, request);
    ASSERT_FALSE(no);
    EXPECT_THAT(no.error().error.detail, HasSubstr("an estimated 129G is needed"));
}

TEST(PlaceMemory, LetsTheFullestNodeDecideForInterleave) {
    Machine machine(test::regular({.nodes_per_socket = 2}));
    machine.observed.memory[1].free = 10 * kGiB;
    EXPECT_EQ(machine.placed({{"node", "0-1"}, {"memory", "60G"}, {"mempolicy", "bind"}}).nodes.text(), "0-1");
    EXPECT_EQ(machine.refused({{"node", "0-1"}, {"memory", "60G"}, {"mempolicy", "interleave"}}).error.code,
              Errc::not_now);
    EXPECT_THAT(machine.placed({{"node", "0-1"}, {"memory", "20G"}, {"mempolicy", "interleave"}}).promise,
                ElementsAre(Pair(0, 10 * kGiB), Pair(1, 10 * kGiB)));
}

TEST(PlaceMemory, FillsUnevenNodesForBind) {
    Machine machine(test::regular({.nodes_per_socket = 2}));
    machine.observed.memory[1].free = 10 * kGiB;
    EXPECT_THAT(machine.placed({{"node", "0-1"}, {"memory", "60G"}}).promise,
                ElementsAre(Pair(0, 50 * kGiB), Pair(1, 10 * kGiB)));
}

TEST(PlaceMemory, TakesTheRoomiestNodesForInterleave) {
    Machine machine(test::dual_socket_four_nodes());
    machine.observed.memory[1].free = 1 * kGiB;
    machine.observed.memory[2].free = 1 * kGiB;
    const auto got = machine.placed({{"node", "any:2"}, {"memory", "80G"}, {"mempolicy", "interleave"}});
    EXPECT_EQ(got.nodes.text(), "0,3");
}

TEST(PlaceMemory, GivesPartsByWeight) {
    const Machine machine(test::regular({.nodes_per_socket = 2}));
    auto request = test::ask({{"node", "0-1"}, {"memory", "80G"}, {"mempolicy", "weighted"}});
    request.weights = {{0, 3}, {1, 1}};
    const auto got = core::place(machine.observed, machine.occupancy, request);
    ASSERT_TRUE(got);
    EXPECT_THAT(got->promise, ElementsAre(Pair(0, 60 * kGiB), Pair(1, 20 * kGiB)));
    request.memory = 100 * kGiB;  // three quarters do not fit on node 0
    const auto no = core::place(machine.observed, machine.occupancy, request);
    ASSERT_FALSE(no);
    EXPECT_EQ(no.error().error.code, Errc::impossible);
}

TEST(PlaceMemory, LeavesTheLargestHoleInMemoryToo) {
    Machine machine(test::dual_socket_four_nodes());
    machine.observed.memory[2].free = 20 * kGiB;
    EXPECT_EQ(machine.placed({{"memory", "16G"}}).nodes.text(), "2");
}

TEST(PlaceMemory, TakesTheRoomiestNodeWhereNoAmountIsKnown) {
    Machine machine(test::dual_socket_four_nodes());
    for (const unsigned node : {0U, 1U, 3U}) machine.observed.memory[node].free = 20 * kGiB;
    EXPECT_EQ(machine.placed({}).nodes.text(), "2");
}

TEST(PlaceMemory, DoesNotOverflowOnAbsurdAmounts) {
    for (const char* policy : {"bind", "interleave"})
        EXPECT_EQ(Machine(test::dual_socket_four_nodes())
                      .refused({{"memory", "18446744073709551615"}, {"mempolicy", policy}})
                      .error.code,
                  Errc::impossible);
}

}  // namespace
}  // namespace numalease
