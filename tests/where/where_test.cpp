#include "where/where.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace numalease::client {
namespace {

using model::CpuSet;
using model::kGiB;
using model::kMiB;
using model::Mempolicy;
using model::NodeSet;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

Mapping anonymous(PerNode nodes, std::string policy = "default") {
    const auto size = sum_of(nodes);
    return {.start = 0x7f00,
            .policy = std::move(policy),
            .file = {},
            .hugetlb = false,
            .nodes = std::move(nodes),
            .owned = size};
}

Mapping of_file(std::string file, PerNode nodes) {
    return {.start = 0x7f00,
            .policy = "default",
            .file = std::move(file),
            .hugetlb = false,
            .nodes = std::move(nodes),
            .owned = 0};
}

Found found_of(const std::vector<Mapping>& mappings) {
    Found found;
    found.processes = {{1234, "llama-server", kGiB}};
    Tally tally;
    for (const auto& mapping : mappings) tally.add(1234, mapping);
    tally.finish(found);
    return found;
}

/// A lease of nodes 0 and 1 of four.
Bounds leased(NodeSet nodes = {0, 1}) {
    Bounds bounds;
    bounds.lease = "c1";
    bounds.nodes = std::move(nodes);
    bounds.cpus = CpuSet{0, 1, 2, 3};
    bounds.machine = {0, 1, 2, 3};
    return bounds;
}

Bounds interleaved(NodeSet nodes = {0, 1}) {
    auto bounds = leased(nodes);
    bounds.policy = MemoryPolicy{Mempolicy::interleave, nodes};
    return bounds;
}

Judgement fine(std::string text) { return {true, std::move(text)}; }
Judgement amiss(std::string text) { return {false, std::move(text)}; }

// ── adding up ─────────────────────────────────────────────────────────────────────────────────────────────────────

TEST(Tally, SortsByNodeAndKind) {
    auto huge = anonymous({{1, 4 * kMiB}});
    huge.hugetlb = true;
    auto library = of_file("/lib/libc.so.6", {{0, 3 * kMiB}, {2, 9 * kMiB}});
    library.owned = 4 * kMiB;  // a third of it is written to
    const auto found =
        found_of({anonymous({{0, kMiB}}), of_file("/memfd:x (deleted)", {{0, 2 * kMiB}}), huge, library});
    EXPECT_EQ(found.nodes.at(0),
              (NodeUse{.anonymous = 2 * kMiB, .shared = 2 * kMiB, .file = 2 * kMiB, .large = 2 * kMiB}));
    EXPECT_EQ(found.nodes.at(1), (NodeUse{.hugetlb = 4 * kMiB, .large = 4 * kMiB}));
    EXPECT_EQ(found.nodes.at(2), (NodeUse{.anonymous = 3 * kMiB, .file = 6 * kMiB}));
    EXPECT_EQ(found.all().total(), 19 * kMiB);
}

TEST(Tally, NamesWhatIsKvSizedLargestFirst) {
    const auto found = found_of({anonymous({{0, 63 * kMiB}}), anonymous({{0, 64 * kMiB}}), anonymous({{1, 8 * kGiB}})});
    EXPECT_EQ(found.kv_size, 64 * kMiB);
    EXPECT_THAT(found.mappings, ElementsAre(Field(&Large::size, 8 * kGiB), Field(&Large::size, 64 * kMiB)));
    EXPECT_EQ(found.nodes.at(0).large, 64 * kMiB);
}

TEST(Tally, OfASmallProcessNamesWhatIsASixteenth) {
    const auto found =
        found_of({anonymous({{0, 10 * kMiB}}), anonymous({{0, 3 * kMiB}}), anonymous({{0, 147 * kMiB}})});
    EXPECT_EQ(found.kv_size, 10 * kMiB);
    EXPECT_THAT(found.mappings, SizeIs(2));
}

TEST(Tally, AddsUpTheMappingsOfAFile) {
    const auto found = found_of({of_file("/m.gguf", {{0, kGiB}}), of_file("/m.gguf", {{0, kGiB}, {3, kGiB}})});
    ASSERT_THAT(found.files, SizeIs(1));
    EXPECT_EQ(found.files[0].nodes, (PerNode{{0, 2 * kGiB}, {3, kGiB}}));
    EXPECT_EQ(found.files[0].size, 3 * kGiB);
}

TEST(Tally, KeepsTheLargestOfMoreMappingsThanItKeeps) {
    Tally tally;
    constexpr Bytes kCount = 50'000;
    for (Bytes i = 0; i < kCount; ++i) {
        tally.add(1, anonymous({{0, 64 * kMiB + i}}));
        tally.add(1, of_file("/f" + std::to_string(i), {{1, kMiB}}));
    }
    Found found;
    tally.finish(found);
    EXPECT_EQ(found.nodes.at(0).anonymous, kCount * 64 * kMiB + kCount * (kCount - 1) / 2);
    EXPECT_EQ(found.nodes.at(1).file, kCount * kMiB);
    EXPECT_LT(found.mappings.size(), kCount);
    EXPECT_EQ(found.mappings.front().size, 64 * kMiB + kCount - 1);
}

// ── the verdict ───────────────────────────────────────────────────────────────────────────────────────────────────

TEST(Verdict, AllIsAsLeased) {
    EXPECT_THAT(judge(found_of({anonymous({{0, 6 * kGiB}, {1, 2 * kGiB}})}), leased()),
                ElementsAre(fine("all 8G on nodes 0-1, as leased")));
}

TEST(Verdict, SaysHowMuchOfWhatIsOutsideOfTheLease) {
    EXPECT_THAT(
        judge(found_of({anonymous({{0, 9 * kGiB}, {3, kGiB / 2}}), of_file("/m.bin", {{3, kGiB / 2}})}), leased({0})),
        ElementsAre(fine("9G (90 %) is on node 0, as leased"),
                    amiss("1G (10 %) is on node 3, outside of the lease: 512M anonymous, 512M file-mapped"),
                    amiss("/m.bin is file-mapped: 512M, on node 3; 100 % is outside of the lease")));
}

TEST(Verdict, IsNotAlarmedByLibrariesThatWereCachedElsewhere) {
    EXPECT_THAT(judge(found_of({anonymous({{1, 20 * kMiB}}), of_file("/lib/libc.so.6", {{0, 2 * kMiB}})}), leased({1})),
                Each(Field(&Judgement::fine, true)));
    EXPECT_THAT(judge(found_of({anonymous({{1, 20 * kMiB}, {0, 2 * kMiB}})}), leased({1})),
                Contains(amiss("2M (9 %) is on node 0, outside of the lease: 2M anonymous")));
}

TEST(Verdict, FindsAnInterleaveOutOfBalance) {
    EXPECT_THAT(judge(found_of({anonymous({{0, 81 * kMiB}, {1, 19 * kMiB}})}), interleaved()),
                Contains(amiss("imbalance: node 0 has 81 % of 2 nodes' anonymous memory (interleave wants 50 %)")));
    EXPECT_THAT(judge(found_of({anonymous({{0, 19 * kMiB}, {1, 81 * kMiB}})}), interleaved()),
                Contains(amiss("imbalance: node 1 has 81 % of 2 nodes' anonymous memory (interleave wants 50 %)")));
}

TEST(Verdict, NamesANodeThatAnInterleaveOfManyLeftOut) {
    PerNode nodes{{7, 0}};
    for (unsigned node = 0; node < 7; ++node) nodes[node] = 100 * kMiB;
    auto bounds = interleaved({0, 1, 2, 3, 4, 5, 6, 7});
    bounds.machine = bounds.nodes;
    EXPECT_THAT(judge(found_of({anonymous(nodes)}), bounds),
                Contains(amiss("imbalance: node 7 has 0 % of 8 nodes' anonymous memory (interleave wants 13 %)")));
}

TEST(Verdict, LetsAnInterleaveBeAQuarterOff) {
    EXPECT_THAT(judge(found_of({anonymous({{0, 62 * kMiB}, {1, 38 * kMiB}})}), interleaved()),
                Each(Field(&Judgement::fine, true)));
    EXPECT_THAT(judge(found_of({anonymous({{0, 63 * kMiB}, {1, 37 * kMiB}})}), interleaved()),
                Contains(Field(&Judgement::fine, false)));
}

TEST(Verdict, HoldsAWeightedInterleaveAgainstItsWeights) {
    auto bounds = leased();
    bounds.policy = MemoryPolicy{Mempolicy::weighted, bounds.nodes};
    bounds.weights = {{0, 3}, {1, 1}};
    EXPECT_THAT(judge(found_of({anonymous({{0, 300 * kMiB}, {1, 100 * kMiB}})}), bounds),
                Each(Field(&Judgement::fine, true)));
    EXPECT_THAT(judge(found_of({anonymous({{0, 200 * kMiB}, {1, 200 * kMiB}})}), bounds),
                Contains(amiss("imbalance: node 1 has 50 % of 2 nodes' anonymous memory (interleave wants 25 %)")));
}

TEST(Verdict, TakesThePolicyInForceForTheOneAskedFor) {
    const auto own = found_of({anonymous({{0, 100 * kMiB}}, "bind:0")});
    EXPECT_THAT(judge(own, interleaved()), Not(Contains(Field(&Judgement::text, HasSubstr("imbalance")))));
    auto bounds = leased();
    bounds.lease.clear();  // numactl --interleave=0-1, without us
    const auto by_numactl = found_of({anonymous({{0, 90 * kMiB}, {1, 10 * kMiB}}, "interleave=static:0-1")});
    EXPECT_THAT(judge(by_numactl, bounds), Contains(Field(&Judgement::text, HasSubstr("interleave wants 50 %"))));
}

TEST(Verdict, NamesALeasedNodeThatIsNotUsed) {  // CASES 31: only the first of a list is bound
    EXPECT_THAT(judge(found_of({anonymous({{0, 8 * kGiB}, {1, kMiB}}, "bind:0")}), leased()),
                Contains(amiss("of the leased nodes 0-1, node 1 holds next to nothing")));
    EXPECT_THAT(
        judge(found_of({anonymous({{0, 160 * kMiB}}, "bind:0"), of_file("/lib/libc.so.6", {{1, 3 * kMiB}})}), leased()),
        Contains(amiss("of the leased nodes 0-1, node 1 holds next to nothing")));
    EXPECT_THAT(judge(found_of({anonymous({{0, 8 * kGiB}, {1, kGiB}}, "bind:0-1")}), leased()),
                Each(Field(&Judgement::fine, true)));
}

TEST(Verdict, LeavesToTheDaemonWhatItHasJudged) {
    const auto found =
        found_of({anonymous({{0, 9 * kGiB}, {3, kGiB / 2}}, "interleave:0-1"), of_file("/m.bin", {{3, kGiB / 2}})});
    auto bounds = leased();
    bounds.nodes_are_judged = true;
    EXPECT_THAT(judge(found, bounds),
                ElementsAre(amiss("/m.bin is file-mapped: 512M, on node 3; 100 % is outside of the lease")));
}

TEST(WhereText, SaysHowItWasWhenTheEngineWasReady) {
    const auto found = found_of({anonymous({{0, kGiB}, {1, kGiB}})});
    auto bounds = leased();
    EXPECT_THAT(where_text(found, bounds, 0), Not(HasSubstr("ready")));
    EXPECT_FALSE(to_dict(found, bounds).contains("verified"));
    bounds.verified = {.at = model::Micros(1),
                       .unknown = {},
                       .nodes = {{0, {.anonymous = kGiB, .file = 0, .mapped = 0}}},
                       .inside = kGiB,
                       .imbalance_permille = {},
                       .warnings = {"of its nodes 0-1, node 1 holds next to nothing"}};
    EXPECT_THAT(where_text(found, bounds, 0),
                AllOf(HasSubstr("when it was ready: 1G, 100 % of it on leased nodes (node 0: 1G)"),
                      HasSubstr("amiss then: of its nodes 0-1, node 1 holds next to nothing")));
    EXPECT_EQ(model::verification_from_dict(model::get_dict(to_dict(found, bounds), "verified")), bounds.verified);
}

TEST(Verdict, OfALittleMemorySaysNothingAboutItsBalance) {
    EXPECT_THAT(judge(found_of({anonymous({{0, 60 * kMiB}})}), interleaved()),
                ElementsAre(fine("all 60M on node 0, as leased")));
}

TEST(Verdict, SaysWhereTheMappedModelIs) {  // CASES 16: pages of the last run on the wrong node
    auto bounds = leased({0});
    bounds.model = "models/m.gguf";
    EXPECT_THAT(
        judge(found_of({of_file("/srv/m.gguf", {{0, 42 * kMiB}, {2, 58 * kMiB}})}), bounds),
        Contains(amiss("the model /srv/m.gguf is file-mapped: 100M, 58 % on node 2, 42 % on node 0; 58 % is outside "
                       "of the lease")));
    EXPECT_THAT(judge(found_of({of_file("/srv/m.gguf", {{0, kGiB}})}), bounds),
                Contains(fine("the model /srv/m.gguf is file-mapped: 1G, on node 0")));
}

TEST(Verdict, SaysThatTheModelIsNotMapped) {  // CASES 32: mmap silently off
    auto bounds = leased();
    bounds.model = "/srv/m.gguf";
    EXPECT_THAT(judge(found_of({anonymous({{0, kGiB}, {1, kGiB}})}), bounds),
                Contains(fine("the model /srv/m.gguf is not file-mapped: what was read of it is anonymous memory")));
}

TEST(Verdict, NamesFewOfManyFiles) {
    std::vector<Mapping> parts;
    for (int i = 0; i < 40; ++i)
        parts.push_back(of_file("/m-" + std::to_string(i), {{0, kGiB + static_cast<Bytes>(i)}}));
    const auto got = judge(found_of(parts), leased({0}));
    EXPECT_THAT(got, SizeIs(10));
    EXPECT_EQ(got.back(), fine("32 more files are file-mapped: 32G, on node 0"));
}

TEST(Verdict, CountsThreadsThatMayLeaveTheLease) {  // CASES 24
    auto found = found_of({anonymous({{0, kGiB}})});
    found.threads = 16;
    EXPECT_THAT(judge(found, leased({0})), Contains(fine("all of 16 threads may run on the lease's CPUs 0-3 only")));
    found.threads_astray = 3;
    EXPECT_THAT(judge(found, leased({0})), Contains(amiss("3 of 16 threads may run outside of the lease's CPUs 0-3")));
}

TEST(Verdict, WithoutALeaseComparesWithWhatIsAllowedAndWithItsThreads) {
    auto bounds = leased({0, 1, 2});
    bounds.lease.clear();
    auto found = found_of({anonymous({{0, 2 * kGiB}, {2, 2 * kGiB}})});
    found.nodes[0].threads = found.threads = 4;
    EXPECT_THAT(judge(found, bounds), ElementsAre(fine("all 4G on nodes 0,2, as allowed"),
                                                  amiss("2G (50 %) is on node 2, where none of its threads last ran")));
}

TEST(Verdict, OnOneNodeNothingCanBeElsewhere) {
    auto bounds = interleaved({0});
    bounds.machine = {0};
    EXPECT_THAT(judge(found_of({anonymous({{0, kGiB}}), of_file("/m.gguf", {{0, kGiB}})}), bounds),
                ElementsAre(fine("one node: nothing can be elsewhere"),
                            fine("the model /m.gguf is file-mapped: 1G, on node 0")));
}

TEST(Verdict, TellsWhatIsOnNoNode) {
    auto found = found_of({anonymous({{0, kGiB}})});
    found.swap = kGiB;
    found.not_found = 2 * kMiB;
    EXPECT_THAT(judge(found, leased({0})), AllOf(Contains(amiss("1G is swapped out, on no node")),
                                                 Contains(amiss("2M of huge pages: on which node was not found out"))));
    EXPECT_THAT(judge(found_of({}), leased({0})), ElementsAre(fine("there is no memory of it")));
}

TEST(ShareText, NeverRoundsToNothingOrToAll) {
    EXPECT_EQ(share_text(0, 10), "0 %");
    EXPECT_EQ(share_text(0, 0), "0 %");
    EXPECT_EQ(share_text(1, 1000), "<1 %");
    EXPECT_EQ(share_text(999, 1000), ">99 %");
    EXPECT_EQ(share_text(1000, 1000), "100 %");
    EXPECT_EQ(share_text(~Bytes{0} / 2, ~Bytes{0}), "50 %");
}

// ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────────

Found shown() {
    auto found = found_of({anonymous({{0, 3 * kGiB}, {3, kGiB}}, "prefer:0"), of_file("/m.gguf", {{0, 4 * kGiB}})});
    found.nodes[0].threads = found.threads = 2;
    found.effort.seconds = 0.0405;
    return found;
}

TEST(WhereText, IsATableAndAVerdict) {
    EXPECT_EQ(where_text(shown(), leased(), 0),
              "llama-server (pid 1234) in lease c1: nodes 0-1, CPUs 0-3\n"
              "NODE    LEASED  ANON  SHARED  FILE  HUGETLB  KV-SIZED  TOTAL  SHARE  THREADS\n"
              "0       yes     3G    -       4G    -        3G        7G     88 %   2\n"
              "1       yes     -     -       -     -        -         -      0 %    -\n"
              "3       no      1G    -       -     -        1G        1G     13 %   -\n"
              "inside          3G    -       4G    -        3G        7G     88 %   2\n"
              "all             4G    -       4G    -        4G        8G     100 %  2\n"
              "KV-sized mappings, of 64M and more (neighbours of one policy are one):\n"
              "PID   MAPPING  KIND       SIZE  POLICY    WHERE\n"
              "1234  7f00     anonymous  4G    prefer:0  75 % on node 0, 25 % on node 3\n"
              "ok: 7G (88 %) is on node 0, as leased\n"
              "amiss: 1G (13 %) is on node 3, outside of the lease: 1G anonymous\n"
              "amiss: of the leased nodes 0-1, node 1 holds next to nothing\n"
              "ok: the model /m.gguf is file-mapped: 4G, on node 0\n"
              "ok: all of 2 threads may run on the lease's CPUs 0-3 only\n"
              "every page was looked at: 8G in 40ms\n");
}

TEST(WhereText, SaysThatItWasSampledAndWhatTheCgroupWasCharged) {
    auto found = shown();
    found.effort.sampled = 65536;
    found.charged = {{"anon", {{0, 3 * kGiB}, {3, kGiB}}}, {"anon_thp", {{0, 2 * kGiB}}}, {"shmem", {{0, 0}}}};
    EXPECT_THAT(where_text(found, leased(), 0),
                AllOf(HasSubstr("sampled: 65536 pages in 40ms; sizes by mapping and node are estimates"),
                      HasSubstr("CHARGED TO THE CGROUP   TOTAL  WHERE\n"
                                "anonymous               4G     75 % on node 0, 25 % on node 3\n"
                                "of it transparent huge  2G     on node 0\n")));
}

TEST(WhereText, NeverPrintsEscapesOfOthers) {
    auto found = found_of({of_file("/\x1b[2J.gguf", {{0, kGiB}}), of_file("/memfd:\x1b[31m", {{0, kGiB}})});
    found.processes[0].name = "\x1b]0;";
    found.notes = {"\x1b[1m"};
    EXPECT_THAT(where_text(found, leased(), 0), Not(HasSubstr("\x1b")));
}

TEST(WhereText, ShowsFewOfManyMappings) {
    std::vector<Mapping> many(100, anonymous({{0, 64 * kMiB}}));
    const auto text = where_text(found_of(many), leased({0}), 0);
    EXPECT_THAT(text, HasSubstr("and 84 more, 5.2G together\n"));
    EXPECT_LT(std::ranges::count(text, '\n'), 40);
}

TEST(WhereJson, HasTheNumbersBehindTheText) {
    const auto dict = to_dict(shown(), leased());
    EXPECT_EQ(model::get_text(dict, "lease"), "c1");
    EXPECT_EQ(model::get_number(model::get_dict(dict, "all"), "total"), 8 * kGiB);
    EXPECT_EQ(model::get_number(model::get_dict(dict, "inside"), "total"), 7 * kGiB);
    const auto nodes = model::get_dicts(dict, "nodes");
    ASSERT_THAT(nodes, SizeIs(3));
    EXPECT_EQ(model::get_number(nodes[2], "node"), 3U);
    EXPECT_FALSE(model::get_flag(nodes[2], "inside"));
    EXPECT_EQ(model::get_number(nodes[2], "kv_sized"), kGiB);
    const auto mappings = model::get_dicts(dict, "mappings");
    ASSERT_THAT(mappings, SizeIs(1));
    EXPECT_EQ(model::get_number(model::get_dict(mappings[0], "nodes"), "3"), kGiB);
    EXPECT_EQ(model::get_text(mappings[0], "policy"), "prefer:0");
    EXPECT_THAT(model::get_dicts(dict, "verdict"), SizeIs(5));
    EXPECT_EQ(model::get_number(dict, "sampled", 1), 0U);
}

}  // namespace
}  // namespace numalease::client
