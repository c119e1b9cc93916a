#include "service/limits.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace numalease::service {
namespace {

using model::Limits;
using std::chrono::hours;

using Names = std::set<std::string>;

/// Of uid 1001, "ann", in these groups.
Limits of_ann(const std::string& config, const Names& groups = {}, unsigned uid = 1001) {
    const auto parsed = policies::parse_site_config(config, "s");
    if (!parsed) ADD_FAILURE() << parsed.error().detail;
    return limits_of(parsed.value_or(policies::SiteConfig{}), uid,
                     {.name = [&] { return std::string(uid == 0 ? "root" : "ann"); },
                      .is_in = [&](const std::string& group) { return groups.contains(group); }});
}

/// What everybody but root has where nothing else is said.
Limits defaults(Limits but = {}) {
    model::fill(but, policies::SiteConfig{}.limits);
    return but;
}

TEST(LimitsOf, AStrangerAreThoseOfEverybody) {
    EXPECT_EQ(of_ann(""), policies::SiteConfig{}.limits);
    EXPECT_EQ(of_ann("limits: {cores: 8}\nusers: {bob: {cores: 32}}\ngroups: {lab: {cores: 16}}\n"),
              defaults({.cores = 8}));
}

TEST(LimitsOf, AUserAreFirstTheOwnThenTheGroupsThenEverybodys) {
    const std::string config =
        "limits: {cores: 8, nodes: 1, queued: 3, time: 1h}\n"
        "groups: {lab: {cores: 16, nodes: 2, weight: 2}}\n"
        "users: {ann: {cores: 4, gpus: 1}}\n";
    EXPECT_EQ(of_ann(config, {"lab"}),
              defaults({.weight = 2, .cores = 4, .nodes = 2, .gpus = 1, .queued = 3, .time = hours(1)}));
    EXPECT_EQ(of_ann(config), defaults({.cores = 4, .nodes = 1, .gpus = 1, .queued = 3, .time = hours(1)}));
}

TEST(LimitsOf, SeveralGroupsAreTheMostGenerousFieldByField) {
    const std::string config =
        "groups:\n"
        "  lab: {cores: 16, memory: 1G, weight: 2, classes: [batch], levers: [thp]}\n"
        "  gpu: {cores: 8, memory: 2G, weight: 5, classes: [service], time: 2h}\n"
        "  out: {cores: 512}\n";
    EXPECT_EQ(of_ann(config, {"lab", "gpu"}), defaults({.weight = 5,
                                                        .cores = 16,
                                                        .memory = 2 * model::kGiB,
                                                        .time = hours(2),
                                                        .classes = Names{"batch", "service"},
                                                        .levers = Names{"thp"}}));
}

TEST(LimitsOf, AnEmptyListAllowsNothing) {
    EXPECT_EQ(of_ann("groups: {lab: {levers: [thp]}}\nusers: {ann: {levers: []}}\n", {"lab"}),
              defaults({.levers = Names{}}));
}

TEST(LimitsOf, RootHasNoneButItsOwn) {
    const std::string config = "limits: {cores: 8}\ngroups: {root: {nodes: 1}}\n";
    EXPECT_EQ(of_ann(config, {"root"}, 0), Limits{});
    EXPECT_EQ(of_ann(config + "users: {root: {cores: 2}}\n", {"root"}, 0), Limits{.cores = 2});
    EXPECT_EQ(of_ann("", {}, 0), Limits{});
}

TEST(LimitsOf, ATimeThatNeverPassesLiftsTheBound) {
    const std::string config = "limits: {time: 1h}\ngroups: {lab: {time: never}, old: {time: 2h}}\n";
    EXPECT_EQ(of_ann(config, {"old"}).time, hours(2));
    EXPECT_EQ(of_ann(config, {"lab", "old"}).time, std::nullopt);
    EXPECT_EQ(of_ann(config + "users: {ann: {time: 3h}}\n", {"lab"}).time, hours(3));
}

TEST(LimitsOf, AnAccountMayBeSaidByItsNumber) {
    EXPECT_EQ(of_ann("users: {1001: {cores: 2}}\n").cores, 2U);
    EXPECT_EQ(of_ann("users: {1001: {cores: 2}, ann: {cores: 3}}\n").cores, 3U);
}

TEST(LimitsOf, NoDatabaseIsAskedWhereNoAccountIsNamed) {
    const AccountFacts nobody_asks{.name = []() -> std::string { throw std::logic_error("asked"); },
                                   .is_in = [](const std::string&) -> bool { throw std::logic_error("asked"); }};
    EXPECT_EQ(limits_of({}, 1001, nobody_asks), policies::SiteConfig{}.limits);
}

TEST(LimitTable, GoesByTheConfigurationOnceItIsToldToForget) {
    Site site;
    Accounts accounts;
    LimitTable table(site, accounts);
    EXPECT_EQ(table.of(4'000'000'000U).cores, std::nullopt);
    site.config.users["4000000000"] = {.cores = 3};  // an account that nobody knows
    EXPECT_EQ(table.of(4'000'000'000U).cores, std::nullopt);
    table.forget();
    EXPECT_EQ(table.of(4'000'000'000U).cores, 3U);
}

class SiteFile : public testing::Test {
protected:
    SiteFile() {
        std::string name = (std::filesystem::temp_directory_path() / "site-XXXXXX").string();
        directory_ = ::mkdtemp(name.data());
    }
    ~SiteFile() override { std::filesystem::remove_all(directory_); }

    void load(const std::string& text) {
        std::ofstream(file()) << text;
        load_config(site_, file());
    }
    std::string file() { return (directory_ / "numa-lease.yaml").string(); }

    Site site_;
    std::filesystem::path directory_;
};

TEST_F(SiteFile, WrongAtTheStartLeavesTheDefaultsAndSaysSo) {
    load("group: llm\nlimits: {leases: x}\n");
    EXPECT_EQ(site_.config.group, "numa-lease");
    EXPECT_EQ(site_.config_file, "");
    EXPECT_EQ(site_.config_problem,
              file() + ":2:18: leases: 'x' is not a number up to 65536; the defaults are in force");
    EXPECT_EQ(check_config(file()), 66);
}

TEST_F(SiteFile, WrongLaterLeavesTheFormerInForce) {
    load("group: llm\nlimits: {leases: 3}\n");
    EXPECT_EQ(site_.config_file, file());
    EXPECT_EQ(site_.config_problem, "");
    load("group: gpu\nlimits: {leases: 4\n");
    EXPECT_EQ(site_.config.group, "llm");
    EXPECT_EQ(site_.config.limits.leases, 3U);
    EXPECT_EQ(site_.config_file, file());
    EXPECT_TRUE(site_.config_problem.starts_with(file() + ":3:1: ")) << site_.config_problem;
    EXPECT_TRUE(site_.config_problem.ends_with("; the former stays in force")) << site_.config_problem;
    load("limits: {leases: 5}\n");
    EXPECT_EQ(site_.config.limits.leases, 5U);
    EXPECT_EQ(site_.config.group, "numa-lease");
    EXPECT_EQ(site_.config_problem, "");
}

TEST_F(SiteFile, NoneAnyMoreIsTheDefaultsAgain) {
    load("limits: {leases: 3}\n");
    std::filesystem::remove(file());
    load_config(site_, file());
    EXPECT_EQ(site_.config.limits, policies::SiteConfig{}.limits);
    EXPECT_EQ(site_.config_file, "");
    EXPECT_EQ(site_.config_problem, "");
    EXPECT_EQ(check_config(file()), 0);
}

}  // namespace
}  // namespace numalease::service
