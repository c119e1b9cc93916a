#include "client/doctor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/units.hpp"

namespace numalease::client {
namespace {

using model::Dict;
using model::Value;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Dict node(unsigned id, model::Bytes total) { return {{"id", id}, {"total", total}}; }
Dict core(unsigned node, unsigned socket) { return {{"node", node}, {"socket", socket}}; }

/// Two sockets, a node each, of which nothing is to be said.
Examined healthy() {
    return {.status = {{"mode", "daemon"}, {"confinement", Value::Strings{"scope", "unit", "slice", "affinity"}}},
            .topology = {{"nodes", Value::Dicts{node(0, 64 * model::kGiB), node(1, 63 * model::kGiB)}},
                         {"cores", Value::Dicts{core(0, 0), core(1, 1)}}},
            .knobs = {{{"knob", "numa_balancing"}, {"value", "1"}},
                      {{"knob", "zone_reclaim_mode"}, {"value", "0"}},
                      {{"knob", "hugepages/2M/node0"}, {"value", "0"}, {"free", 0U}}},
            .squatters = {},
            .may_lease = true,
            .group = "numa-lease"};
}

std::vector<std::string> found(const Examined& examined) {
    std::vector<std::string> out;
    for (const auto& it : diagnose(examined)) out.push_back(it.what + " → " + it.way_out);
    return out;
}

TEST(Doctor, FindsNothingOnAHealthyMachine) { EXPECT_THAT(found(healthy()), IsEmpty()); }

TEST(Doctor, FindsWhatTheDaemonLacks) {
    auto it = healthy();
    it.status = {{"mode", "read-only"}, {"degraded", Value::Strings{"no cgroup v2 here"}}};
    it.may_lease = false;
    EXPECT_THAT(found(it), ElementsAre(HasSubstr("systemctl enable --now numa-leased"), HasSubstr("no cgroup v2 here"),
                                       HasSubstr("adduser $USER numa-lease")));
    it = healthy();
    it.status["confinement"] = Value::Strings{"affinity"};
    EXPECT_THAT(found(it), ElementsAre(HasSubstr("does not reach systemd")));
    it = healthy();
    it.status["rivals"] = Value::Strings{"numad", "tuned"};
    EXPECT_THAT(found(it), ElementsAre(HasSubstr("disable --now numad"), HasSubstr("disable --now tuned")));
}

TEST(Doctor, FindsNodesThatAreOdd) {
    auto it = healthy();
    it.topology["nodes"] = Value::Dicts{node(0, 64 * model::kGiB), node(1, 0)};
    EXPECT_THAT(found(it), ElementsAre(HasSubstr("node 1 has CPUs and no memory")));
    it.topology["nodes"] = Value::Dicts{node(0, 64 * model::kGiB), node(1, 32 * model::kGiB)};
    EXPECT_THAT(found(it), ElementsAre(HasSubstr("node 0 has 64G and node 1 32G")));
    // Memory without CPUs, as of CXL, is as large as it is.
    it.topology["nodes"] = Value::Dicts{node(0, 64 * model::kGiB), node(1, 64 * model::kGiB), node(2, model::kGiB)};
    EXPECT_THAT(found(it), IsEmpty());
    it.topology = {{"nodes", Value::Dicts{node(0, 128 * model::kGiB)}},
                   {"cores", Value::Dicts{core(0, 0), core(0, 1)}},
                   {"contradictions", Value::Strings{"the firmware says so and so"}}};
    EXPECT_THAT(found(it), ElementsAre(HasSubstr("2 sockets and 1 node"), HasSubstr("so and so")));
}

TEST(Doctor, FindsCpusAndGpusThatCannotBeUsedWell) {
    auto it = healthy();
    it.status["offline_cpus"] = "3";
    it.topology["isolated"] = "2";
    it.topology["devices"] = Value::Dicts{{{"kind", "netdev"}, {"nodes", ""}},
                                          {{"kind", "gpu"}, {"nodes", "0"}, {"pci", "0000:01:00.0"}},
                                          {{"kind", "gpu"}, {"nodes", ""}, {"pci", "0000:02:00.0"}}};
    EXPECT_THAT(found(it), ElementsAre(HasSubstr("CPUs 3 are offline"), HasSubstr("CPUs 2 are isolated"),
                                       HasSubstr("of gpu:1 (0000:02:00.0)")));
}

TEST(Doctor, FindsWhatSomebodySetForGoodAndNotWhatALeaseHolds) {
    auto it = healthy();
    it.knobs = {{{"knob", "numa_balancing"}, {"value", "0"}},
                {{"knob", "zone_reclaim_mode"}, {"value", "1"}},
                {{"knob", "hugepages/2M/node0"}, {"value", "100"}, {"free", 40U}},
                {{"knob", "thp_enabled"}, {"value", "never"}, {"stuck", "somebody else wrote never"}}};
    EXPECT_THAT(found(it),
                ElementsAre(HasSubstr("numa_balancing is 0"), HasSubstr("zone_reclaim_mode is 1"),
                            HasSubstr("100 huge pages are reserved outside of any lease (hugepages/2M/node0), 40 of"),
                            HasSubstr("thp_enabled: somebody else")));
    for (auto& knob : it.knobs) knob["held_by"] = Value::Strings{"c1"};
    it.knobs.back().erase("stuck");
    EXPECT_THAT(found(it), IsEmpty());
}

}  // namespace
}  // namespace numalease::client
