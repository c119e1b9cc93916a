#include "weights/need.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/gguf_bytes.hpp"

namespace numalease::weights {
namespace {

using namespace test;

/// What is computed here by hand is compared with llama.cpp itself in tests/integration/models.
Gguf described(const std::string& architecture, std::map<std::string, std::vector<std::int64_t>> figures) {
    Gguf out;
    out.texts["general.architecture"] = architecture;
    for (auto& [key, values] : figures) out.numbers[architecture + '.' + key] = std::move(values);
    return out;
}

Layers layers_of(const Gguf& header) {
    const auto layers = read_layers(header, "m.gguf");
    EXPECT_TRUE(layers) << layers.error().detail;
    return layers.value_or(Layers{});
}

Model four_layers() {
    Model out;
    for (const auto* name : {"token_embd.weight", "blk.0.ffn_up_exps.weight", "blk.1.ffn_up.weight",
                             "blk.2.ffn_up_exps.weight", "blk.3.ffn_up.weight", "output_norm.weight", "output.weight"})
        out.header.tensors.push_back({.name = name, .bytes = 100});
    return out;
}

const Gguf kFour = described("llama", {{"block_count", {4}},
                                       {"embedding_length", {64}},
                                       {"context_length", {1024}},
                                       {"attention.head_count", {4}},
                                       {"attention.head_count_kv", {2}}});

TEST(Layers, HeadsMayDifferByLayerAndNoneIsNoCache) {
    const auto it = layers_of(described("llama", {{"block_count", {3}},
                                                  {"embedding_length", {64}},
                                                  {"attention.head_count", {4}},
                                                  {"attention.head_count_kv", {2, 0, 1}}}));
    EXPECT_EQ(it.layers[0].key, 32U);
    EXPECT_FALSE(it.layers[1].attention);
    EXPECT_EQ(it.layers[2].value, 16U);
}

TEST(Layers, WindowsByPatternOfTheFileOrOfTheArchitecture) {
    const auto windows = [](const Gguf& header) {
        std::string out;
        for (const auto& layer : layers_of(header).layers) out += layer.window ? 'w' : '-';
        return out;
    };
    auto figures = std::map<std::string, std::vector<std::int64_t>>{{"block_count", {8}},
                                                                    {"embedding_length", {64}},
                                                                    {"attention.head_count", {4}},
                                                                    {"attention.sliding_window", {16}}};
    EXPECT_EQ(windows(described("gemma3", figures)), "wwwww-ww");
    EXPECT_EQ(windows(described("smallthinker", figures)), "-www-www");
    EXPECT_EQ(windows(described("phi3", figures)), "--------");
    EXPECT_EQ(windows(described("unheard-of", figures)), "--------");
    EXPECT_EQ(layers_of(described("unheard-of", figures)).notes.size(), 1U);
    figures["attention.sliding_window_pattern"] = {1, 0, 0, 1, 1, 1, 0, 0};
    EXPECT_EQ(windows(described("unheard-of", figures)), "w--www--");
    figures["attention.sliding_window_pattern"] = {2};
    EXPECT_EQ(windows(described("unheard-of", figures)), "w-w-w-w-");
}

TEST(Layers, ThoseThatGuessTokensAreNotCached) {
    EXPECT_EQ(layers_of(described("glm4moe", {{"block_count", {4}},
                                              {"embedding_length", {64}},
                                              {"attention.head_count", {4}},
                                              {"nextn_predict_layers", {1}}}))
                  .layers.size(),
              3U);
}

TEST(Layers, HostileFiguresStayBounded) {
    const std::int64_t huge = INT64_MAX;
    const auto it = layers_of(described("llama", {{"block_count", {4096}},
                                                  {"embedding_length", {huge}},
                                                  {"context_length", {huge}},
                                                  {"attention.head_count", {huge}},
                                                  {"attention.key_length", {huge}},
                                                  {"attention.value_length", {-5}}}));
    const auto need = need_of(Model{}, it, {.context = UINT64_MAX, .slots = UINT64_MAX, .ubatch = UINT64_MAX});
    ASSERT_TRUE(need);
    EXPECT_EQ(need->cache, UINT64_MAX);
    EXPECT_FALSE(read_layers(described("llama", {{"block_count", {4097}}}), "m"));
    EXPECT_FALSE(read_layers(described("llama", {{"block_count", {0}}}), "m"));
    EXPECT_FALSE(read_layers(Gguf{}, "m"));
}

TEST(Need, CacheGrowsByWholeBlocksOfTokens) {
    const auto layers = layers_of(kFour);
    const auto cache = [&](const Settings& settings) { return need_of(four_layers(), layers, settings)->cache; };
    const auto token = 4U * 2 * 32 * 2;  // layers, keys and values, elements, bytes
    EXPECT_EQ(cache({.context = 1000}), 1024U * token);
    EXPECT_EQ(cache({}), 1024U * token);
    EXPECT_EQ(cache({.context = 1000, .slots = 2}), 2U * 512 * token);
    EXPECT_EQ(cache({.context = 1024, .key_type = 8, .value_type = 8}), 1024U * 4 * 2 * 34);
}

TEST(Need, LayersGoToTheGpuFromTheLast) {
    const auto layers = layers_of(kFour);
    const auto split = [&](Settings settings) {
        const auto need = need_of(four_layers(), layers, settings);
        return std::pair(need->weights, need->on_gpu);
    };
    using Pair = std::pair<model::Bytes, model::Bytes>;
    EXPECT_EQ(split({}), Pair(700, 0));
    EXPECT_EQ(split({.gpu_layers = 1}), Pair(500, 200));  // the output and its norm
    EXPECT_EQ(split({.gpu_layers = 2}), Pair(400, 300));
    EXPECT_EQ(split({.gpu_layers = 99}), Pair(100, 600));
    EXPECT_EQ(split({.gpu_layers = 99, .overrides = {{R"(\.ffn_up_exps)", true}}}), Pair(300, 400));
    EXPECT_EQ(split({.overrides = {{R"(blk\.0)", false}, {"blk", true}}}), Pair(600, 100));
    auto tied = four_layers();
    tied.header.tensors.pop_back();
    EXPECT_EQ(need_of(tied, layers, {.gpu_layers = 1})->on_gpu, 200U);  // the norm, and the embeddings once more
    EXPECT_EQ(need_of(four_layers(), layers, {.gpu_layers = 3})->cache, need_of(four_layers(), layers, {})->cache / 2);
    EXPECT_EQ(need_of(four_layers(), layers, {.gpu_layers = 3, .cache_on_host = true})->cache,
              need_of(four_layers(), layers, {})->cache);
}

TEST(Need, AnOverrideThatIsNoExpressionIsNamed) {
    const auto need = need_of(four_layers(), layers_of(kFour), {.overrides = {{"(((", true}}});
    ASSERT_FALSE(need);
    EXPECT_THAT(need.error().detail, testing::HasSubstr("'(((' is no regular expression"));
}

}  // namespace
}  // namespace numalease::weights
