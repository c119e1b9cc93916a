#include "engines/sizing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/engines.hpp"
#include "support/gguf_bytes.hpp"

namespace numalease::client {
namespace {

using testing::Contains;
using testing::HasSubstr;

using test::shipped;

class SizingTest : public testing::Test {
protected:
    model::Result<Sizing> size(Argv words, const Env& env = {}, bool gpu = false) {
        words.insert(words.begin(), {"llama-server", "-m", file_});
        return size_model(shipped(), file_, words, env, gpu);
    }
    weights::Settings settings(const Argv& words, const Env& env = {}) {
        const auto sizing = size(words, env);
        EXPECT_TRUE(sizing) << sizing.error().detail;
        return sizing ? sizing->settings : weights::Settings{};
    }

    test::ModelFolder folder_;
    std::string file_ = folder_.put("m.gguf", test::small_model());
};

TEST_F(SizingTest, TheCommandsWordsDecideAndTheLastOneCounts) {
    EXPECT_EQ(settings({"-c", "100", "--ctx-size=4096"}).context, 4096U);
    EXPECT_EQ(settings({}, {{"LLAMA_ARG_CTX_SIZE", "512"}}).context, 512U);
    EXPECT_EQ(settings({"-ctk", "q8_0"}).key_type, 8U);
    EXPECT_EQ(settings({"--cache-type-v", "q4_0"}).value_type, 2U);
    EXPECT_EQ(settings({"-ub", "2048"}).ubatch, 2048U);
    EXPECT_TRUE(settings({"--swa-full"}).full_windows);
    EXPECT_TRUE(settings({"-nkvo"}).cache_on_host);
    EXPECT_EQ(settings({"-ngl", "7"}).gpu_layers, 7U);
    EXPECT_EQ(settings({"-ngl", "-1"}).gpu_layers, 0U);
    EXPECT_GT(settings({"-ngl", "all"}).gpu_layers, 1000U);
}

TEST_F(SizingTest, SlotsShareOneCacheWhereTheyAreNotCounted) {
    EXPECT_EQ(settings({}).slots, 4U);
    EXPECT_TRUE(settings({"-np", "-1"}).unified);
    EXPECT_EQ(settings({"-np", "3"}).slots, 3U);
    EXPECT_FALSE(settings({"-np", "3"}).unified);
    EXPECT_TRUE(settings({"-np", "3", "-kvu"}).unified);
}

class HubTest : public testing::Test {
protected:
    HubTest() {
        std::filesystem::create_directories(folder_.path(kSnapshot));
        std::filesystem::create_directories(folder_.path(kRefs));
        folder_.put(std::string(kRefs) + "/main", "abc123\n");
        folder_.put(
            std::string(kSnapshot) + "/model.safetensors",
            test::raw_text(R"({"a":{"dtype":"F16","shape":[8],"data_offsets":[0,16]}})") + std::string(16, 'w'));
        folder_.put(std::string(kSnapshot) + "/config.json",
                    R"({"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
                        "hidden_size":64,"max_position_embeddings":8192})");
    }
    /// As asked for, of the model that the command names.
    model::Result<Sizing> size(const Argv& command, const Env& env = {}, bool gpu = false) {
        const auto& engine = *recognise(shipped(), command, nullptr);
        const auto file = local_model(engine, model_file(engine, command, env).value_or(""), env_);
        if (!file) return model::fail(model::Errc::unreadable, "(not here)");
        return size_model(shipped(), *file, command, env, gpu);
    }

    static constexpr auto kSnapshot = "hub/models--org--m/snapshots/abc123";
    static constexpr auto kRefs = "hub/models--org--m/refs";
    test::ModelFolder folder_;
    Env env_{{"HF_HOME", folder_.path("")}};
    const model::Bytes token_ = 2 * 2 * 32 * 2;  ///< layers, keys and values, elements, bytes
};

TEST_F(HubTest, ANameIsSizedByWhatWasDownloaded) {
    const auto sizing = size({"vllm", "serve", "org/m"});
    ASSERT_TRUE(sizing) << sizing.error().detail;
    EXPECT_EQ(sizing->need.weights, 16U);
    EXPECT_EQ(sizing->need.cache, 8192 * token_);
    EXPECT_THAT(sizing->notes, Contains(HasSubstr("one request of 8192 tokens")));
    EXPECT_EQ(size({"vllm", "serve", "org/m", "--max-model-len", "4k"})->need.context, 4000U);
    EXPECT_EQ(size({"vllm", "serve", "org/m", "--max-model-len", "4K"})->need.context, 4096U);
    EXPECT_EQ(size({"vllm", "serve", "org/m", "--max-model-len=auto"})->need.context, 8192U);
    EXPECT_THAT(size({"vllm", "serve", "org/m", "--max-model-len", "1e99k"}).error().detail, HasSubstr("1e99k"));
    EXPECT_EQ(size({"sglang", "serve", "--model-path", "org/m", "--context-length", "1024"})->need.cache,
              1024 * token_);
}

TEST_F(HubTest, ItsCacheIsAsLargeAsItIsTold) {
    const auto sizing = size({"vllm", "serve", "org/m"}, {{"VLLM_CPU_KVCACHE_SPACE", "40"}});
    EXPECT_EQ(sizing->need.cache, 40 * model::kGiB);
    EXPECT_EQ(sizing->at_least.cache, 40 * model::kGiB);
}

TEST_F(HubTest, OnAGpuNothingIsAskedFor) {
    const auto sizing = size({"vllm", "serve", "org/m"}, {}, true);
    EXPECT_TRUE(sizing->may_use_gpu);
    EXPECT_EQ(sizing->least(), sizing->need.allowance);
    const auto told = size({"sglang", "serve", "--model-path", "org/m", "--device", "cpu"}, {}, true);
    EXPECT_FALSE(told->may_use_gpu);
    EXPECT_EQ(told->least(), told->most());
}

TEST_F(HubTest, WhatIsNotHereIsNotSized) {
    for (const auto* name : {"org/other", "../m", "org/../m", "org/m/x", "m", ".org/m"})
        EXPECT_FALSE(size({"vllm", "serve", name})) << name;
    folder_.put(std::string(kRefs) + "/main", "../../../..");
    EXPECT_FALSE(size({"vllm", "serve", "org/m"}));
}

TEST_F(SizingTest, TensorsThatAreSentElsewhereDoNotCount) {
    EXPECT_EQ(size({})->need.weights, 8192U);
    EXPECT_EQ(size({"-ot", R"(blk\.0=CUDA0,blk\.1=CPU)"})->need.weights, 6144U);
    EXPECT_EQ(settings({"--cpu-moe"}).overrides.size(), 1U);
    EXPECT_EQ(settings({"--n-cpu-moe", "3"}).overrides.size(), 3U);
}

TEST_F(SizingTest, WhatTheEngineDecidesIsARangeAndSaysWhy) {
    const auto fixed = size({"-c", "512", "-fit", "off"}, {}, true);
    ASSERT_TRUE(fixed);
    EXPECT_EQ(fixed->least(), fixed->most());
    EXPECT_THAT(fixed->notes, testing::IsEmpty());
    const auto open = size({"-c", "512"}, {}, true);
    ASSERT_TRUE(open);
    EXPECT_LT(open->least(), open->most());
    EXPECT_THAT(open->notes, Contains(HasSubstr("-ngl N says how many")));
    EXPECT_EQ(memory_to_ask(*open, 1ULL << 40U), open->least());
    EXPECT_EQ(memory_to_ask(*fixed, 1ULL << 40U), fixed->most());
}

TEST_F(SizingTest, ADraftModelCountsToo) {
    const auto draft = folder_.put("draft.gguf", test::small_model());
    const auto sizing = size({"-md", draft});
    ASSERT_TRUE(sizing);
    const auto alone = size({"-c", "1024"});
    const auto beside = size({"-c", "1024", "-md", draft});
    ASSERT_TRUE(alone && beside);
    EXPECT_EQ(beside->beside, alone->need.total()) << "its weights, cache and buffers, as if it were the main one";
    EXPECT_THAT(beside->notes, Contains(HasSubstr("draft.gguf: 8K weights")));
    EXPECT_EQ(size({"-c", "2048", "-md", draft})->beside, size({"-c", "2048"})->need.total());
    EXPECT_LT(size({"-c", "1024", "-md", draft, "-ctkd", "q8_0"})->beside, beside->beside);
    EXPECT_LT(size({"-c", "1024", "-md", draft, "-ngld", "all"})->beside, beside->beside);
    EXPECT_EQ(size({"-c", "1024", "-ngl", "all", "-md", draft})->beside, beside->beside) << "a choice of its own";
    EXPECT_EQ(size({"-c", "1024"}, {{"LLAMA_ARG_SPEC_DRAFT_MODEL", draft}})->beside, beside->beside);
    EXPECT_FALSE(size({"-md", folder_.path("missing.gguf")}));
}

TEST_F(SizingTest, WeightsThatAreKeptSeveralTimesCountThatOften) {
    auto engine = policies::parse_engine(
        "programs: [mirrored]\noptions:\n  numa: {flags: [--numa], copies: {mirror: 2, all: 3}}\n"
        "  twice: {flags: [--twice], copies: {'*': 4}}\n  both: {env: BOTH, copies: {'1': 2}}\n",
        "fork.yaml");
    ASSERT_TRUE(engine) << engine.error().detail;
    policies::Library library;
    library.engines["fork"] = *engine;
    const auto weights = [&](Argv words, const Env& env = {}) {
        words.insert(words.begin(), "mirrored");
        const auto sizing = size_model(library, file_, words, env, false);
        EXPECT_TRUE(sizing) << sizing.error().detail;
        return sizing ? sizing->need.weights : 0;
    };
    EXPECT_EQ(weights({}), 8192U);
    EXPECT_EQ(weights({"--numa", "mirror"}), 2 * 8192U);
    EXPECT_EQ(weights({"--numa", "distribute"}), 8192U);
    EXPECT_EQ(weights({"--numa", "mirror", "--numa", "all"}), 3 * 8192U) << "the last one counts";
    EXPECT_EQ(weights({"--numa", "mirror", "--twice"}), 4 * 8192U) << "the most";
    EXPECT_EQ(weights({}, {{"BOTH", "1"}}), 2 * 8192U);
    EXPECT_EQ(weights({}, {{"BOTH", "0"}}), 8192U);
}

TEST_F(SizingTest, ACachesTypeThatOnlyAForkKnowsIsNoError) {
    const auto sizing = size({"-ctk", "q8_KV"});
    ASSERT_TRUE(sizing) << sizing.error().detail;
    EXPECT_EQ(sizing->settings.key_type, 1U);
    EXPECT_THAT(sizing->notes, Contains(HasSubstr("q8_KV is not known here")));
}

TEST_F(SizingTest, IkLlamaIsAskedForItsContext) {
    const auto cache = [&](const Argv& more) {
        Argv words{"/opt/ik_llama.cpp/build/bin/llama-server", "-m", file_};
        words.insert(words.end(), more.begin(), more.end());
        const auto sizing = size_model(shipped(), file_, words, {}, true);
        EXPECT_TRUE(sizing) << sizing.error().detail;
        EXPECT_EQ(sizing->least(), sizing->most());  // it decides nothing itself
        return sizing->need;
    };
    EXPECT_EQ(cache({"-c", "4096"}).cache, size({"-c", "4096"})->need.cache);
    EXPECT_EQ(cache({"-c", "4096", "-ngl", "99", "-ot", "blk=CPU"}).weights,
              size({"-c", "4096", "-ngl", "99", "-ot", "blk=CPU"})->need.weights);
}

TEST_F(SizingTest, WhatIsRepackedIsInMemoryOnce) {
    EXPECT_EQ(size({"--no-repack"})->need.weights, size({})->need.weights);
    const auto repacked =
        size_model(shipped(), file_, {"/opt/ik_llama.cpp/build/bin/llama-server", "-m", file_, "-rtr"}, {}, false);
    ASSERT_TRUE(repacked);
    EXPECT_EQ(repacked->need.weights, 8192U);
}

TEST_F(SizingTest, WhatCannotBeUnderstoodIsNamed) {
    for (const auto& words : {Argv{"-c", "lots"}, Argv{"-ngl", "many"}, Argv{"-ot", "(((=CPU"}}) {
        const auto sizing = size(words);
        ASSERT_FALSE(sizing);
        EXPECT_EQ(sizing.error().code, model::Errc::invalid_request);
        EXPECT_THAT(sizing.error().detail, HasSubstr(words[1].substr(0, words[1].find('='))));
    }
}

}  // namespace
}  // namespace numalease::client
