#include "launch/page_cache.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace numalease::client {
namespace {

using model::kGiB;
using model::kMiB;
using model::NodeSet;
using model::Residency;
using ::testing::HasSubstr;

ModelCache cache(std::map<unsigned, model::Bytes> nodes, std::vector<model::Mapper> mapped_by = {}) {
    Residency found{.size = 4 * kGiB, .resident = 0, .sampled = true, .nodes = std::move(nodes), .mapped_by = {}};
    for (const auto& [node, bytes] : found.nodes) found.resident += bytes;
    found.mapped_by = std::move(mapped_by);
    return {.name = "m.gguf", .found = found, .problem = {}};
}

CacheCase on_node_1(ModelCache it) {
    return {.cache = std::move(it), .nodes = NodeSet{1}, .first_touch = false, .maps = true, .other_lease = {}};
}

TEST(ModelCache, LeavesTheProcessAndComesBackAsItIs) {
    const auto found = cache({{0, kGiB}, {8, kMiB}}, {{7, "llama-server"}}).found;
    EXPECT_EQ(model::residency_from_dict(to_dict(found)), found);
    const auto line = model::flatten(to_dict(found));  // as the daemon's child says it
    EXPECT_EQ(model::residency_from_dict(*model::unflatten(line)), found);
}

TEST(CacheCase, SaysWhatAnEvictionCameTo) {
    const auto before = on_node_1(cache({{0, 3 * kGiB}}));
    EXPECT_EQ(before.evicted_text(cache({})),
              "page cache: m.gguf had 3G on node 0 and 0 on node 1; evicted 3G, which is read again");
    EXPECT_EQ(before.evicted_text(cache({{0, 12 * kMiB}}, {{123, "llama-server"}, {7, "cat"}})),
              "page cache: m.gguf had 3G on node 0 and 0 on node 1; evicted 2.9G, which is read again; 12M stays, "
              "mapped by llama-server (PID 123) and cat (PID 7)");
    EXPECT_EQ(before.evicted_text(cache({{0, 3 * kGiB}})),
              "page cache: m.gguf had 3G on node 0 and 0 on node 1; evicted 0; 3G stays, in use, or in memory only, or "
              "not on the disk yet");
    EXPECT_EQ(on_node_1(cache({})).evicted_text(cache({})), "page cache: m.gguf had nothing");
    auto unknown = cache({});
    unknown.problem = "no daemon";
    EXPECT_EQ(before.evicted_text(unknown),
              "page cache: m.gguf evicted; how much of it was cached is not known: no daemon");
}

TEST(CacheCase, NotesWhatIsCachedOutsideTheLease) {
    EXPECT_EQ(on_node_1(cache({{0, 2 * kGiB}, {1, kGiB}, {2, kGiB / 4}})).note(),
              "56 % of m.gguf is cached on nodes 0 and 2, outside the lease: --page-cache evict moves it");
    EXPECT_THAT(on_node_1(cache({{0, 2 * kGiB}}, {{123, "x\x1b[2J"}})).note(),
                HasSubstr("mapped by x\\x1b[2J (PID 123)"));
}

TEST(CacheCase, APolicyEvictsOnlyWhatIsElsewhereMappedByNobodyAndInNoOtherLease) {
    auto facts = on_node_1(cache({{0, kGiB}, {1, kGiB}}));
    EXPECT_EQ(facts.reason_to_keep(), "");
    facts.other_lease = "c7";
    EXPECT_THAT(facts.reason_to_keep(), HasSubstr("c7 uses it"));
    facts.cache.found.mapped_by = {{123, "llama-server"}};
    EXPECT_EQ(facts.reason_to_keep(), "mapped by llama-server (PID 123)");
    facts.maps = false;
    EXPECT_THAT(facts.reason_to_keep(), HasSubstr("engine is not known to map it"));
    facts.cache.found.nodes = {{0, 400 * kMiB}, {1, 3 * kGiB}};
    EXPECT_THAT(facts.reason_to_keep(), HasSubstr("no more than a tenth"));
    facts.cache.problem = "denied";
    EXPECT_THAT(facts.reason_to_keep(), HasSubstr("not known: denied"));
}

TEST(CacheCase, UnderFirstTouchEveryCachedPageIsInTheWrongPlace) {
    auto facts = on_node_1(cache({{0, kGiB}, {1, kGiB}}));
    facts.nodes = NodeSet{0, 1};
    EXPECT_FALSE(facts.matters());
    facts.first_touch = true;
    EXPECT_TRUE(facts.matters());
}

TEST(EvictFile, NamesAFileThatCannotBeRead) {
    const auto gone = evict_file("/nowhere/m.gguf");
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, model::Errc::unreadable);
    EXPECT_THAT(gone.error().detail, HasSubstr("/nowhere/m.gguf"));
}

// ── The engine's words ───────────────────────────────────────────────────────────────────────────────────────────

TEST(MapsModel, ByTheEnginesOwnDefaultTheWordsAndTheVariables) {
    policies::Library library;
    model::Engine llama{.name = "llama.cpp", .programs = {"llama-cli"}};
    llama.options["load/mode"] = {.flags = {"-lm", "--load-mode"}, .env = "LLAMA_ARG_LOAD_MODE"};
    llama.options["load/mmap"] = {.flags = {"--mmap", "--no-mmap", "--mlock", "-dio", "--direct-io", "-ndio"},
                                  .env = "LLAMA_ARG_MMAP"};
    llama.options["load/no-mmap"] = {.env = "LLAMA_ARG_NO_MMAP"};
    llama.options["load/direct-io"] = {.env = "LLAMA_ARG_DIO"};
    model::Engine kobold{.name = "koboldcpp", .programs = {"koboldcpp"}};
    kobold.options["load/mmap"] = {.flags = {"--usemmap", "--mlock"}};
    library.engines = {{"llama.cpp", llama}, {"koboldcpp", kobold}, {"generic", {.name = "generic"}}};
    const auto maps = [&](Argv argv, const Env& env = {}, const model::Policy* policy = nullptr) {
        return maps_model(library, policy, argv, env);
    };
    EXPECT_TRUE(maps({"llama-cli", "-m", "m"}));
    EXPECT_TRUE(maps({"llama-cli", "--mlock", "-ndio"}));
    EXPECT_FALSE(maps({"llama-cli", "--no-mmap"}));
    EXPECT_FALSE(maps({"llama-cli", "-dio"}));
    EXPECT_FALSE(maps({"llama-cli", "-lm", "none"}));
    EXPECT_TRUE(maps({"llama-cli", "-lm", "mmap+mlock"}));
    EXPECT_FALSE(maps({"llama-cli"}, {{"LLAMA_ARG_MMAP", "0"}}));
    EXPECT_TRUE(maps({"llama-cli"}, {{"LLAMA_ARG_DIO", "0"}}));
    EXPECT_FALSE(maps({"env", "LLAMA_ARG_NO_MMAP=1", "llama-cli"}));
    const model::Policy policy{.name = "p", .env = {{"LLAMA_ARG_NO_MMAP", "1"}}};
    EXPECT_FALSE(maps({"llama-cli"}, {}, &policy));
    EXPECT_FALSE(maps({"koboldcpp"}));
    EXPECT_TRUE(maps({"koboldcpp", "--usemmap"}));
    EXPECT_FALSE(maps({"cat"}));
    EXPECT_FALSE(maps({}));
}

}  // namespace
}  // namespace numalease::client
