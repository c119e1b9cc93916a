#include "policies/yaml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace numalease::policies {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(const std::string& text) {
    const auto item = read_yaml(text, "f.yaml");
    return item ? "accepted" : item.error().detail;
}

std::string repeat(std::string_view part, std::size_t times) {
    std::string out;
    out.reserve(part.size() * times);
    for (std::size_t i = 0; i < times; ++i) out += part;
    return out;
}

TEST(Yaml, ReadsMapsListsAndTextInTheOrderOfTheFile) {
    const auto item = read_yaml("b: [x, 'y z']\na:\n  c: |\n    one\n    two\n", "f.yaml");
    ASSERT_TRUE(item) << item.error().detail;
    ASSERT_EQ(item->items.size(), 2U);
    EXPECT_EQ(item->items[0].key, "b");
    EXPECT_EQ(item->items[0].items[1].text, "y z");
    EXPECT_EQ(item->items[1].items[0].text, "one\ntwo\n");
    EXPECT_EQ(item->items[1].items[0].key_at.line, 3);
    EXPECT_EQ(item->items[1].items[0].key_at.column, 3);
}

TEST(Yaml, NamesLineAndColumnOfADuplicateKey) {
    EXPECT_EQ(refusal("a: 1\nb: 2\na: 3\n"), "f.yaml:3:1: the key 'a' is there twice");
    EXPECT_THAT(refusal("x: {a: 1, a: 2}\n"), StartsWith("f.yaml:1:11: the key 'a' is there twice"));
}

TEST(Yaml, RefusesAliasesAnchorsAndTags) {
    EXPECT_THAT(refusal("a: &x 1\nb: *x\n"), StartsWith("f.yaml:1:4: anchors"));
    EXPECT_THAT(refusal("&x a: 1\n"), HasSubstr("anchors"));
    EXPECT_THAT(refusal("a: !!binary aGk=\n"), HasSubstr("tags"));
    EXPECT_THAT(refusal("a: *x\n"), StartsWith("f.yaml:1:4: "));
}

TEST(Yaml, RefusesABombOfAliases) {
    std::string text = "a0: &a0 [x, x]\n";
    for (int i = 1; i < 30; ++i) {
        const auto before = "*a" + std::to_string(i - 1);
        text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before + ", " + before + "]\n";
    }
    EXPECT_THAT(refusal(text), StartsWith("f.yaml:1:5: anchors"));
}

TEST(Yaml, TakesSixtyFourLevelsAndRefusesMore) {
    EXPECT_EQ(refusal(repeat("[", 64) + repeat("]", 64)), "accepted");
    EXPECT_THAT(refusal(repeat("[", 65) + repeat("]", 65)), HasSubstr("f.yaml:1:65: nested deeper than 64"));
}

TEST(Yaml, TakesTenThousandValuesAndRefusesMore) {
    EXPECT_EQ(refusal("[" + repeat("a,", kMaxNodes - 1) + "]"), "accepted");
    EXPECT_THAT(refusal("[" + repeat("a,", kMaxNodes) + "]"), HasSubstr("more than 10000 values"));
    EXPECT_THAT(refusal(repeat("- a\n", kMaxNodes)), HasSubstr("more than 10000 values"));
}

TEST(Yaml, RefusesMoreThanOneMebibyte) {
    EXPECT_EQ(refusal("a: " + std::string(kMaxFileBytes - 3, 'x')), "accepted");
    EXPECT_EQ(refusal("a: " + std::string(kMaxFileBytes - 2, 'x')), "f.yaml:1:1: larger than 1 MiB");
}

TEST(Yaml, RefusesATabAsIndentation) {
    EXPECT_EQ(refusal("a:\n\tb: 1\n"), "f.yaml:2:1: a tab in the indentation; use spaces");
    EXPECT_EQ(refusal("a:\n  \tb: 1\n"), "f.yaml:2:3: a tab in the indentation; use spaces");
    EXPECT_EQ(refusal("a: x\t# fine\n"), "accepted");
}

TEST(Yaml, RefusesControlCharactersAndBrokenUtf8) {
    EXPECT_EQ(refusal(std::string("a: x\0y\n", 7)), "f.yaml:1:5: control characters are not allowed");
    EXPECT_THAT(refusal("a: \"\\x1b[31m\"\n"), HasSubstr("f.yaml:1:4: control characters"));
    EXPECT_THAT(refusal("a: \xff\xfe\n"), HasSubstr("UTF-8"));
    EXPECT_THAT(refusal("a: \xe0\x80\x80\n"), HasSubstr("UTF-8"));
    EXPECT_THAT(refusal("a: \xed\xa0\x80\n"), HasSubstr("UTF-8"));
    EXPECT_EQ(refusal("a: grün 10 → 40 \xf0\x9f\x98\x80\n"), "accepted");
}

TEST(Yaml, RefusesASecondDocumentAndAnEmptyFile) {
    EXPECT_THAT(refusal("a: 1\n---\nb: 2\n"), HasSubstr("a second document"));
    EXPECT_EQ(refusal(""), "f.yaml:1:1: the file is empty");
    EXPECT_EQ(refusal("# only this\n"), "f.yaml:1:1: the file is empty");
    EXPECT_EQ(refusal("---\na: 1\n"), "accepted");
}

TEST(Yaml, RefusesAKeyThatIsNoText) {
    EXPECT_THAT(refusal("? [a, b]\n: 1\n"), HasSubstr("a key must be text"));
    EXPECT_THAT(refusal("? \n: 1\n"), HasSubstr("a key must be text"));
}

TEST(Yaml, NamesThePlaceOfASyntaxError) {
    EXPECT_THAT(refusal("a: 1\nb: [1, 2\n"), HasSubstr("not valid YAML"));
    EXPECT_THAT(refusal("a: 1\n  b: 2\n"), StartsWith("f.yaml:2:"));
}

/// Each fills the whole file with what costs a YAML parser most; all must be over at once, with little stack.
class HostileYaml : public testing::TestWithParam<const char*> {};

TEST_P(HostileYaml, IsReadOrRefusedInBoundedTime) {
    const std::string part = GetParam();
    const auto start = std::chrono::steady_clock::now();
    const auto item = read_yaml(repeat(part, kMaxFileBytes / part.size()), "f.yaml");
    // Generous for sanitizers on a busy machine; a parser that is quadratic in 1 MiB takes hours.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    EXPECT_TRUE(item || item.error().detail.starts_with("f.yaml:"));
}

INSTANTIATE_TEST_SUITE_P(Parts, HostileYaml,
                         testing::Values("[", "{", "- ", "? ", "[{", "{a: ", "a: ", "a:\n ", "\"", "'", "|\n", "#",
                                         "# \n", "\n", " ", "&a ", "*a ", "!a ", "!", "!<", "---\n", "...\n",
                                         "%TAG ! a\n", "%YAML 1.2\n", "a: 1\n", "- a\n", ",", ":", "]", "}", "[]",
                                         "\"\\x41", "''", "a\n", "a: |\n  b\n", "? ? [", "{? ", "[? ", "{a",
                                         "<<: ", "\xef\xbb\xbf", "a\r\n", ": ", "- - [", "{[", "x: >\n"));

}  // namespace
}  // namespace numalease::policies
