#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bus/private_bus.hpp"
#include "model/lease.hpp"

namespace numalease::bus {
namespace {

using model::Dict;
using model::Errc;
using model::Value;
using testing::HasSubstr;

class Codec : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_NE(bus_.get(), nullptr);
        ASSERT_NE(message_, nullptr);
    }

    model::Result<Dict> sealed_and_read() {
        seal(message_.get());
        return read_dict(message_.get());
    }

    /// {"k": variant of `signature`}, filled by `fill`.
    template <class Fill>
    model::Result<Dict> read_one(const char* signature, Fill fill) {
        auto* m = message_.get();
        EXPECT_GE(sd_bus_message_open_container(m, 'a', "{sv}"), 0);
        EXPECT_GE(sd_bus_message_open_container(m, 'e', "sv"), 0);
        EXPECT_GE(sd_bus_message_append(m, "s", "k"), 0);
        EXPECT_GE(sd_bus_message_open_container(m, 'v', signature), 0);
        EXPECT_GE(fill(m), 0);
        for (int i = 0; i < 3; ++i) EXPECT_GE(sd_bus_message_close_container(m), 0);
        return sealed_and_read();
    }

    PrivateBus bus_;
    Message message_ = new_message(bus_.get());
};

TEST_F(Codec, GivesBackEveryKindOfValue) {
    const Dict sent{{"text", "a b"},
                    {"empty", ""},
                    {"yes", true},
                    {"no", false},
                    {"number", std::uint64_t{18446744073709551615U}},
                    {"real", 0.5},
                    {"list", Value::Strings{"x", "", "y"}},
                    {"no_list", Value::Strings{}},
                    {"dict", Dict{{"inner", Dict{{"deep", 7U}}}}},
                    {"no_dict", Dict{}},
                    {"dicts", Value::Dicts{Dict{{"a", 1U}}, Dict{}}},
                    {"no_dicts", Value::Dicts{}}};
    ASSERT_TRUE(append_dict(message_.get(), sent));
    const auto got = sealed_and_read();
    ASSERT_TRUE(got) << got.error().detail;
    EXPECT_EQ(*got, sent);
}

TEST_F(Codec, CarriesALeaseWhole) {
    model::Lease lease;
    lease.id = "c7";
    lease.state = model::LeaseState::active;
    lease.caller = {.uid = 1000, .gid = 1000, .process = {.pid = 42, .start_time = 99}, .command = "llama-server"};
    lease.placement = {.cpus = {0, 1, 4}, .nodes = {0}, .cores = 2, .threads = 2, .promise = {{0, model::kGiB}}};
    lease.knobs.push_back({{model::Knob::hugepages, 1, 2 * model::kMiB}, "4096", "0", "3738", "3738 of 4096 pages"});
    lease.holders.push_back(lease.caller.process);
    lease.expires = model::Micros(5);
    ASSERT_TRUE(append_dict(message_.get(), to_dict(lease)));
    const auto got = sealed_and_read();
    ASSERT_TRUE(got) << got.error().detail;
    const auto back = model::lease_from_dict(*got);
    ASSERT_TRUE(back) << back.error().detail;
    EXPECT_EQ(*back, lease);
}

TEST_F(Codec, GivesBackAListOfDictionaries) {
    const Value::Dicts sent{Dict{{"id", "c1"}}, Dict{}, Dict{{"id", "c2"}, {"cores", 4U}}};
    ASSERT_TRUE(append_dicts(message_.get(), sent));
    seal(message_.get());
    const auto got = read_dicts(message_.get());
    ASSERT_TRUE(got) << got.error().detail;
    EXPECT_EQ(*got, sent);
}

TEST_F(Codec, WidensSmallIntegers) {
    EXPECT_EQ(read_one("y", [](auto* m) { return sd_bus_message_append(m, "y", 255); }), (Dict{{"k", 255U}}));
}

TEST_F(Codec, AcceptsSignedIntegersThatAreNotNegative) {
    EXPECT_EQ(read_one("i", [](auto* m) { return sd_bus_message_append(m, "i", 12); }), (Dict{{"k", 12U}}));
}

TEST_F(Codec, RefusesNegativeNumbersByName) {
    const auto got = read_one("x", [](auto* m) { return sd_bus_message_append(m, "x", std::int64_t{-1}); });
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Errc::invalid_request);
    EXPECT_THAT(got.error().detail, HasSubstr("'k'"));
}

TEST_F(Codec, RefusesUnknownTypesByName) {
    const auto got = read_one("(ss)", [](auto* m) { return sd_bus_message_append(m, "(ss)", "a", "b"); });
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Errc::invalid_request);
    EXPECT_THAT(got.error().detail, HasSubstr("'k'"));
    EXPECT_THAT(got.error().detail, HasSubstr("(ss)"));
}

TEST_F(Codec, RefusesDescriptorsAndVariantsInVariants) {
    EXPECT_FALSE(read_one("v", [](auto* m) { return sd_bus_message_append(m, "v", "s", "x"); }));
}

TEST_F(Codec, RefusesAKeyGivenTwice) {
    ASSERT_GE(sd_bus_message_append(message_.get(), "a{sv}", 2, "node", "s", "0", "node", "s", "1"), 0);
    const auto got = sealed_and_read();
    ASSERT_FALSE(got);
    EXPECT_THAT(got.error().detail, HasSubstr("'node' is given twice"));
}

TEST_F(Codec, RefusesWhatIsNoDictionary) {
    ASSERT_GE(sd_bus_message_append(message_.get(), "s", "node=0"), 0);
    const auto got = sealed_and_read();
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Errc::invalid_request);
}

TEST_F(Codec, RefusesAnEmptyMessage) {
    const auto got = sealed_and_read();
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Errc::invalid_request);
}

Dict nested(std::size_t levels) {
    Dict out{{"leaf", 1U}};
    for (std::size_t i = 1; i < levels; ++i) out = Dict{{"d", std::move(out)}};
    return out;
}

TEST_F(Codec, AcceptsTheDeepestAllowedNesting) {
    ASSERT_TRUE(append_dict(message_.get(), nested(kMaxDepth)));
    EXPECT_TRUE(sealed_and_read());
}

TEST_F(Codec, RefusesOneLevelMore) {
    ASSERT_TRUE(append_dict(message_.get(), nested(kMaxDepth + 1)));
    const auto got = sealed_and_read();
    ASSERT_FALSE(got);
    EXPECT_THAT(got.error().detail, HasSubstr("too deeply"));
}

Dict wide(std::size_t entries) {
    Dict out;
    for (std::size_t i = 0; i < entries; ++i) out[std::to_string(i)] = true;
    return out;
}

TEST_F(Codec, AcceptsTheMostEntriesAllowed) {
    ASSERT_TRUE(append_dict(message_.get(), wide(kMaxEntries)));
    EXPECT_TRUE(sealed_and_read());
}

TEST_F(Codec, RefusesOneEntryMore) {
    ASSERT_TRUE(append_dict(message_.get(), wide(kMaxEntries + 1)));
    EXPECT_FALSE(sealed_and_read());
}

TEST_F(Codec, ReadsALongAnswerWhereTheReaderAllowsIt) {
    ASSERT_TRUE(append_dict(message_.get(), wide(kMaxEntries + 1)));
    seal(message_.get());
    EXPECT_TRUE(read_dict(message_.get(), kMaxReplyEntries));
}

TEST_F(Codec, CountsEntriesOverAllLevels) {
    ASSERT_TRUE(append_dict(message_.get(), Dict{{"a", wide(kMaxEntries / 2)}, {"b", wide(kMaxEntries / 2)}}));
    EXPECT_FALSE(sealed_and_read());
}

TEST_F(Codec, CountsListItems) {
    ASSERT_TRUE(append_dict(message_.get(), Dict{{"a", Value::Strings(kMaxEntries, "x")}}));
    EXPECT_FALSE(sealed_and_read());
}

TEST_F(Codec, RefusesToWriteTextThatIsNotUtf8) {
    const auto wrote = append_dict(message_.get(), Dict{{"k", "\xff\xfe"}});
    ASSERT_FALSE(wrote);
    EXPECT_EQ(wrote.error().code, Errc::io);
}

}  // namespace
}  // namespace numalease::bus
