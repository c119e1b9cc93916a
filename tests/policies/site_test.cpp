#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "policies/loader.hpp"
#include "policies/yaml.hpp"

namespace numalease::policies {
namespace {

using model::Limits;
using std::chrono::hours;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

using Names = std::set<std::string>;

SiteConfig accepted(const std::string& text) {
    const auto config = parse_site_config(text, "s");
    if (!config) ADD_FAILURE() << config.error().detail;
    return config.value_or(SiteConfig{});
}

std::string refusal(const std::string& text) {
    const auto config = parse_site_config(text, "s");
    if (config) return "accepted";
    EXPECT_EQ(config.error().code, model::Errc::unreadable);
    return config.error().detail;
}

TEST(SiteConfig, ReadsEveryKeyAndKeepsDefaultsForTheRest) {
    const auto config = accepted("defaults:\n  wait: 5min\ngroup: llm\nreserve: 1G\n");
    EXPECT_THAT(config.defaults, ElementsAre(Pair("wait", "5min")));
    EXPECT_EQ(config.group, "llm");
    EXPECT_EQ(config.reserve, model::kGiB);
    EXPECT_FALSE(config.overcommit);
    EXPECT_TRUE(accepted("overcommit: warn\n").overcommit);
    EXPECT_FALSE(accepted("overcommit: refuse\n").overcommit);
    EXPECT_EQ(config.scheduling, model::Scheduling{});
    EXPECT_EQ(config.limits, SiteConfig{}.limits);
}

TEST(SiteConfig, AFileOfCommentsSaysNothing) {
    EXPECT_EQ(accepted("# group: llm\n\n   # reserve: 1G\n").group, "numa-lease");
    EXPECT_EQ(accepted("").limits, SiteConfig{}.limits);
    EXPECT_NE(refusal("# c\n- 1\n"), "accepted");
}

TEST(SiteConfig, WithoutAFileNobodyButRootGoesBeforeAllOthers) {
    EXPECT_EQ(SiteConfig{}.limits,
              (Limits{.weight = 1, .leases = 256, .queued = 64, .classes = Names{"batch", "normal"}}));
    EXPECT_THAT(SiteConfig{}.users, IsEmpty());
    EXPECT_THAT(SiteConfig{}.groups, IsEmpty());
}

TEST(SiteConfig, TheShippedFileHasTheDefaultsInItsComments) {
    std::ifstream shipped(std::filesystem::path(NUMALEASE_SHIPPED) / "../packaging/numa-lease.yaml");
    std::string text;
    for (std::string line; std::getline(shipped, line);)
        if (line.size() > 1 && (std::islower(static_cast<unsigned char>(line[1])) != 0 || line.starts_with("#  ")))
            text += line.substr(1) + '\n';
    const auto config = accepted(text);
    const SiteConfig defaults;
    EXPECT_EQ(config.group, defaults.group);
    EXPECT_EQ(config.reserve, defaults.reserve);
    EXPECT_EQ(config.scheduling, defaults.scheduling);
    EXPECT_EQ(config.limits, defaults.limits);
    EXPECT_EQ(config.users.size() + config.groups.size(), 2U);
}

TEST(SiteConfig, ReadsHowTheQueueIsServed) {
    const auto config = accepted("scheduling: {half-life: 1w, aging: 30min}\n");
    EXPECT_EQ(config.scheduling.half_life, hours(7 * 24));
    EXPECT_EQ(config.scheduling.aging, std::chrono::minutes(30));
    EXPECT_EQ(config.scheduling.classes, model::Scheduling{}.classes);
    const auto never = accepted("scheduling: {half-life: never, aging: never}\n").scheduling;
    EXPECT_EQ(never.half_life, model::kNever);
    EXPECT_EQ(never.aging, model::kNever);
    EXPECT_EQ(accepted("scheduling: {aging: 0}\n").scheduling.aging, model::Micros(0));  // by age alone
}

TEST(SiteConfig, MergesClassesByNameOverTheBuiltInOnes) {
    const auto classes = accepted("classes:\n  batch: {time: 12h}\n  gold: {priority: 15}\n  service: {time: never}\n")
                             .scheduling.classes;
    EXPECT_EQ(classes.size(), 4U);
    EXPECT_EQ(classes.at("batch"), (model::JobClass{.priority = 0, .time = hours(12)}));
    EXPECT_EQ(classes.at("normal"), (model::JobClass{.priority = 10, .time = {}}));
    EXPECT_EQ(classes.at("gold"), (model::JobClass{.priority = 15, .time = {}}));
    EXPECT_EQ(classes.at("service"), (model::JobClass{.priority = 20, .time = {}}));
}

constexpr const char* kEveryLimit =
    "{weight: 2, cores: 16, nodes: 1, gpus: 0, memory: 64G, hugepages: 8G, leases: 4, queued: 0, time: 8h,"
    " classes: [batch, gold], policies: [auto, ''], levers: [thp, hugepages]}";

TEST(SiteConfig, ReadsEveryLimitOfEverybodyAGroupAndAUser) {
    const Limits all{.weight = 2,
                     .cores = 16,
                     .nodes = 1,
                     .gpus = 0,
                     .memory = 64 * model::kGiB,
                     .hugepages = 8 * model::kGiB,
                     .leases = 4,
                     .queued = 0,
                     .time = hours(8),
                     .classes = Names{"batch", "gold"},
                     .policies = Names{"", "auto"},
                     .levers = Names{"hugepages", "thp"}};
    const std::string every(kEveryLimit);
    const auto config = accepted("limits: " + every + "\ngroups: {lab: " + every + "}\nusers: {ann: " + every +
                                 "}\nclasses: {gold: {}}\n");  // said last, and known
    EXPECT_EQ(config.limits, all);
    EXPECT_THAT(config.groups, ElementsAre(Pair("lab", all)));
    EXPECT_THAT(config.users, ElementsAre(Pair("ann", all)));
}

TEST(SiteConfig, WhatLimitsDoesNotSayIsTheDefaultAndWhatAUserDoesNotSayIsNothing) {
    const auto config = accepted("limits: {cores: 8, queued: 1}\nusers: {ann: {time: never}, 'CORP\\bob smith': {}}\n");
    EXPECT_EQ(config.limits,
              (Limits{.weight = 1, .cores = 8, .leases = 256, .queued = 1, .classes = Names{"batch", "normal"}}));
    EXPECT_THAT(config.users, ElementsAre(Pair("CORP\\bob smith", Limits{.weight = 0}),
                                          Pair("ann", Limits{.weight = 0, .time = model::kNever})));
}

TEST(SiteConfig, NamesWhatIsWrongAndWhere) {
    const std::pair<std::string, const char*> cases[] = {
        {"overcommit: maybe\n", "s:1:13: overcommit: must be one of refuse, warn"},
        {"reserve: 1X\n", "s:1:10: reserve: '1X' is not a size like 8G or 512M"},
        {"quota: 1\n",
         "s:1:1: unknown key 'quota'; allowed: defaults, group, reserve, overcommit, scheduling, classes, limits, "
         "users, groups"},
        {"max-leases-per-user: 3\n", "s:1:1: unknown key 'max-leases-per-user'; allowed: "},
        {"max-queued-per-user: 3\n", "s:1:1: unknown key 'max-queued-per-user'; allowed: "},
        {"limits:\n  leases: -1\n", "s:2:11: leases: '-1' is not a number up to 65536"},
        {"limits: {leases: 99999999999999999999}\n", "s:1:18: leases: '99999999999999999999' is not a number up to"},
        {"limits: {cores: 1.5}\n", "s:1:17: cores: '1.5' is not a number"},
        {"limits: {cores: }\n", "s:1:10: cores: must be text"},
        {"limits: {cores: [1]}\n", "s:1:17: cores: must be text"},
        {"limits: {memory: -1G}\n", "s:1:18: memory: '-1G' is not a size"},
        {"limits: {hugepages: 16777216T}\n", "s:1:21: hugepages: '16777216T' is not a size"},
        {"limits: {time: 0s}\n", "s:1:16: time: must be longer than nothing"},
        {"limits: {time: 300000000000w}\n", "s:1:16: time: '300000000000w' is not a time"},
        {"limits: {weight: 0}\n", "s:1:18: weight: must be at least 1"},
        {"limits: {weight: 10001}\n", "s:1:18: weight: '10001' is not a number up to 10000"},
        {"limits: {cpus: 1}\n",
         "s:1:10: unknown key 'cpus'; allowed: weight, cores, nodes, gpus, memory, hugepages, "
         "leases, queued, time, classes, policies, levers"},
        {"limits: [1]\n", "s:1:9: limits: must be a map of keys"},
        {"limits:\n", "s:1:1: limits: must be a map of keys"},
        {"limits: {cores: 1, cores: 2}\n", "the key 'cores' is there twice"},
        {"limits: {classes: batch}\n", "s:1:19: classes: must be a list, like [a, b]"},
        {"limits: {classes: {batch: normal}}\n", "s:1:19: classes: must be a list, like [a, b]"},
        {"limits: {classes: [batch, [normal]]}\n", "s:1:27: must be text"},
        {"limits: {classes: [batch, gold]}\n", "s:1:27: 'gold' is no class; there are: batch, normal, service"},
        {"limits: {classes: [batch, batch]}\n", "s:1:19: classes: 'batch' is there twice"},
        {"limits: {levers: [cores]}\n",
         "s:1:19: 'cores' is no lever; there are: weights, numa-balancing, thp, "
         "thp-defrag, zone-reclaim, hugepages, page-cache, shield"},
        {"limits: {policies: ['../x']}\n", "s:1:21: '../x' is not a name"},
        {"users: {ann: 3}\n", "s:1:14: ann: must be a map of keys"},
        {"users: [ann]\n", "s:1:8: users: must be a map, like {NAME: {cores: 8}}"},
        {"users: {ann: {}, ann: {}}\n", "the key 'ann' is there twice"},
        {"users: {'a:b': {}}\n", "s:1:9: users: 'a:b' is not the name of an account"},
        {"groups: {'': {}}\n", "s:1:10: groups: '' is not the name of an account"},
        {"groups: {lab: {classes: [gold]}}\n", "s:1:26: 'gold' is no class"},
        {"defaults: {class: gold}\n", "s:1:19: 'gold' is no class; there are: batch, normal, service"},
        {"classes: [batch]\n", "s:1:10: classes: must be a map, like {batch: {priority: 0}}"},
        {"classes: {batch: 3}\n", "s:1:18: batch: must be a map of keys"},
        {"classes: {batch: {priority: -1}}\n", "s:1:29: priority: '-1' is not a number up to 1000"},
        {"classes: {batch: {prio: 1}}\n", "s:1:19: unknown key 'prio'; allowed: priority, time"},
        {"classes: {'a b': {}}\n", "s:1:11: 'a b' is not the name of a class"},
        {"scheduling: {half-life: 0}\n", "s:1:25: half-life: must be longer than nothing"},
        {"scheduling: {aging: -1h}\n", "s:1:21: aging: '-1h' is not a time like 90s or 2h"},
        {"scheduling: {aging: [never]}\n", "s:1:21: aging: must be text"},
        {"scheduling: fair\n", "s:1:13: scheduling: must be a map of keys"},
    };
    for (const auto& [text, problem] : cases) EXPECT_THAT(refusal(text), HasSubstr(problem)) << text;
}

TEST(SiteConfig, AHostileFileIsRefusedOnOneLine) {
    std::string many = "users:\n";
    for (std::size_t i = 0; i < kMaxNodes; ++i) many += "  u" + std::to_string(i) + ": {}\n";
    EXPECT_THAT(refusal(many), HasSubstr("more than 10000 values"));
    for (const auto& [key, most] : {std::pair("classes", 64), {"groups", 256}}) {
        std::string map = std::string(key) + ":\n";
        for (int i = 0; i < most; ++i) map += "  n" + std::to_string(i) + ": {}\n";
        EXPECT_EQ(refusal(map), "accepted");
        EXPECT_EQ(refusal(map + "  last: {}\n"), "s:2:3: " + std::string(key) + ": more than " + std::to_string(most));
    }
    EXPECT_THAT(refusal("users: &a {ann: *a}\n"), HasSubstr("not allowed"));
    EXPECT_THAT(refusal("users: {" + std::string(300, 'a') + ": {}}\n"), HasSubstr("is not the name of an account"));
    for (const std::string text : {"users: {\"a\\nb\": {}}\n", "limits: {classes: [\"a\\nb\"]}\n",
                                   "classes: {\"a\\nb\": {}}\n", "limits: {\"a\\nb\": 1}\n"}) {
        EXPECT_NE(refusal(text), "accepted") << text;
    }
}

class SiteFile : public testing::Test {
protected:
    SiteFile() {
        std::string name = (std::filesystem::temp_directory_path() / "site-XXXXXX").string();
        directory_ = ::mkdtemp(name.data());
    }
    ~SiteFile() override { std::filesystem::remove_all(directory_); }
    std::string path(const std::string& name) { return (directory_ / name).string(); }

    std::filesystem::path directory_;
};

TEST_F(SiteFile, MayBeALinkAndNeedNotBeThere) {
    EXPECT_EQ(load_site_config(path("none.yaml")).error().err, ENOENT);
    std::ofstream(path("real.yaml")) << "limits: {leases: 3}\n";
    std::filesystem::create_symlink(path("real.yaml"), path("link.yaml"));
    ASSERT_TRUE(load_site_config(path("link.yaml")));
    EXPECT_EQ(load_site_config(path("link.yaml"))->limits.leases, 3U);
}

TEST_F(SiteFile, NobodyWaitsForAPipeAndAFolderIsNoFile) {
    ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
    EXPECT_THAT(load_site_config(path("pipe")).error().detail, HasSubstr("pipe: not a regular file"));
    EXPECT_THAT(load_site_config(directory_.string()).error().detail, HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace numalease::policies
