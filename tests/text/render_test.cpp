#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/lease.hpp"
#include "model/limits.hpp"
#include "model/topology.hpp"
#include "text/render.hpp"

namespace numalease::client {
namespace {

using model::Value;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kNow = 1'000'000'000'000;

model::Lease active_lease() {
    model::Lease lease;
    lease.id = "c1";
    lease.state = model::LeaseState::active;
    lease.request.command = "llama-server -m m.gguf";
    lease.placement = {.cpus = {0, 1, 2, 3}, .nodes = {1}, .cores = 2, .threads = 2, .why = {"node 1: the emptiest"}};
    lease.confinement = {.kind = model::ConfinementKind::scope,
                         .unit = "numalease-c1.scope",
                         .effective_cpus = {0, 1, 2, 3},
                         .effective_nodes = {1}};
    lease.started = {.real = model::Micros(kNow - 65'000'000)};
    lease.knobs = {{{model::Knob::numa_balancing}, "0", "1", "0", ""},
                   {{model::Knob::hugepages, 1, 2 * model::kMiB}, "16", "0", "12", "fragmented"}};
    return lease;
}

TEST(LeasesText, ShowsWhereAndSinceWhen) {
    EXPECT_EQ(leases_text({to_dict(active_lease())}, false, kNow, 0),
              "ID  STATE   USER  CPUS  NODES  THREADS  BUSY  SINCE    LEFT  COMMAND\n"
              "c1  active  root  0-3   1      2        -     1min 5s  -     llama-server -m m.gguf\n");
}

TEST(LeaseText, SaysWhereItsMemoryWasWhenItWasReady) {
    auto lease = active_lease();
    EXPECT_THAT(lease_text(to_dict(lease), kNow), Not(HasSubstr("verified")));
    lease.verified = {.at = model::Micros(kNow - 61'000'000),
                      .unknown = {},
                      .nodes = {{1, {.anonymous = model::kGiB, .file = 0, .mapped = 0}}},
                      .inside = model::kGiB,
                      .imbalance_permille = {},
                      .warnings = {"half of it is \x1b[31melsewhere"}};
    const auto text = lease_text(to_dict(lease), kNow);
    EXPECT_THAT(text, HasSubstr("1min 1s ago: 1G, 100 % of it on leased nodes (node 1: 1G); 1G anonymous, 0 of files"));
    EXPECT_THAT(text, HasSubstr("amiss then"));
    const auto list = leases_text({to_dict(lease)}, false, kNow, 0);
    EXPECT_THAT(list, HasSubstr("c1 when it was ready: half of it is "));
    EXPECT_THAT(list + text, Not(HasSubstr("\x1b")));
    lease.state = model::LeaseState::ended;
    EXPECT_THAT(leases_text({to_dict(lease)}, true, kNow, 0), Not(HasSubstr("when it was ready")));
}

TEST(LeasesText, ShowsGpusWhereThereAreSome) {
    auto lease = active_lease();
    lease.placement.gpus = {{.pci = "0000:81:00.0", .uuid = "GPU-a", .vendor = "nvidia", .name = "A100"},
                            {.pci = "0000:c1:00.0"}};
    EXPECT_EQ(leases_text({to_dict(lease)}, false, kNow, 0),
              "ID  STATE   USER  CPUS  NODES  GPUS                        THREADS  BUSY  SINCE    LEFT  COMMAND\n"
              "c1  active  root  0-3   1      0000:81:00.0, 0000:c1:00.0  2        -     1min 5s  -     llama-server "
              "-m m.gguf\n");
    EXPECT_THAT(lease_text(to_dict(lease), kNow), HasSubstr("0000:81:00.0, A100, GPU-a\n"));
    EXPECT_THAT(lease_text(to_dict(lease), kNow), HasSubstr("0000:c1:00.0, -, -\n"));
    EXPECT_THAT(grant_lines(to_dict(lease)).at(0),
                HasSubstr("2 threads for the engine), GPU 0000:81:00.0, 0000:c1:00.0, confined"));
}

TEST(LeasesText, SaysWhichAreShieldedAndALeaseWhyItIsNot) {
    auto lease = active_lease();
    lease.confinement.shield = {.kind = model::ShieldKind::path, .cgroup = "/user.slice/c1", .in_force = true};
    EXPECT_THAT(leases_text({to_dict(lease)}, false, kNow, 0), HasSubstr("0-3 shielded"));
    EXPECT_THAT(lease_text(to_dict(lease), kNow), HasSubstr("shielded by the partition /user.slice/c1"));
    lease.confinement.shield.in_force = false;
    lease.confinement.shield.problem = "root invalid (x)";
    EXPECT_THAT(leases_text({to_dict(lease)}, false, kNow, 0), Not(HasSubstr("shielded")));
    EXPECT_THAT(leases_text({to_dict(lease)}, false, kNow, 0),
                HasSubstr("c1 is degraded: its shield does not hold, /user.slice/c1 is 'root invalid (x)'"));
}

TEST(LeasesText, LeavesOutWhatIsOverUnlessAsked) {
    auto lease = active_lease();
    lease.state = model::LeaseState::ended;
    EXPECT_EQ(leases_text({to_dict(lease)}, false, kNow, 0), "no leases\n");
    EXPECT_THAT(leases_text({to_dict(lease)}, true, kNow, 0), HasSubstr("ended"));
}

TEST(LeasesText, SaysWhoIsInTheWayOfAQueuedOne) {
    model::Lease lease;
    lease.id = "c2";
    lease.in_the_way = {"node 0: c1 (alice, since 2h)"};
    EXPECT_THAT(leases_text({to_dict(lease)}, false, kNow, 0), HasSubstr("c2 waits: node 0: c1 (alice, since 2h)\n"));
}

TEST(LeasesText, NeverPrintsEscapesOfOtherUsers) {
    auto lease = active_lease();
    lease.request.command = "\x1b[2J";
    lease.in_the_way = {"\x1b[31m"};
    EXPECT_THAT(leases_text({to_dict(lease)}, false, kNow, 0), Not(HasSubstr("\x1b")));
    EXPECT_THAT(lease_text(to_dict(lease), kNow), Not(HasSubstr("\x1b")));
}

TEST(GrantLines, SayWhatWasGotAndWanted) {
    EXPECT_THAT(grant_lines(to_dict(active_lease())),
                ElementsAre("c1: CPUs 0-3, nodes 1 (2 cores, 2 threads for the engine), confined by scope "
                            "numalease-c1.scope, in force: CPUs 0-3, nodes 1",
                            "c1: numa_balancing: 0, was 1", "c1: hugepages/2M/node1: 12 of 16 pages (fragmented)"));
}

TEST(ProgressLine, NamesWhoIsInTheWay) {
    model::Lease lease;
    lease.id = "c2";
    lease.in_the_way = {"position 1", "c1 holds node 0"};
    EXPECT_EQ(progress_line(to_dict(lease)), "c2 is queued: position 1, c1 holds node 0");
}

TEST(ProgressLine, NamesTheStageOfPreparing) {
    model::Lease lease;
    lease.id = "c2";
    lease.state = model::LeaseState::preparing;
    lease.stage = model::Stage::hugepages;
    EXPECT_EQ(progress_line(to_dict(lease)), "c2 is preparing (hugepages)");
}

TEST(StatusText, NamesKnobsOffTheirPriorAndForWhom) {
    const Value::Dicts knobs{
        {{"knob", "numa_balancing"}, {"value", "0"}, {"prior", "2"}, {"held_by", Value::Strings{"c1", "c3"}}},
        {{"knob", "thp_enabled"}, {"value", "madvise"}}};
    const auto text = status_text({{"version", "0.1.0"},
                                   {"mode", "system"},
                                   {"pid", 7U},
                                   {"offline_cpus", "4-7"},
                                   {"rivals", Value::Strings{"numad"}},
                                   {"degraded", Value::Strings{"no cgroup v2 here"}}},
                                  {}, knobs, kNow, 0);
    EXPECT_EQ(text,
              "numa-leased 0.1.0, pid 7, system\nno leases\n"
              "off its prior: numa_balancing is 0, was 2, for c1, c3\n"
              "offline CPUs: 4-7\nalso tuning this machine: numad\ndegraded: no cgroup v2 here\n");
}

TEST(StatusText, SaysWhatTheSiteSetAndWhere) {
    const model::Scheduling scheduling{.aging = model::kNever,
                                       .classes = {{"batch", {.priority = 0, .time = std::chrono::hours(12)}},
                                                   {"normal", {.priority = 10, .time = {}}}}};
    Dict status{{"mode", "daemon"}, {"scheduling", to_dict(scheduling)}, {"configuration", ""}};
    EXPECT_THAT(status_text(status, {}, {}, kNow, 0), Not(HasSubstr("limits")));
    status["configuration"] = "/etc/x.yaml";
    EXPECT_THAT(status_text(status, {}, {}, kNow, 0),
                HasSubstr("scheduling: half-life 1d, aging never, batch has priority 0 for at most 12h, normal has "
                          "priority 10; limits: from /etc/x.yaml\n"));
}

TEST(StatusText, SaysThatNoDaemonRuns) {
    EXPECT_THAT(status_text({{"mode", "read-only"}}, {}, {}, kNow, 0), HasSubstr("no numa-leased runs"));
}

TEST(KnobsText, PutsMissingKnobsInOneLine) {
    EXPECT_EQ(knobs_text({{{"knob", "numa_balancing"}, {"value", "1"}},
                          {{"knob", "weight_auto"}, {"unsupported", "no such file"}},
                          {{"knob", "weight/node0"}, {"unsupported", "no such file"}}},
                         0),
              "KNOB            VALUE  PRIOR  HELD BY  NOTE\n"
              "numa_balancing  1      -      -\n"
              "not on this kernel: weight_auto, weight/node0\n");
}

model::Topology two_nodes() {
    model::Topology topology;
    topology.nodes = {{.id = 0, .package = 0, .cpus = {0, 1}, .total = 8 * model::kGiB},
                      {.id = 8, .package = 1, .cpus = {2, 3}, .total = 8 * model::kGiB}};
    topology.cores = {{.id = 0, .node = 0, .cpus = {0, 1}}, {.id = 1, .node = 8, .cpus = {2}, .offline = {3}}};
    topology.distance = {{10, 21}, {21, 10}};
    topology.online = {0, 1, 2};
    return topology;
}

TEST(TopologyText, ShowsSparseNodesDistancesAndOfflineCpus) {
    EXPECT_EQ(topology_text(to_dict(two_nodes()), 0),
              "NODE  SOCKET  KIND  MEMORY  CORES  CPUS  DISTANCES\n"
              "0     0       dram  8G      1      0-1   10 21\n"
              "8     1       dram  8G      1      2-3   21 10\n"
              "offline CPUs: 3\n");
}

TEST(TopologyText, CountsGpusAndSaysHowTheyAreCalled) {
    auto topology = two_nodes();
    topology.devices = {{.pci = "0000:81:00.0",
                         .kind = "gpu",
                         .name = "A100",
                         .nodes = {8},
                         .vendor = "nvidia",
                         .driver = "nvidia",
                         .uuid = "GPU-a"},
                        {.pci = "0000:c1:00.0", .kind = "gpu", .name = "1234:1111"},
                        {.pci = "0000:02:00.0", .kind = "netdev", .name = "eth0", .nodes = {0}}};
    EXPECT_THAT(topology_text(to_dict(topology), 0), HasSubstr("DEVICE  PCI           NODES  NAME       DRIVER  UUID\n"
                                                               "gpu:0   0000:81:00.0  8      A100       nvidia  GPU-a\n"
                                                               "gpu:1   0000:c1:00.0  -      1234:1111  -       -\n"
                                                               "netdev  0000:02:00.0  0      eth0\n"));
}

TEST(OneNodeNote, IsSaidOnOneNodeOnly) {
    auto topology = two_nodes();
    EXPECT_EQ(one_node_note(to_dict(topology)), "");
    topology.nodes.pop_back();
    EXPECT_THAT(one_node_note(to_dict(topology)), HasSubstr("one node"));
}

TEST(PlanText, HasALineReadyToPaste) {
    Adapted adapted{.argv = {"llama-server", "-m", "my model.gguf"},
                    .env = {{"LLAMA_ARG_THREADS", "4"}, {"NUMA_LEASE_CPUS", "0-3"}},
                    .warnings = {"-t 9 asks for 9 threads"},
                    .engine = "llama.cpp",
                    .told = "llama.cpp: LLAMA_ARG_THREADS=4"};
    const auto text = plan_text({{"cpus", "0-3"},
                                 {"nodes", "0"},
                                 {"cores", 4U},
                                 {"threads", 4U},
                                 {"why", Value::Strings{"node 0: nearest"}},
                                 {"runners_up", Value::Strings{"node 1"}}},
                                {{"cores", "4"}, {"wait", "no"}}, adapted);
    EXPECT_EQ(text,
              "CPUs 0-3, nodes 0 (4 cores, 4 threads for the engine)\n"
              "  because node 0: nearest\n  runner-up: node 1\n  asked: cores=4\n"
              "llama.cpp: LLAMA_ARG_THREADS=4\nwarning: -t 9 asks for 9 threads\n"
              "command: LLAMA_ARG_THREADS=4 llama-server -m 'my model.gguf'\n");
}

}  // namespace
}  // namespace numalease::client
