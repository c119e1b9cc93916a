#include <gmock/gmock.h>

#include "support/placing.hpp"

namespace numalease {
namespace {

using model::Errc;
using test::Machine;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// ── What is chosen ───────────────────────────────────────────────────────────────────────────────────────────────

TEST(Place, GivesOneWholeNodeWhereNothingIsAsked) {
    const auto got = Machine(test::dual_socket_four_nodes()).placed({});
    EXPECT_EQ(got.nodes.text(), "0");
    EXPECT_EQ(got.cpus.text(), "0-3,16-19");
    EXPECT_EQ(got.cores, 4U);
    EXPECT_EQ(got.threads, 4U);
    EXPECT_TRUE(got.promise.empty());
}

TEST(Place, TellsTheEngineEveryThreadInModeAll) {
    const auto got = Machine(test::dual_socket_four_nodes()).placed({{"cores", "2"}, {"mode", "all"}});
    EXPECT_EQ(got.cores, 2U);
    EXPECT_EQ(got.threads, 4U);
    EXPECT_EQ(got.cpus.size(), 4U);
}

TEST(Place, TakesTheNamedNodesAndNoOthers) {
    const auto got = Machine(test::dual_socket_four_nodes()).placed({{"node", "1,3"}});
    EXPECT_EQ(got.nodes.text(), "1,3");
    EXPECT_EQ(got.cpus.text(), "4-7,12-15,20-23,28-31");
    EXPECT_THAT(got.runners_up, IsEmpty());
}

TEST(Place, SpreadsCoresEvenlyOverNamedNodes) {
    const auto got = Machine(test::dual_socket_four_nodes()).placed({{"node", "0-1"}, {"cores", "4"}});
    EXPECT_EQ(got.cpus.text(), "0-1,4-5,16-17,20-21");
}

TEST(Place, TakesAllNodesOfASocket) {
    const auto got = Machine(test::dual_socket_four_nodes()).placed({{"socket", "1"}});
    EXPECT_EQ(got.nodes.text(), "2-3");
    EXPECT_EQ(got.cores, 8U);
}

TEST(Place, TakesCoresOfASocketOnAMachineWithOneNode) {
    auto topology = test::regular({.cores_per_node = 8});
    for (unsigned core = 4; core < 8; ++core) topology.cores[core].package = 1;
    const auto got = Machine(topology).placed({{"socket", "1"}});
    EXPECT_EQ(got.cpus.text(), "4-7");
    EXPECT_EQ(got.nodes.text(), "0");
}

TEST(Place, AnySocketIsOneThatIsFree) {
    EXPECT_EQ(Machine(test::dual_socket_four_nodes()).lease("c1", "2").placed({{"socket", "any:1"}}).nodes.text(),
              "2-3");
}

TEST(Place, AnyTwoNodesAreNeighbours) {
    // Node 1 is busy, so that 0 has no neighbour on its socket left.
    const auto got = Machine(test::dual_socket_four_nodes()).lease("c1", "4").placed({{"node", "any:2"}});
    EXPECT_EQ(got.nodes.text(), "2-3");
}

TEST(Place, PrefersOneSocketWhereDistancesDoNotSay) {
    auto topology = test::dual_socket_four_nodes();
    topology.distance.clear();
    EXPECT_EQ(Machine(topology).lease("c1", "0").placed({{"node", "any:2"}}).nodes.text(), "2-3");
}

TEST(Place, GrowsToTheFewestNodesThatHaveTheCores) {
    const auto got = Machine(test::dual_socket_four_nodes()).placed({{"cores", "6"}});
    EXPECT_EQ(got.nodes.text(), "0-1");
    EXPECT_EQ(got.cores, 6U);
}

TEST(Place, FillsTheSmallestHoleThatFits) {
    // Node 0 has four free cores, node 2 has two: two cores go to node 2.
    const auto got = Machine(test::dual_socket_four_nodes()).lease("c1", "8-9").placed({{"cores", "2"}});
    EXPECT_EQ(got.cpus.text(), "10-11,26-27");
    EXPECT_THAT(test::text(got.runners_up), HasSubstr("larger hole"));
}

TEST(Place, LeavesANodeWithoutFreeMemoryAsideEvenWhereNoneIsAsked) {
    Machine machine(test::dual_socket_four_nodes());
    machine.lease("c1", "0").observed.memory[0].free = 0;
    EXPECT_NE(machine.placed({{"cores", "3"}}).nodes.text(), "0");
}

TEST(Place, TakesAWholeCacheGroupBeforePartsOfTwo) {
    const auto topology = test::regular({.cores_per_node = 8, .cores_per_llc = 4});
    const auto got = Machine(topology).lease("c1", "1").placed({{"cores", "4"}});
    EXPECT_EQ(got.cpus.text(), "4-7");
}

TEST(Place, TakesTheBrokenCacheGroupWhereItSuffices) {
    const auto topology = test::regular({.cores_per_node = 8, .cores_per_llc = 4});
    const auto got = Machine(topology).lease("c1", "1").placed({{"cores", "2"}});
    EXPECT_EQ(got.cpus.text(), "0,2");
}

TEST(Place, AddsAPartToAWholeCacheGroup) {
    const auto topology = test::regular({.cores_per_node = 12, .cores_per_llc = 4});
    const auto got = Machine(topology).lease("c1", "0-1").placed({{"cores", "6"}});
    EXPECT_EQ(got.cpus.text(), "2-7");
}

TEST(Place, TakesAWholeSmallCacheGroupBeforeCuttingIntoALargeOne) {
    auto topology = test::regular({.cores_per_node = 12, .cores_per_llc = 8});  // caches of 8 and of 4 cores
    EXPECT_EQ(Machine(topology).lease("c1", "0").placed({{"cores", "5"}}).cpus.text(), "1,8-11");
}

TEST(Place, TakesPerformanceCoresFirst) {
    EXPECT_EQ(Machine(test::hybrid()).placed({{"cores", "3"}}).cpus.text(), "0-5");
    const auto got = Machine(test::hybrid()).lease("c1", "0-1").placed({{"cores", "4"}});
    EXPECT_EQ(got.cpus.text(), "2-8");
    EXPECT_THAT(test::text(got.why), HasSubstr("3 of the fast kind"));
}

TEST(Place, TakesTheNodeWithTheFastCores) {
    auto topology = test::dual_socket_four_nodes();
    for (auto& core : topology.cores) core.efficiency = core.node == 3 ? 1 : 0;
    EXPECT_EQ(Machine(topology).placed({{"cores", "2"}}).nodes.text(), "3");
}

// ── Who else is there ────────────────────────────────────────────────────────────────────────────────────────────

TEST(Place, NeverSplitsSiblingsBetweenLeases) {
    // CPU 16 is the sibling of 0.
    const auto got = Machine(test::dual_socket_four_nodes()).lease("c1", "16").placed({{"node", "0"}, {"cores", "3"}});
    EXPECT_EQ(got.cpus.text(), "1-3,17-19");
}

TEST(Place, TakesAnotherFreeNodeForAWholeOne) {
    const auto got = Machine(test::dual_socket_four_nodes()).lease("c1", "0").placed({});
    EXPECT_EQ(got.nodes.text(), "1");
    EXPECT_THAT(test::text(got.runners_up), HasSubstr("node 0: 3 of 4 cores free"));
}

TEST(Place, NamesWhoIsInTheWayOfANamedNode) {
    const auto no = Machine(test::dual_socket_four_nodes()).lease("c1", "0").lease("c2", "4").refused({{"node", "0"}});
    EXPECT_EQ(no.error.code, Errc::not_now);
    EXPECT_THAT(no.in_the_way, ElementsAre("c1"));
    EXPECT_THAT(no.error.detail, HasSubstr("node 0 3 of 4"));
    EXPECT_EQ(no.fits_now, "--node 2 or --cores 3");
}

TEST(Place, NamesAsFewInTheWayAsItCan) {
    Machine machine(test::dual_socket_four_nodes());
    machine.lease("c1", "0").lease("c2", "1").lease("c3", "4-7").lease("c4", "8-10").lease("c5", "12-14");
    EXPECT_THAT(machine.refused({}).in_the_way, ElementsAre("c1", "c2"));
}

TEST(Place, OffersToShareWhereTheOthersDo) {
    const auto no = Machine(test::one_node()).lease("c1", "0-3", true).refused({{"cores", "2"}});
    EXPECT_THAT(no.in_the_way, ElementsAre("c1"));
    EXPECT_EQ(no.fits_now, "--share");
}

TEST(Place, OffersNothingWhereNothingFits) {
    EXPECT_EQ(Machine(test::one_node()).lease("c1", "0-3").refused({{"cores", "2"}}).fits_now, "");
}

TEST(Place, SharesOnlyWithThoseWhoShare) {
    Machine machine(test::one_node());
    machine.lease("c1", "0-1", true).lease("c2", "2");
    EXPECT_EQ(machine.placed({{"share", "yes"}, {"cores", "3"}}).cpus.text(), "0-1,3");
    EXPECT_THAT(machine.refused({{"share", "yes"}}).in_the_way, ElementsAre("c2"));
}

TEST(Place, PrefersIdleCoresWhereItMayShare) {
    const auto got = Machine(test::one_node()).lease("c1", "0-1", true).placed({{"share", "yes"}, {"cores", "2"}});
    EXPECT_EQ(got.cpus.text(), "2-3");
}

TEST(Place, NeverLeasesCpusOfAnUnexplainedScope) {
    Machine machine(test::one_node());
    machine.occupancy.foreign_cpus = {1};
    EXPECT_EQ(machine.placed({{"cores", "3"}}).cpus.text(), "0,2-3");
    const auto no = machine.refused({{"cores", "4"}, {"share", "yes"}});
    EXPECT_EQ(no.error.code, Errc::not_now);
    EXPECT_THAT(no.in_the_way, IsEmpty());
    EXPECT_THAT(no.error.detail, HasSubstr("outside numa-lease"));
}

// ── What the caller and the machine allow ────────────────────────────────────────────────────────────────────────

TEST(Place, StaysInsideWhatTheCallerMayUse) {
    const auto got = Machine(test::dual_socket_four_nodes()).allow("5-6,21-22").placed({});
    EXPECT_EQ(got.cpus.text(), "5-6,21-22");
    EXPECT_EQ(got.nodes.text(), "1");
    EXPECT_EQ(got.cores, 2U);
}

TEST(Place, LeavesACoreOutOfWhichOnlyOneThreadIsAllowed) {
    EXPECT_EQ(Machine(test::dual_socket_four_nodes()).allow("0-1,17").placed({}).cpus.text(), "1,17");
}

TEST(Place, LeasesPartsOfCoresWhereNoWholeOneIsAllowed) {
    const auto got = Machine(test::dual_socket_four_nodes()).allow("0").placed({});
    EXPECT_EQ(got.cpus.text(), "0");
    EXPECT_EQ(got.cores, 1U);
    EXPECT_EQ(got.threads, 1U);
    EXPECT_THAT(test::text(got.why), HasSubstr("only parts of cores"));
    // The other thread of that core is another's: no exclusive lease on half of it.
    EXPECT_EQ(Machine(test::dual_socket_four_nodes()).allow("0").lease("c1", "16").refused({}).error.code,
              Errc::not_now);
}

TEST(Place, RefusesForGoodWhereTheCallerMayUseNoCpu) {
    EXPECT_EQ(Machine(test::one_node()).allow("").refused({}).error.code, Errc::impossible);
}

TEST(Place, TreatsANodeWhoseMemoryIsForbiddenAsCpusOnly) {
    Machine machine(test::dual_socket_four_nodes());
    machine.occupancy.allowed_nodes = {1};
    EXPECT_EQ(machine.placed({}).nodes.text(), "1");
    const auto no = machine.refused({{"node", "0"}});
    EXPECT_EQ(no.error.code, Errc::impossible);
    EXPECT_THAT(no.error.detail, HasSubstr("memory of nodes 1 only"));
}

TEST(Place, LeasesIsolatedCpusOnlyWhenAsked) {
    auto topology = test::one_node();
    topology.isolated = {2, 3};
    EXPECT_EQ(Machine(topology).placed({}).cpus.text(), "0-1");
    EXPECT_EQ(Machine(topology).placed({{"isolated", "yes"}}).cpus.text(), "0-3");
    EXPECT_EQ(Machine(topology).refused({{"cores", "3"}}).error.code, Errc::impossible);
    topology.isolated = topology.online;
    EXPECT_THAT(Machine(topology).refused({}).error.detail, HasSubstr("--isolated"));
}

TEST(Place, NeverLeasesOfflineCpusAndCountsWholeCoresWithOneThreadOff) {  // CASES 21
    auto topology = test::dual_socket_four_nodes();
    for (unsigned cpu = 16; cpu < 32; ++cpu) test::take_offline(topology, cpu);
    test::take_offline(topology, 2);
    const auto got = Machine(topology).placed({{"node", "0"}, {"mode", "all"}});
    EXPECT_EQ(got.cpus.text(), "0-1,3");
    EXPECT_EQ(got.cores, 3U);
    EXPECT_EQ(got.threads, 3U);
}

TEST(Place, KeepsACoreFromOthersWhileTheLeasedThreadIsOffline) {
    auto topology = test::dual_socket_four_nodes();
    test::take_offline(topology, 16);
    EXPECT_THAT(Machine(topology).lease("c1", "16").refused({{"node", "0"}}).in_the_way, ElementsAre("c1"));
}

TEST(Place, RefusesWholeCoresWhereTheMapContradictsItself) {  // CASES 23
    auto topology = test::one_node();
    topology.contradictions = {"core 0 has threads on two sockets"};
    const auto no = Machine(topology).refused({{"cores", "1"}});
    EXPECT_EQ(no.error.code, Errc::impossible);
    EXPECT_THAT(no.error.detail, HasSubstr("core 0 has threads on two sockets"));
    EXPECT_EQ(Machine(topology).placed({{"cores", "1"}, {"share", "yes"}}).cores, 1U);
}

// ── Node numbers ─────────────────────────────────────────────────────────────────────────────────────────────────

TEST(Place, WorksWithGapsInNodeNumbers) {  // CASES 20
    const Machine machine(test::sparse_nodes());
    EXPECT_EQ(machine.placed({{"node", "8,24"}}).cpus.text(), "4-7,12-15,20-23,28-31");
    EXPECT_EQ(machine.placed({{"node", "any:2"}}).nodes.text(), "0,8");
    EXPECT_THAT(machine.refused({{"node", "1"}}).error.detail, HasSubstr("it has nodes 0,8,16,24"));
}

TEST(Place, WorksWhereTheOnlyNodeIsNumberOne) {  // CASES 20
    auto topology = test::one_node();
    topology.nodes[0].id = 1;
    for (auto& core : topology.cores) core.node = 1;
    EXPECT_EQ(Machine(topology).placed({}).nodes.text(), "1");
}

TEST(Place, SaysWhatExistsInsteadOfANodeThatDoesNot) {
    const auto no = Machine(test::dual_socket_four_nodes()).refused({{"node", "2,7"}});
    EXPECT_EQ(no.error.code, Errc::impossible);
    EXPECT_EQ(no.error.detail, "node 7: not on this machine, or offline; it has nodes 0-3");
    EXPECT_THAT(Machine(test::dual_socket_four_nodes()).refused({{"socket", "4"}}).error.detail,
                HasSubstr("it has sockets 0-1"));
}

TEST(Place, RefusesMoreThanTheMachineHasForGood) {
    const Machine machine(test::dual_socket_four_nodes());
    EXPECT_EQ(machine.refused({{"cores", "17"}}).error.code, Errc::impossible);
    EXPECT_THAT(machine.refused({{"node", "1"}, {"cores", "5"}}).error.detail,
                HasSubstr("node 1 has 4 for this caller"));
    EXPECT_EQ(machine.refused({{"node", "any:5"}}).error.code, Errc::impossible);
    EXPECT_EQ(machine.refused({{"socket", "any:3"}}).error.code, Errc::impossible);
}

TEST(Place, LeasesMemoryOnlyNodesOnlyByName) {  // CASES 19
    const Machine machine(test::with_memory_only_nodes());
    EXPECT_EQ(machine.placed({{"node", "any:2"}}).nodes.text(), "0-1");
    EXPECT_EQ(machine.refused({{"node", "any:3"}}).error.code, Errc::impossible);
    EXPECT_EQ(machine.refused({{"memory", "200G"}}).error.code, Errc::impossible);
    const auto got = machine.placed({{"node", "0,2"}, {"memory", "200G"}});
    EXPECT_EQ(got.nodes.text(), "0,2");
    EXPECT_EQ(got.cpus.text(), "0-3");
    EXPECT_EQ(got.promise.at(0) + got.promise.at(2), 200 * model::kGiB);
}

TEST(Place, RefusesMemoryWithoutAnyCpu) {
    const auto no = Machine(test::with_memory_only_nodes()).refused({{"node", "2"}});
    EXPECT_EQ(no.error.code, Errc::impossible);
    EXPECT_THAT(no.error.detail, HasSubstr("no CPUs"));
}

TEST(Place, TakesOnlyCpusFromANodeWithoutMemory) {
    auto topology = test::dual_socket_four_nodes();
    topology.nodes[1].total = 0;
    const auto both = Machine(topology).placed({{"node", "0-1"}});
    EXPECT_EQ(both.nodes.text(), "0");
    EXPECT_EQ(both.cores, 8U);
    const auto alone = Machine(topology).placed({{"node", "1"}});
    EXPECT_EQ(alone.nodes.text(), "0");
    EXPECT_EQ(alone.cpus.text(), "4-7,20-23");
    EXPECT_THAT(test::text(alone.why), HasSubstr("it comes from node 0"));
    EXPECT_NE(Machine(topology).lease("c1", "0").placed({}).nodes.text(), "1");
}

TEST(Place, WorksOnAMachineThatDoesNotTellItsMemory) {
    auto topology = test::one_node();
    topology.nodes[0].total = 0;
    EXPECT_EQ(Machine(topology).placed({}).nodes.text(), "0");
    EXPECT_EQ(Machine(topology).refused({{"memory", "1G"}}).error.code, Errc::impossible);
}

TEST(Place, RefusesAnEmptyMachineInsteadOfCrashing) {
    EXPECT_EQ(Machine(model::Topology{}).refused({}).error.code, Errc::impossible);
    EXPECT_EQ(Machine(model::Topology{}).refused({{"node", "any:1"}}).error.code, Errc::impossible);
}

// ── near ─────────────────────────────────────────────────────────────────────────────────────────────────────────

model::Topology with_devices() {
    auto topology = test::dual_socket_four_nodes();
    topology.devices = {{.pci = "0000:c1:00.0", .kind = "gpu", .name = "B", .nodes = {3}},
                        {.pci = "0000:81:00.0", .kind = "gpu", .name = "A", .nodes = {2}},
                        {.pci = "0000:21:00.0", .kind = "netdev", .name = "eth0", .nodes = {1}},
                        {.pci = "0000:22:00.0", .kind = "block", .name = "nvme0n1", .nodes = {}}};
    return topology;
}

TEST(Place, CountsGpusInBusOrder) {  // CASES 35
    const Machine machine(with_devices());
    EXPECT_EQ(machine.placed({{"near", "gpu:0"}}).nodes.text(), "2");
    EXPECT_EQ(machine.placed({{"near", "gpu:1"}}).nodes.text(), "3");
    EXPECT_THAT(machine.placed({{"near", "gpu:0"}}).why[0], HasSubstr("nearest to gpu:0 (0000:81:00.0)"));
}

TEST(Place, FindsDevicesByAddressAndName) {
    const Machine machine(with_devices());
    EXPECT_EQ(machine.placed({{"near", "pci:0000:C1:00.0"}}).nodes.text(), "3");
    EXPECT_EQ(machine.placed({{"near", "pci:c1:00.0"}}).nodes.text(), "3");
    EXPECT_EQ(machine.placed({{"near", "netdev:eth0"}}).nodes.text(), "1");
}

TEST(Place, TakesTheNextNearestWhereTheNearestIsTaken) {  // CASES 36
    const auto got = Machine(with_devices()).lease("c1", "8").placed({{"near", "gpu:0"}});
    EXPECT_EQ(got.nodes.text(), "3");
    const auto far = Machine(with_devices()).placed({{"near", "gpu:0"}});
    EXPECT_THAT(far.runners_up.at(0), HasSubstr("node 3: farther from gpu:0 (0000:81:00.0) (distance 11 against 10)"));
}

TEST(Place, AnySocketNearADeviceIsThatOfTheDevice) {  // the policy socket-of-gpu
    EXPECT_EQ(Machine(with_devices()).placed({{"near", "gpu:0"}, {"socket", "any:1"}}).nodes.text(), "2-3");
    EXPECT_EQ(Machine(with_devices()).placed({{"near", "netdev:eth0"}, {"socket", "any:1"}}).nodes.text(), "0-1");
}

TEST(Place, SaysThatADeviceWithoutANodeDecidesNothing) {  // CASES 36
    const auto got = Machine(with_devices()).placed({{"near", "block:nvme0n1"}});
    EXPECT_EQ(got.nodes.text(), "0");
    EXPECT_THAT(test::text(got.why), HasSubstr("firmware does not say"));
}

TEST(Place, NamesTheDevicesThereAre) {
    const Machine machine(with_devices());
    EXPECT_THAT(machine.refused({{"near", "gpu:2"}}).error.detail, HasSubstr("gpu:1 (0000:c1:00.0)"));
    EXPECT_THAT(machine.refused({{"near", "netdev:ib0"}}).error.detail, HasSubstr("netdev:eth0"));
    EXPECT_THAT(machine.refused({{"near", "pci:99:00.0"}}).error.detail, HasSubstr("pci:0000:21:00.0"));
    EXPECT_EQ(machine.refused({{"near", "gpu:2"}}).error.code, Errc::impossible);
    EXPECT_EQ(machine.refused({{"near", "gpu:-1"}}).error.code, Errc::invalid_request);
    EXPECT_EQ(machine.refused({{"near", "nvme0n1"}}).error.code, Errc::invalid_request);
    EXPECT_THAT(Machine(test::one_node()).refused({{"near", "gpu:0"}}).error.detail, HasSubstr("no gpu"));
}

TEST(Place, KeepsASecondNodeNearTheDeviceToo) {
    EXPECT_EQ(Machine(with_devices()).placed({{"near", "netdev:eth0"}, {"cores", "6"}}).nodes.text(), "0-1");
    EXPECT_EQ(Machine(with_devices()).placed({{"near", "gpu:1"}, {"cores", "6"}}).nodes.text(), "2-3");
}

}  // namespace
}  // namespace numalease
