#include "weights/gguf.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/gguf_bytes.hpp"
#include "weights/model.hpp"

namespace numalease::weights {
namespace {

using namespace test;
using testing::HasSubstr;

std::string why_not(const std::string& bytes) {
    const ModelFolder folder;
    const auto file = folder.put("m.gguf", bytes);
    const auto read = read_gguf(file);
    if (read) return "(read)";
    EXPECT_EQ(read.error().code, model::Errc::unreadable);
    EXPECT_THAT(read.error().detail, HasSubstr(file));
    EXPECT_EQ(read.error().detail.find('\n'), std::string::npos);
    return read.error().detail;
}

TEST(Gguf, ReadsNumbersTextsArraysAndTensors) {
    const ModelFolder folder;
    for (const std::uint32_t version : {2U, 3U}) {
        auto bytes = small_model();
        bytes.replace(4, 4, raw(version));
        const auto read = read_gguf(folder.put("m.gguf", bytes));
        ASSERT_TRUE(read) << read.error().detail;
        EXPECT_EQ(read->version, version);
        EXPECT_EQ(read->texts.at("general.architecture"), "llama");
        EXPECT_EQ(read->number("llama.block_count"), 2U);
        EXPECT_EQ(read->numbers.at("llama.attention.head_count_kv"), (std::vector<std::int64_t>{2, 0}));
        ASSERT_EQ(read->tensors.size(), 3U);
        EXPECT_EQ(read->tensors[1].name, "blk.0.ffn_up.weight");
        EXPECT_EQ(read->tensors[0].bytes, 4096U);
        EXPECT_EQ(read->tensors[1].bytes, 2048U);
    }
}

TEST(Gguf, ATensorOfAnUnknownTypeReachesToTheNextOne) {
    const ModelFolder folder;
    const auto read = read_gguf(folder.put(
        "m.gguf", gguf_bytes({}, {tensor_info("b", {32}, 777, 1024), tensor_info("a", {32}, 778, 0)}, 1536)));
    ASSERT_TRUE(read) << read.error().detail;
    EXPECT_TRUE(read->has_unknown_type);
    EXPECT_EQ(read->tensors[0].bytes, 512U);
    EXPECT_EQ(read->tensors[1].bytes, 1024U);
}

TEST(Gguf, CutAnywhereItIsTruncatedByName) {
    const auto whole = small_model();
    for (std::size_t length = 0; length < whole.size(); length += length < whole.size() - 8192 ? 1U : 512U) {
        const auto why = why_not(whole.substr(0, length));
        if (length < 4)
            EXPECT_THAT(why, HasSubstr("is no GGUF file")) << length;
        else
            EXPECT_THAT(why, HasSubstr("is truncated")) << length;
    }
}

TEST(Gguf, AnyByteChangedIsReadOrRefused) {
    const ModelFolder folder;
    const auto whole = small_model();
    for (std::size_t at = 0; at < whole.size() - 8192; ++at)
        for (const char byte : {'\0', '\x7f', '\xff'}) {
            auto changed = whole;
            changed[at] = byte;
            const auto read = read_gguf(folder.put("m.gguf", changed));
            EXPECT_TRUE(read || read.error().code == model::Errc::unreadable);
        }
}

TEST(Gguf, WhatCannotBeReadIsNamed) {
    EXPECT_THAT(why_not("not a model at all"), HasSubstr("is no GGUF file"));
    EXPECT_THAT(why_not(gguf_bytes({}, {}, 0, 1)), HasSubstr("version 1; versions 2 and 3 are read"));
    EXPECT_THAT(why_not(gguf_bytes({}, {}, 0, 0x03000000)), HasSubstr("big-endian"));
    EXPECT_THAT(why_not("GGUF" + raw(3U) + raw(~std::uint64_t{0}) + raw(std::uint64_t{0})),
                HasSubstr("18446744073709551615 tensors"));
    EXPECT_THAT(why_not("GGUF" + raw(3U) + raw(std::uint64_t{0}) + raw(std::uint64_t{1} << 40U)),
                HasSubstr("keys; at most"));
    EXPECT_THAT(why_not(gguf_bytes({raw_text("k") + raw(99U)}, {}, 64)), HasSubstr("key 'k' of an unknown type"));
    EXPECT_THAT(why_not(gguf_bytes({raw_text("k") + raw(9U) + raw(9U) + raw(std::uint64_t{1})}, {}, 64)),
                HasSubstr("array 'k'"));
    EXPECT_THAT(why_not(gguf_bytes({}, {tensor_info("t", {33}, 8, 0)}, 64)), HasSubstr("whole blocks"));
    EXPECT_THAT(why_not(gguf_bytes({}, {tensor_info("t", {1ULL << 40U, 1ULL << 40U}, 0, 0)}, 64)),
                HasSubstr("larger than any memory"));
    EXPECT_THAT(why_not(gguf_bytes({}, {tensor_info("t", {16}, 0, 1ULL << 60U)}, 64)), HasSubstr("is truncated"));
    EXPECT_THAT(why_not(gguf_bytes({number_key("general.alignment", 0)}, {}, 64)), HasSubstr("general.alignment"));
}

TEST(Gguf, ArraysLongerThanTheFileAreTruncation) {
    EXPECT_THAT(why_not(gguf_bytes({raw_text("k") + raw(9U) + raw(4U) + raw(~std::uint64_t{0})}, {}, 64)),
                HasSubstr("is truncated"));
    EXPECT_THAT(why_not(gguf_bytes({raw_text("k") + raw(9U) + raw(8U) + raw(~std::uint64_t{0})}, {}, 64)),
                HasSubstr("is truncated"));
}

TEST(Gguf, APipeOrAFolderIsNoModelAndIsNotWaitedFor) {
    const ModelFolder folder;
    ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
    for (const auto* name : {"pipe", "."}) {
        const auto read = read_gguf(folder.path(name));
        ASSERT_FALSE(read);
        EXPECT_THAT(read.error().detail, HasSubstr("not a file"));
    }
}

std::string part(std::uint32_t count, const std::string& tensor) {
    return gguf_bytes({number_key("split.count", count), text_key("general.architecture", "llama")}, {tensor}, 64);
}

TEST(Model, AllPartsCountWhicheverIsNamed) {
    const ModelFolder folder;
    folder.put("m-00001-of-00003.gguf", part(3, tensor_info("a", {16}, 0, 0)));
    const auto second = folder.put("m-00002-of-00003.gguf", part(3, tensor_info("b", {16}, 0, 0)));
    folder.put("m-00003-of-00003.gguf", part(3, tensor_info("c", {8}, 0, 0)));
    const auto read = read_model(second);
    ASSERT_TRUE(read) << read.error().detail;
    EXPECT_EQ(read->files.size(), 3U);
    EXPECT_EQ(read->header.tensors.size(), 3U);
    EXPECT_EQ(read->header.tensors[2].bytes, 32U);
}

TEST(Model, AMissingPartIsNamed) {
    const ModelFolder folder;
    const auto first = folder.put("m-00001-of-00002.gguf", part(2, tensor_info("a", {16}, 0, 0)));
    const auto read = read_model(first);
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().detail, HasSubstr("m-00002-of-00002.gguf: No such file"));
}

TEST(Model, ARenamedPartIsNotTakenForTheWhole) {
    const ModelFolder folder;
    const auto read = read_model(folder.put("renamed.gguf", part(7, tensor_info("a", {16}, 0, 0))));
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().detail, HasSubstr("one of 7 parts"));
}

}  // namespace
}  // namespace numalease::weights
