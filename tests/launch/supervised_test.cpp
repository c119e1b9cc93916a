#include "launch/supervised.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/topology.hpp"

namespace numalease::client {
namespace {

using testing::HasSubstr;

const policies::Library& shipped() {
    static const auto library = policies::load({policies::search_path("").front()});
    return library;
}

/// Two nodes of two cores with two threads each, and a third without CPUs.
model::Dict topology() {
    model::Topology out;
    out.nodes = {{.id = 0, .cpus = {0, 1, 4, 5}}, {.id = 2, .cpus = {2, 3, 6, 7}}, {.id = 3, .cpus = {}}};
    out.cores = {{.id = 0, .node = 0, .cpus = {0, 4}},
                 {.id = 1, .node = 0, .cpus = {1, 5}},
                 {.id = 2, .node = 2, .cpus = {2, 6}},
                 {.id = 3, .node = 2, .cpus = {3, 7}}};
    out.online = {0, 1, 2, 3, 4, 5, 6, 7};
    return model::to_dict(out);
}

Asked asked(const std::string& nodes) {
    Asked out;
    EXPECT_TRUE(model::set_field(out.request, "node", nodes));
    return out;
}

TEST(RequestOfOne, HasItsNodeAndWhatAnInstanceNeedsAndNoLever) {
    const model::Dict all{
        {"policy", "per-node"},  {"node", "all"},     {"memory", "8G"},     {"memory-is-estimate", "yes"},
        {"hugepages", "2M=64G"}, {"wait", "forever"}, {"mode", "all"},      {"mempolicy", "bind"},
        {"share", "yes"},        {"time", "2h"},      {"required", "node"}, {"command", "x"}};
    const model::Dict one{{"policy", "per-node"}, {"node", "2"},   {"memory", "8G"},      {"memory-is-estimate", "yes"},
                          {"wait", "1min"},       {"mode", "all"}, {"mempolicy", "bind"}, {"command", "x"}};
    EXPECT_EQ(request_of_one(all, 2), one);
    auto whole = all;
    whole.erase("memory");
    whole.erase("memory-is-estimate");
    EXPECT_EQ(request_of_all(all), whole) << "one instance's memory is not that of all";
}

TEST(PlaceOfOne, IsTheFirstNodeThatHasCpusOfTheLease) {
    const model::Placement all{
        .cpus = {1, 5, 2, 3, 6, 7}, .nodes = {0, 2, 3}, .gpus = {{.pci = "0000:81:00.0"}}, .cores = 3, .threads = 3};
    const auto one = place_of_one(all, topology());
    EXPECT_EQ(one.gpus, all.gpus) << "every instance may use them";
    EXPECT_EQ(one.cpus, (model::CpuSet{1, 5}));
    EXPECT_EQ(one.nodes, model::NodeSet{0});
    EXPECT_EQ(one.cores, 1U);
    EXPECT_EQ(one.threads, 1U);
    const model::Placement hyper{.cpus = {2, 3, 6, 7}, .nodes = {2, 3}, .cores = 2, .threads = 4};
    EXPECT_EQ(place_of_one(hyper, topology()).threads, 4U);
}

TEST(CheckInstances, AFixedPortIsRefusedWhereThereMayBeSeveral) {
    const Argv fixed{"llama-server", "--port", "9000"};
    for (const auto* nodes : {"all", "0,2", "any:2"}) {
        const auto checked = check_instances(shipped(), asked(nodes), fixed, false, topology());
        ASSERT_FALSE(checked) << nodes;
        EXPECT_EQ(checked.error().code, model::Errc::invalid_request);
        EXPECT_THAT(checked.error().detail, HasSubstr("every instance would listen on one port"));
    }
    EXPECT_TRUE(check_instances(shipped(), asked("2"), fixed, false, topology()));
    EXPECT_TRUE(check_instances(shipped(), asked("any:1"), fixed, false, topology()));
    EXPECT_TRUE(check_instances(shipped(), asked("all"), {"llama-server"}, false, topology()));
    EXPECT_TRUE(
        check_instances(shipped(), asked("all"), {"llama-server", "--port", "${9000+index}"}, true, topology()));
}

}  // namespace
}  // namespace numalease::client
