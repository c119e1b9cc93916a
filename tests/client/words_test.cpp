#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "client/words.hpp"
#include "launch/asking.hpp"

namespace numalease::client {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// The verb `run` with its options.
class CommandLine : public testing::Test {
protected:
    void SetUp() override { add_request_options(app_, typed_); }

    Words split(const Argv& words, std::size_t positionals = 0) { return split_words(app_, words, positionals); }

    /// Through CLI11 as the client does it.
    void parse(const Argv& words) {
        auto ours = split(words).ours;
        std::ranges::reverse(ours);
        app_.parse(ours);
    }

    Typed typed_;
    CLI::App app_;
};

TEST_F(CommandLine, TheCommandBeginsBehindTheDashes) {
    const auto words = split({"--cores", "2", "--", "llama-server", "--cores", "9", "--", "x"});
    EXPECT_THAT(words.ours, ElementsAre("--cores=2"));
    EXPECT_THAT(words.command, ElementsAre("llama-server", "--cores", "9", "--", "x"));
}

TEST_F(CommandLine, TheCommandBeginsAtTheFirstWordThatIsNoValue) {
    const auto words = split({"--cores", "2", "--share", "llama-server", "--wait", "-t", "4"});
    EXPECT_THAT(words.ours, ElementsAre("--cores=2", "--share"));
    EXPECT_THAT(words.command, ElementsAre("llama-server", "--wait", "-t", "4"));
}

TEST_F(CommandLine, PositionalsComeBeforeTheCommand) {
    const auto words = split({"c1", "sh", "-c", "true"}, 1);
    EXPECT_THAT(words.ours, ElementsAre("c1"));
    EXPECT_THAT(words.command, ElementsAre("sh", "-c", "true"));
}

TEST_F(CommandLine, WaitWithoutAValueIsForever) {
    EXPECT_THAT(split({"--wait", "--", "x"}).ours, ElementsAre("--wait=forever"));
    EXPECT_THAT(split({"--wait", "llama-server"}).command, ElementsAre("llama-server"));
    EXPECT_THAT(split({"--wait"}).ours, ElementsAre("--wait=forever"));
}

TEST_F(CommandLine, WaitTakesATimeThatFollows) {
    EXPECT_THAT(split({"--wait", "5min", "x"}).ours, ElementsAre("--wait=5min"));
    EXPECT_THAT(split({"--wait=5min", "x"}).ours, ElementsAre("--wait=5min"));
}

TEST_F(CommandLine, RequireWithoutAValueIsAll) {
    EXPECT_THAT(split({"--require", "llama-server"}).ours, ElementsAre("--require=all"));
    EXPECT_THAT(split({"--require", "thp,node", "x"}).ours, ElementsAre("--require=thp,node"));
}

TEST_F(CommandLine, AnUnknownOptionIsLeftForTheParserToRefuse) {
    EXPECT_THAT(split({"--corse", "4", "x"}).ours, ElementsAre("--corse"));
    EXPECT_THROW(parse({"--corse", "4", "x"}), CLI::ParseError);
}

TEST_F(CommandLine, EveryFieldOfARequestIsAnOption) {
    parse({"--node", "any:2", "--hugepages", "2M=8G@0", "--numa-balancing", "off", "--time", "2h", "--isolated", "--",
           "x"});
    EXPECT_EQ(typed_.fields, (std::map<std::string, std::string>{{"node", "any:2"},
                                                                 {"hugepages", "2M=8G@0"},
                                                                 {"numa-balancing", "off"},
                                                                 {"time", "2h"},
                                                                 {"isolated", "yes"}}));
}

TEST_F(CommandLine, AValueMayBeginWithADash) {
    parse({"--reason", "-5 degrees", "--", "x"});
    EXPECT_EQ(typed_.fields["reason"], "-5 degrees");
}

TEST_F(CommandLine, InternalFieldsAreNoOptions) {
    EXPECT_THROW(parse({"--memory-is-estimate", "yes"}), CLI::ParseError);
    EXPECT_THROW(parse({"--required=node"}), CLI::ParseError);
    EXPECT_THROW(parse({"--command=x"}), CLI::ParseError);
}

TEST_F(CommandLine, AnOptionGivenTwiceIsRefused) { EXPECT_THROW(parse({"--cores=1", "--cores=2"}), CLI::ParseError); }

TEST_F(CommandLine, NothingIsNothing) {
    EXPECT_THAT(split({}).ours, IsEmpty());
    EXPECT_THAT(split({"--"}).command, IsEmpty());
}

}  // namespace
}  // namespace numalease::client
