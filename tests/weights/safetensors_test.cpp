#include "weights/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/gguf_bytes.hpp"
#include "weights/need.hpp"

namespace numalease::weights {
namespace {

using namespace test;
using testing::HasSubstr;

std::string shard(const std::string& json, std::size_t data) { return raw_text(json) + std::string(data, 'w'); }
const auto kShard =
    shard(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[8],"data_offsets":[0,16]}})", 16);
constexpr auto kConfig = R"({"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
    "hidden_size":64,"max_position_embeddings":1024})";

std::string why_not(const std::string& path) {
    const auto read = read_safetensors(path);
    return read ? "(read)" : read.error().detail;
}

TEST(Safetensors, AFolderCountsTheShardsOfItsIndex) {
    const ModelFolder folder;
    folder.put("x-1.safetensors", kShard);
    folder.put("x-2.safetensors", kShard);
    folder.put("left-over.safetensors", kShard);
    folder.put("config.json", kConfig);
    folder.put("model.safetensors.index.json", R"({"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}})");
    const auto read = read_safetensors(folder.path("."));
    ASSERT_TRUE(read) << read.error().detail;
    EXPECT_EQ(read->model.files.size(), 2U);
    const auto need = need_of(read->model, read->layers, {});
    EXPECT_EQ(need->weights, 32U);
    EXPECT_EQ(need->cache, 1024U * 2 * 2 * 32 * 2);
}

TEST(Safetensors, WithoutAnIndexEveryShardCounts) {
    const ModelFolder folder;
    folder.put("x-1.safetensors", kShard);
    folder.put("x-2.safetensors", kShard);
    const auto read = read_safetensors(folder.path("."));
    ASSERT_TRUE(read) << read.error().detail;
    EXPECT_EQ(read->model.files.size(), 2U);
    EXPECT_TRUE(read->layers.layers.empty());
}

TEST(Safetensors, WhatIsWrongIsNamed) {
    const ModelFolder folder;
    EXPECT_THAT(why_not(folder.path(".")), HasSubstr("no *.safetensors"));
    EXPECT_THAT(why_not(folder.path("x.safetensors")), HasSubstr("No such file"));
    EXPECT_THAT(why_not(folder.put("a.safetensors", kShard.substr(0, 20))), HasSubstr("a.safetensors is truncated"));
    EXPECT_THAT(why_not(folder.put("b.safetensors", kShard.substr(0, kShard.size() - 1))),
                HasSubstr("ends behind its end"));
    EXPECT_THAT(why_not(folder.put("c.safetensors", raw(~std::uint64_t{0}))), HasSubstr("truncated"));
    EXPECT_THAT(why_not(folder.put("d.safetensors", shard(std::string(99999, '['), 0))), HasSubstr("no JSON object"));
    EXPECT_THAT(why_not(folder.put("e.safetensors", shard(R"({"a":[]})", 0))), HasSubstr("without a place"));
    EXPECT_THAT(why_not(folder.put("f.safetensors", shard(R"({"a":{"data_offsets":[9,1]}})", 16))),
                HasSubstr("ends behind"));
    EXPECT_THAT(why_not(folder.put("g.safetensors.index.json", R"({"weight_map":{"a":"../../etc/passwd"}})")),
                HasSubstr("no file beside it"));
}

}  // namespace
}  // namespace numalease::weights
