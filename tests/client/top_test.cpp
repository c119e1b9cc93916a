#include "client/top.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace numalease::client {
namespace {

using model::Dict;
using model::Value;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr std::uint64_t kSecond = 1'000'000;
constexpr std::size_t kColumns = 80;

std::size_t characters(const std::string& line) {
    return static_cast<std::size_t>(
        std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }));
}

Dict lease(const std::string& id, std::uint64_t at, std::uint64_t cpu) {
    return {{"id", id},
            {"state", "active"},
            {"request", Dict{{"command", "llama-server -m m.gguf"}}},
            {"placement", Dict{{"cpus", "0-1"}, {"nodes", "0"}, {"cores", 2U}, {"threads", 2U}}},
            {"use", Dict{{"at_usec", at}, {"cpu_usec", cpu}}}};
}

Sight sight(std::uint64_t at, std::uint64_t cpu) {
    Sight out{.clock = "14:03:12", .now = 1000 * kSecond};
    out.status = {{"version", "0.1.0"}, {"mode", "daemon"}, {"leases", Dict{{"active", 1U}, {"queued", 1U}}}};
    out.topology = {{"nodes", Value::Dicts{{{"id", 0U}, {"cpus", "0-3"}}}},
                    {"cores", Value::Dicts{{{"node", 0U}, {"cpus", "0-1"}}, {{"node", 0U}, {"cpus", "2-3"}}}}};
    out.leases = {lease("c1", at, cpu),
                  {{"id", "c2"},
                   {"state", "queued"},
                   {"queued", Dict{{"real", 940 * kSecond}}},
                   {"request", Dict{{"command", "train"}, {"cores", "2"}}},
                   {"in_the_way", Value::Strings{"node 0: c1 (root, since 2h)"}},
                   {"position", 1U},
                   {"estimate", "when c1 ends"}}};
    out.squatters = {{{"lease", "c1"}, {"pid", 9U}, {"command", "stress"}, {"percent", 95U}, {"cpus", "1"}}};
    out.nodes[0] = {.total = 64 * model::kGiB, .free = 3 * model::kGiB};
    out.memory["c1"] = {{0, 2 * model::kGiB}, {1, 10}};
    return out;
}

TEST(Top, ShowsNodesLeasesWhoWaitsAndWhoIsThereWithoutALease) {
    auto before = sight(1 * kSecond, 10 * kSecond);
    auto now = sight(3 * kSecond, 13 * kSecond);
    for (unsigned cpu = 0; cpu < 4; ++cpu) {
        before.cpus[cpu] = {.busy = 100, .total = 200};
        now.cpus[cpu] = {.busy = 100 + (cpu < 2 ? 100U : 0U), .total = 300};
    }
    EXPECT_THAT(top_lines(before, now, kColumns),
                testing::ElementsAre("numa-lease  14:03:12  1 active, 1 waiting  numa-leased 0.1.0", "",
                                     "NODE  CORES  LEASED  CPU  MEMORY  FREE", "0     2      1       50%  64G     3G",
                                     "", "LEASE  USER  STATE   NODES  CORES  BUSY  LEFT  MEMORY  COMMAND",
                                     "c1     root  active  0      2      75%   -     0:2G    llama-server -m m.gguf",
                                     "", "WAITING", "1. c2 root, since 1min: cores=2  train",
                                     "   node 0: c1 (root, since 2h)", "   when c1 ends", "", "WITHOUT A LEASE",
                                     "stress (pid 9, root) without a lease on CPUs 1 of c1: 95% of a CPU"));
}

TEST(Top, StaysInItsColumnsWhateverPeopleCallThings) {
    auto now = sight(3 * kSecond, 13 * kSecond);
    std::string wide;
    for (int i = 0; i < 100; ++i) wide += "要\x1b[2J";
    for (auto& it : now.leases) {
        it["id"] = wide;
        it["request"] = Dict{{"command", wide}, {"class", wide}, {"node", wide}};
        it["in_the_way"] = Value::Strings{wide};
        it["estimate"] = wide;
    }
    now.leases[0]["placement"] = Dict{{"nodes", "0,2,4,6,8,10,12,14,16,18,20"}, {"cores", ~std::uint64_t{0}}};
    now.leases[0]["left_usec"] = ~std::uint64_t{0};
    now.squatters[0]["command"] = wide;
    now.status["version"] = wide;
    for (unsigned node = 0; node < 20; ++node) now.memory[wide][node] = 999 * model::kGiB;
    for (const std::size_t width : {20U, 80U, 132U})
        for (const auto& line : top_lines(now, now, width)) {
            EXPECT_LE(characters(line), width) << line;
            EXPECT_EQ(line.find('\x1b'), std::string::npos);
        }
    now.amiss = wide;
    for (const auto& line : top_lines(now, now, kColumns)) EXPECT_LE(characters(line), kColumns);
}

TEST(Top, HasNoRateOfWhatItHasSeenOnce) {
    const auto now = sight(3 * kSecond, 13 * kSecond);
    EXPECT_EQ(busy_between(now.leases[0], now.leases[0]), std::nullopt);
    EXPECT_EQ(busy_between({}, now.leases[0]), std::nullopt);
    Sight before;
    EXPECT_THAT(top_lines(before, now, kColumns), Contains(HasSubstr("c1     root  active  0      2      -")));
    EXPECT_FALSE(get_dicts(top_dict(before, now), "leases")[0].contains("busy_now_permille"));
}

TEST(Top, IsTheSameForPrograms) {
    const auto dict = top_dict(sight(1 * kSecond, 10 * kSecond), sight(3 * kSecond, 13 * kSecond));
    const auto it = get_dicts(dict, "leases").at(0);
    EXPECT_EQ(get_number(it, "busy_now_permille"), 750U);
    EXPECT_EQ(get_number(get_dict(it, "memory"), "0"), 2 * model::kGiB);
    EXPECT_EQ(get_number(get_dicts(dict, "nodes").at(0), "leased"), 1U);
}

TEST(Top, ReadsTheKernelsCounters) {
    const auto cpus =
        parse_cpu_times("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 100 100\ncpu12 1\ncpux 1\nintr 5\n");
    EXPECT_EQ(cpus, (std::map<unsigned, CpuTime>{{0, {.busy = 27, .total = 72}}, {12, {.busy = 1, .total = 1}}}));
    EXPECT_TRUE(parse_cpu_times("").empty());
    EXPECT_EQ(parse_node_memory("Node 0 MemTotal:       64 kB\nNode 0 MemFree: 3 kB\n"),
              (NodeMemory{.total = 64 * model::kKiB, .free = 3 * model::kKiB}));
}

}  // namespace
}  // namespace numalease::client
