#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "launch/report.hpp"

namespace numalease::client {
namespace {

using model::Dict;
using nlohmann::json;

class Reports : public testing::Test {
protected:
    void SetUp() override {
        directory_ = testing::TempDir() + "/numa-lease-report-" + std::to_string(getpid());
        std::filesystem::create_directories(directory_);
        endpoint_.bus = "none";
        endpoint_.runtime_directory = directory_ + "/run";
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    [[nodiscard]] json read(const std::string& name) const {
        std::ifstream in(directory_ + '/' + name);
        return json::parse(std::string(std::istreambuf_iterator<char>(in), {}), nullptr, false);
    }

    std::string directory_;
    Endpoint endpoint_;
};

TEST_F(Reports, HoldTheGrantAndTheStateBefore) {
    const Report report{.command = "sleep 1",
                        .lease = {{"id", "c1"}},
                        .before = model::Value::Dicts{{{"knob", "numa_balancing"}, {"value", "1"}}},
                        .after = {},
                        .notes = {"a note"},
                        .complete = false};
    const auto out = json::parse(report.text());
    EXPECT_EQ(out["lease"]["id"], "c1");
    EXPECT_EQ(out["before"]["knobs"][0]["value"], "1");
    EXPECT_FALSE(out.contains("after"));
    EXPECT_EQ(out["complete"], false);
    EXPECT_EQ(out["notes"][0], "a note");
}

TEST_F(Reports, AreThereFromTheStart) {
    auto reporter = Reporter::start(directory_ + "/r.json", endpoint_);
    ASSERT_TRUE(reporter) << reporter.error().detail;
    EXPECT_EQ(read("r.json")["complete"], false);
}

TEST_F(Reports, SayWhyThereWasNoLease) {
    auto reporter = Reporter::start(directory_ + "/r.json", endpoint_);
    ASSERT_TRUE(reporter) << reporter.error().detail;
    reporter->before("true", model::Value::Dicts{});
    reporter->refused({model::Errc::not_now, "c3 holds node 0", 0});
    EXPECT_EQ(read("r.json")["complete"], true);
    EXPECT_EQ(read("r.json")["notes"][0], "no lease: c3 holds node 0");
}

TEST_F(Reports, AreRefusedWhereNoFileCanBe) {
    const auto missing = Reporter::start(directory_ + "/no/such/r.json", endpoint_);
    ASSERT_FALSE(missing);
    EXPECT_EQ(model::row_of(missing.error().code).exit_status, 66);
    EXPECT_FALSE(Reporter::start("/dev/null", endpoint_));
}

TEST_F(Reports, ReplaceTheFileAsAWhole) {
    ASSERT_TRUE(write_atomically(directory_ + "/r.json", "{\"old\": 1}\n"));
    ASSERT_TRUE(write_atomically(directory_ + "/r.json", "{}\n"));
    EXPECT_EQ(read("r.json"), json::object());
    const auto files = std::distance(std::filesystem::directory_iterator(directory_), {});
    EXPECT_EQ(files, 1) << "a temporary file was left";
}

}  // namespace
}  // namespace numalease::client
