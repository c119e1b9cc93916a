#include "service/options.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace numalease::service {
namespace {

using model::Errc;

model::Result<Options> parse(std::vector<std::string> words) {
    words.insert(words.begin(), "numa-leased");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    return parse_options(static_cast<int>(words.size()), argv.data());
}

TEST(Options, DefaultsServeTheSystemBusAndTheSocketInTheRuntimeDirectory) {
    const auto options = parse({});
    ASSERT_TRUE(options) << options.error().detail;
    EXPECT_EQ(options->runtime_directory, "/run/numa-lease");
    EXPECT_EQ(options->socket, "/run/numa-lease/socket");
    EXPECT_EQ(options->bus, "system");
    EXPECT_TRUE(options->bus_is_optional);
    EXPECT_FALSE(options->exit_when_idle || options->restore || options->read_only);
}

TEST(Options, ATypedBusIsNotOptional) {
    const auto options = parse({"--bus", "system"});
    ASSERT_TRUE(options);
    EXPECT_FALSE(options->bus_is_optional);
}

TEST(Options, TheSocketFollowsTheRuntimeDirectoryUnlessTyped) {
    EXPECT_EQ(parse({"--runtime-dir=/tmp/x"})->socket, "/tmp/x/socket");
    EXPECT_EQ(parse({"--socket", "/tmp/s", "--runtime-dir", "/tmp/x"})->socket, "/tmp/s");
}

TEST(Options, WhatDriversSayIsBelowTheRootUnlessTyped) {
    EXPECT_EQ(parse({})->gpu_root, "/");
    EXPECT_EQ(parse({"--root", "/fake"})->gpu_root, "/fake");
    EXPECT_EQ(parse({"--gpu-root=/fixture", "--root", "/fake"})->gpu_root, "/fixture");
}

TEST(Options, AllOfThemAtOnce) {
    const auto options = parse({"--root", "/fake", "--bus=none", "--config", "c.yaml", "--exit-when-idle", "--restore",
                                "--ready-fd", "7", "--log-level", "debug"});
    ASSERT_TRUE(options) << options.error().detail;
    EXPECT_EQ(options->root, "/fake");
    EXPECT_EQ(options->bus, "none");
    EXPECT_EQ(options->config, "c.yaml");
    EXPECT_TRUE(options->exit_when_idle && options->restore);
    EXPECT_EQ(options->ready_fd, 7);
    EXPECT_EQ(options->log_level, log::Level::debug);
}

TEST(Options, AServiceKeepsItsLeasesAndRestoresWhenItIsStopped) {
    EXPECT_TRUE(parse({"--bus", "system", "--keep-leases"})->keep_leases);
    EXPECT_EQ(parse({"--restore", "--if-stopping", "numa-leased.service"})->if_stopping, "numa-leased.service");
}

TEST(Options, AConfigurationIsCheckedByItself) {
    const auto options = parse({"--check", "--config", "c.yaml"});
    ASSERT_TRUE(options) << options.error().detail;
    EXPECT_TRUE(options->check);
    EXPECT_EQ(options->config, "c.yaml");
    EXPECT_FALSE(parse({})->check);
}

TEST(Options, WhatIsWrongIsNamed) {
    const struct {
        std::vector<std::string> words;
        std::string named;
    } cases[] = {
        {{"--frobnicate"}, "--frobnicate"},
        {{"--runtime-dir"}, "--runtime-dir"},
        {{"--runtime-dir", ""}, "--runtime-dir"},
        {{"--serve-fd", "-1"}, "--serve-fd"},
        {{"--serve-fd", "99999999999999999999"}, "--serve-fd"},
        {{"--serve-fd", "3"}, "--read-only"},
        {{"--restore", "--read-only"}, "--restore"},
        {{"--if-stopping", "x.service"}, "--restore"},
        {{"--keep-leases", "--restore"}, "--keep-leases"},
        {{"--keep-leases", "--exit-when-idle"}, "--keep-leases"},
        {{"--log-level", "loud"}, "loud"},
        {{"--bus", ""}, "--bus"},
        {{"start"}, "start"},
    };
    for (const auto& it : cases) {
        const auto options = parse(it.words);
        ASSERT_FALSE(options) << it.named;
        EXPECT_EQ(options.error().code, Errc::invalid_request);
        EXPECT_NE(options.error().detail.find(it.named), std::string::npos) << options.error().detail;
    }
}

TEST(Options, WhatOutlivesABootIsWhereItIsSaidOrBesideTheJournalOfATest) {
    EXPECT_EQ(state_directory_of(*parse({"--runtime-dir", "/run/elsewhere"})), "/run/elsewhere");
    EXPECT_EQ(state_directory_of(*parse({"--runtime-dir", "/run/elsewhere", "--state-dir", "/proc/none"})),
              "/proc/none");
}

}  // namespace
}  // namespace numalease::service
