#include <gmock/gmock.h>

#include "support/placing.hpp"

namespace numalease {
namespace {

using model::Errc;
using test::Machine;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

model::Device gpu(const std::string& bus, model::NodeSet nodes, const std::string& vendor = "nvidia") {
    return {.pci = "0000:" + bus + ":00.0",
            .kind = "gpu",
            .name = "card",
            .nodes = std::move(nodes),
            .vendor = vendor,
            .driver = vendor,
            .uuid = "GPU-" + bus};
}

/// One card on each of nodes 0 and 1, two on node 3; nodes 2 and 3 are socket 1.
model::Topology four_cards() {
    auto topology = test::dual_socket_four_nodes();
    topology.devices = {gpu("c1", {3}),
                        gpu("21", {0}),
                        gpu("81", {3}),
                        gpu("41", {1}),
                        {.pci = "0000:22:00.0", .kind = "block", .name = "nvme0n1", .nodes = {2}}};
    return topology;
}

std::vector<std::string> buses(const model::Placement& placement) {
    std::vector<std::string> out;
    for (const auto& it : placement.gpus) out.push_back(it.pci.substr(5, 2));
    return out;
}

/// Somebody has GPUs and one core.
Machine& holds(Machine& machine, const char* id, std::set<std::string> gpus, unsigned share = 1) {
    machine.occupancy.occupants.push_back({.id = id, .gpus = std::move(gpus), .gpu_share = share});
    return machine;
}

TEST(PlaceGpu, IsLeasedByNumberAddressOrUuidAndDrawsTheLease) {
    const Machine machine(four_cards());
    for (const auto* name : {"1", "41:00.0", "0000:41:00.0", "GPU-41"}) {
        const auto got = machine.placed({{"gpu", name}});
        EXPECT_THAT(buses(got), ElementsAre("41")) << name;
        EXPECT_EQ(got.nodes.text(), "1") << name;
        EXPECT_EQ(
            got.gpus[0],
            (model::Gpu{.pci = "0000:41:00.0", .uuid = "GPU-41", .vendor = "nvidia", .name = "card", .nodes = {1}}));
    }
    const auto got = machine.placed({{"gpu", "1"}});
    EXPECT_THAT(got.why[0], HasSubstr("nearest to GPU 0000:41:00.0"));
    EXPECT_THAT(test::text(got.why), HasSubstr("GPU 0000:41:00.0 (GPU-41): on node 1\n"));
}

TEST(PlaceGpu, TheSameCardTwiceIsOne) {
    EXPECT_THAT(buses(Machine(four_cards()).placed({{"gpu", "2,GPU-81,81:00.0,0"}})), ElementsAre("21", "81"));
}

TEST(PlaceGpu, NodesThatAreNamedStayAndSoDoesANearDevice) {
    const Machine machine(four_cards());
    const auto far = machine.placed({{"gpu", "0"}, {"node", "2"}});
    EXPECT_EQ(far.nodes.text(), "2");
    EXPECT_THAT(test::text(far.why), HasSubstr("on node 0, away from the lease (distance 21)"));
    EXPECT_EQ(machine.placed({{"gpu", "0"}, {"near", "block:nvme0n1"}}).nodes.text(), "2");
    EXPECT_EQ(machine.placed({{"gpu", "2"}, {"socket", "any:1"}}).nodes.text(), "2-3") << "any socket: the GPU's";
}

TEST(PlaceGpu, AnyIsNearestToWhatIsNamed) {
    const Machine machine(four_cards());
    EXPECT_THAT(buses(machine.placed({{"gpu", "any:1"}, {"node", "1"}})), ElementsAre("41"));
    EXPECT_THAT(buses(machine.placed({{"gpu", "any:1"}, {"node", "2"}})), ElementsAre("81"));
    EXPECT_THAT(buses(machine.placed({{"gpu", "any:1"}, {"socket", "1"}})), ElementsAre("81"));
    EXPECT_THAT(buses(machine.placed({{"gpu", "any:1"}, {"near", "gpu:GPU-c1"}})), ElementsAre("81")) << "same node";
}

TEST(PlaceGpu, AnyPrefersOneSocketAndSaysWhenTheySpan) {
    Machine machine(four_cards());
    const auto near = machine.placed({{"gpu", "any:2"}});
    EXPECT_THAT(buses(near), ElementsAre("81", "c1")) << "the same node";
    EXPECT_THAT(test::text(near.why), HasSubstr("2 GPUs: all on socket 1\n"));
    EXPECT_EQ(near.nodes.text(), "3");
    const auto spanning = machine.placed({{"gpu", "any:3"}});
    EXPECT_THAT(test::text(spanning.why), HasSubstr("3 GPUs: they span sockets 0-1, no socket has as many free\n"));
    // One of each pair is taken: two are left, on two sockets.
    holds(machine, "c1", {"0000:21:00.0", "0000:81:00.0"});
    const auto rest = machine.placed({{"gpu", "any:2"}});
    EXPECT_THAT(buses(rest), ElementsAre("41", "c1"));
    EXPECT_THAT(test::text(rest.why), HasSubstr("they span sockets 0-1, no socket"));
    EXPECT_THAT(test::text(Machine(four_cards()).placed({{"gpu", "0,2"}}).why), HasSubstr("sockets 0-1, as asked"));
}

TEST(PlaceGpu, AnyOneLeavesAPairWhole) {
    auto topology = four_cards();
    topology.devices.erase(topology.devices.begin() + 3);  // socket 0 has one, socket 1 two
    EXPECT_THAT(buses(Machine(topology).placed({{"gpu", "any:1"}})), ElementsAre("21"));
}

TEST(PlaceGpu, AnyGoesWhereThereAreCores) {  // CASES 36
    Machine machine(four_cards());
    machine.lease("c1", "0-3,16-19");
    const auto got = machine.placed({{"gpu", "any:1"}});
    EXPECT_THAT(buses(got), ElementsAre("41"));
    EXPECT_EQ(got.nodes.text(), "1");
}

TEST(PlaceGpu, AnyPrefersCardsThatACommandCanBeToldOfAndOneVendor) {
    auto topology = test::dual_socket_four_nodes();
    topology.devices = {gpu("01", {0}, "amd"), gpu("02", {0}), gpu("03", {3}), gpu("00", {0})};
    topology.devices[3].uuid.clear();
    const Machine machine(topology);
    EXPECT_THAT(buses(machine.placed({{"gpu", "any:2"}})), ElementsAre("02", "03"));
    EXPECT_THAT(buses(machine.placed({{"gpu", "any:4"}})), ElementsAre("00", "01", "02", "03"));
}

// ── Where the firmware says nothing ──────────────────────────────────────────────────────────────────────────────

TEST(PlaceGpu, OfUnknownPlaceAreBalancedOverSocketsAndNodes) {  // CASES 36
    auto topology = test::dual_socket_four_nodes();
    for (const auto* bus : {"01", "02", "03", "04", "05"}) topology.devices.push_back(gpu(bus, {}));
    const Machine machine(topology);
    std::vector<std::string> nodes;
    for (const auto* number : {"0", "1", "2", "3", "4"}) {
        const auto got = machine.placed({{"gpu", number}, {"cores", "1"}});
        nodes.push_back(got.nodes.text());
        EXPECT_THAT(test::text(got.why), HasSubstr("the firmware does not say which node it is on; balanced over the "
                                                   "nodes, it counts as on node " +
                                                   got.nodes.text()));
    }
    EXPECT_THAT(nodes, ElementsAre("0", "2", "1", "3", "0"));
    EXPECT_EQ(machine.placed({{"near", "gpu:1"}}).nodes.text(), "2") << "near means the same";
    EXPECT_THAT(test::text(machine.placed({{"near", "gpu:1"}}).why), HasSubstr("balanced over the nodes"));
}

TEST(PlaceGpu, OfUnknownPlaceAvoidTheNodesOfThoseThatAreKnown) {
    auto topology = test::dual_socket_four_nodes();
    topology.devices = {gpu("01", {0}), gpu("02", {1}), gpu("03", {}), gpu("04", {})};
    const Machine machine(topology);
    EXPECT_EQ(machine.placed({{"gpu", "2"}, {"cores", "1"}}).nodes.text(), "2");
    EXPECT_EQ(machine.placed({{"gpu", "3"}, {"cores", "1"}}).nodes.text(), "3");
}

// ── Others ───────────────────────────────────────────────────────────────────────────────────────────────────────

TEST(PlaceGpu, IsExclusiveUnlessBothShare) {
    struct Row {
        unsigned theirs;
        const char* ours;
        bool placed;
    };
    for (const auto& row : {Row{1, "1", false}, Row{1, "2", false}, Row{2, "1", false}, Row{2, "2", true}}) {
        Machine machine(four_cards());
        holds(machine, "c1", {"0000:21:00.0"}, row.theirs);
        EXPECT_EQ(machine.place({{"gpu", "0"}, {"gpu-share", row.ours}}).has_value(), row.placed)
            << row.theirs << ' ' << row.ours;
    }
}

TEST(PlaceGpu, IsSharedByAsManyAsEachOfThemPutsUpWith) {
    Machine machine(four_cards());
    holds(machine, "c1", {"0000:21:00.0"}, 3);
    holds(machine, "c2", {"0000:21:00.0"}, 3);
    const auto got = machine.placed({{"gpu", "0"}, {"gpu-share", "3"}});
    EXPECT_THAT(test::text(got.why), HasSubstr("shared with c1 c2"));
    EXPECT_EQ(machine.refused({{"gpu", "0"}, {"gpu-share", "2"}}).error.code, Errc::not_now);
    EXPECT_THAT(machine.refused({{"gpu", "0"}, {"gpu-share", "2"}}).fits_now, HasSubstr("--gpu-share 3"));
    holds(machine, "c3", {"0000:21:00.0"}, 3);
    EXPECT_EQ(machine.refused({{"gpu", "0"}, {"gpu-share", "4"}}).error.code, Errc::not_now) << "the others say three";
    EXPECT_THAT(buses(machine.placed({{"gpu", "any:1"}, {"gpu-share", "4"}})), Not(ElementsAre("21")));
}

TEST(PlaceGpu, ABusyOneNamesItsHoldersAndWhatFitsNow) {
    Machine machine(four_cards());
    holds(machine, "c1", {"0000:21:00.0", "0000:41:00.0"});
    const auto no = machine.refused({{"gpu", "0"}});
    EXPECT_EQ(no.error.code, Errc::not_now);
    EXPECT_THAT(no.error.detail, HasSubstr("GPU 0000:21:00.0 is leased"));
    EXPECT_THAT(no.in_the_way, ElementsAre("c1"));
    EXPECT_EQ(no.fits_now, "--gpu any:1");
    const auto three = machine.refused({{"gpu", "any:3"}});
    EXPECT_THAT(three.in_the_way, ElementsAre("c1"));
    EXPECT_EQ(three.fits_now, "--gpu any:2");
}

TEST(PlaceGpu, WaitsForCoresTooAndNeverForWhatCannotBe) {
    Machine machine(four_cards());
    holds(machine, "c1", {"0000:21:00.0"});
    machine.lease("c2", "0-31");
    EXPECT_THAT(machine.refused({{"gpu", "0"}, {"cores", "1"}}).in_the_way, ElementsAre("c1", "c2"));
    EXPECT_EQ(machine.refused({{"gpu", "0"}, {"cores", "17"}}).error.code, Errc::impossible);
    EXPECT_THAT(machine.refused({{"gpu", "1"}, {"cores", "1"}}).in_the_way, ElementsAre("c2"));
}

TEST(PlaceGpu, NamesThoseThereAre) {
    const Machine machine(four_cards());
    for (const auto* name : {"4", "99:00.0", "GPU-99", "any:5", "0,9"}) {
        const auto no = machine.refused({{"gpu", name}});
        EXPECT_EQ(no.error.code, Errc::impossible) << name;
        EXPECT_THAT(no.error.detail, HasSubstr("gpu:0 (0000:21:00.0, GPU-21), gpu:1 (0000:41:00.0, GPU-41)")) << name;
    }
    EXPECT_THAT(Machine(test::one_node()).refused({{"gpu", "any:1"}}).error.detail, HasSubstr("has no gpu"));
    EXPECT_THAT(machine.refused({{"near", "gpu:GPU-99"}}).error.detail, HasSubstr("GPU-21"));
}

TEST(PlaceGpu, OfAParentOnlyThoseItHas) {
    Machine machine(four_cards());
    machine.occupancy.allowed_gpus = {"0000:41:00.0", "0000:c1:00.0"};
    EXPECT_THAT(buses(machine.placed({{"gpu", "any:2"}})), ElementsAre("41", "c1"));
    EXPECT_THAT(buses(machine.placed({{"gpu", "1"}})), ElementsAre("41")) << "numbers are the machine's";
    for (const auto* name : {"0", "any:3"}) {
        const auto no = machine.refused({{"gpu", name}});
        EXPECT_EQ(no.error.code, Errc::impossible);
        EXPECT_THAT(no.error.detail, HasSubstr("the lease that this is asked from has 0000:41:00.0, 0000:c1:00.0"));
    }
}

TEST(PlaceGpu, NobodyHasOneUnasked) { EXPECT_TRUE(Machine(four_cards()).placed({}).gpus.empty()); }

}  // namespace
}  // namespace numalease
