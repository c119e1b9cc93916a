#include "client/help.hpp"

#include <gtest/gtest.h>

namespace numalease::client {
namespace {

TEST(Wrapped, BreaksAtBlanksAndNeverInsideAWord) {
    EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
    EXPECT_EQ(wrapped("one two three", 13), "one two three");
    EXPECT_EQ(wrapped("one two three", 1), "one\ntwo\nthree");
    EXPECT_EQ(wrapped("", 7), "");
}

TEST(Wrapped, CountsCharactersNotBytes) { EXPECT_EQ(wrapped("…… …… x", 5), "…… ……\nx"); }

}  // namespace
}  // namespace numalease::client
