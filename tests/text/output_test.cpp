#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/output.hpp"

namespace numalease::client {
namespace {

using model::Dict;
using model::Value;

TEST(Printable, LeavesTextAlone) { EXPECT_EQ(printable("größer → 8G"), "größer → 8G"); }

TEST(Printable, DisarmsTerminalEscapes) {
    EXPECT_EQ(printable("\x1b]0;owned\x07"), "\\x1b]0;owned\\x07");
    EXPECT_EQ(printable("a\rb\nc"), "a\\x0db\\x0ac");
    EXPECT_EQ(printable("\xc2\x9b"
                        "31m"),
              "\\xc2\\x9b31m");  // CSI as one C1 character
}

TEST(Printable, DisarmsWhatTurnsTheReadingDirection) {
    EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");
    EXPECT_EQ(printable("\xe2\x81\xa6"), "\\xe2\\x81\\xa6");
}

TEST(Printable, ShowsBytesThatAreNotUtf8) {
    EXPECT_EQ(printable("\xff"), "\\xff");
    EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");
    EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");  // overlong
}

TEST(ShellWord, QuotesOnlyWhatNeedsIt) {
    EXPECT_EQ(shell_word("--node=0-3,8"), "--node=0-3,8");
    EXPECT_EQ(shell_word("two words"), "'two words'");
    EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
    EXPECT_EQ(shell_word("$HOME"), "'$HOME'");
    EXPECT_EQ(shell_word(""), "''");
}

TEST(TableText, AlignsByCharactersAndNotByBytes) {
    EXPECT_EQ(table_text({{"é", "x"}, {"ab", "y"}}, 0), "é   x\nab  y\n");
}

TEST(TableText, CutsToTheWidth) { EXPECT_EQ(table_text({{"ab", "cdefgh"}}, 6), "ab  cd\n"); }

TEST(TableText, DoesNotCutThroughACharacter) { EXPECT_EQ(table_text({{"ab", "éé"}}, 5), "ab  é\n"); }

TEST(TableText, LeavesNoBlanksAtTheEnd) { EXPECT_EQ(table_text({{"a", ""}, {"b", "c"}}, 0), "a\nb  c\n"); }

TEST(TableText, DisarmsItsCells) { EXPECT_EQ(table_text({{"\x1b[2J"}}, 0), "\\x1b[2J\n"); }

TEST(TerminalWidth, IsColumnsWhereSet) {
    setenv("COLUMNS", "72", 1);
    EXPECT_EQ(terminal_width(), 72U);
    unsetenv("COLUMNS");
}

TEST(JsonText, KeepsTypesAndNesting) {
    const Dict dict{{"text", "a"},
                    {"flag", true},
                    {"number", 7U},
                    {"real", 0.5},
                    {"list", Value::Strings{"x"}},
                    {"dict", Dict{{"k", "v"}}},
                    {"dicts", Value::Dicts{Dict{{"i", 1U}}}}};
    EXPECT_EQ(nlohmann::json::parse(json_text(dict)),
              nlohmann::json::parse(R"({"text":"a","flag":true,"number":7,"real":0.5,"list":["x"],"dict":{"k":"v"},
                                        "dicts":[{"i":1}]})"));
}

TEST(JsonText, OfAListIsAnArray) {
    EXPECT_EQ(nlohmann::json::parse(json_text(Value::Dicts{})), nlohmann::json::array());
}

TEST(JsonText, SurvivesBytesThatAreNotUtf8) {
    EXPECT_EQ(nlohmann::json::parse(json_text(Dict{{"k", "\xff"}}))["k"], "\xef\xbf\xbd");
}

TEST(Failures, HaveTheExitStatusOfTheirKind) {
    for (const auto& row : model::kErrcTable) {
        testing::internal::CaptureStderr();
        EXPECT_EQ(say_failure({row.code, "two\nlines", 0}), row.exit_status);
        EXPECT_EQ(testing::internal::GetCapturedStderr(), "numa-leasectl: two\\x0alines\n");
    }
}

}  // namespace
}  // namespace numalease::client
