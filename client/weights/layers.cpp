#include "weights/layers.hpp"

#include <algorithm>
#include <array>
#include <optional>

namespace numalease::weights {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::uint64_t kMaxLayers = 4'096;
/// Nothing real is larger; products of a few of these fit 64 bits.
constexpr std::uint64_t kMaxFigure = 1U << 24U;

/// Every how many layers one sees all tokens, where the file does not say it itself.
struct Pattern {
    std::string_view architecture;
    std::uint64_t period = 0;
    bool full_first = false;   ///< the first of each period is the one, else the last
    std::uint64_t window = 0;  ///< where the file does not say that either
};
constexpr std::array kPatterns{
    Pattern{"gemma2", 2},     Pattern{"gemma3", 6},
    Pattern{"gemma3n", 5},    Pattern{"gemma-embedding", 6},
    Pattern{"gpt-oss", 2},    Pattern{"cohere2", 4},
    Pattern{"olmo2", 4},      Pattern{"exaone4", 4},
    Pattern{"exaone-moe", 4}, Pattern{"smallthinker", 4, true},
    Pattern{"afmoe", 4},      Pattern{"llama4", 4, false, 8192},
};
/// They have a window in their files that llama.cpp does not use.
constexpr std::array<std::string_view, 4> kNoWindow{"phi3", "phimoe", "qwen2", "qwen2moe"};

class Reader {
public:
    Reader(const Gguf& header, Layers& out) : header_(header), out_(out) {}

    bool read() {
        const auto architecture = header_.texts.find("general.architecture");
        if (architecture == header_.texts.end()) return false;
        out_.architecture = architecture->second;
        const auto count = figure("block_count");
        if (count == 0 || count > kMaxLayers) return false;
        out_.context = figure("context_length");
        out_.embedding = figure("embedding_length");
        const auto vocabulary = header_.lengths.find("tokenizer.ggml.tokens");
        out_.vocabulary =
            std::min(kMaxFigure, vocabulary == header_.lengths.end() ? figure("vocab_size") : vocabulary->second);
        // Layers that guess the next tokens are loaded only on request.
        const auto guessing = figure("nextn_predict_layers");
        out_.layers.resize(count - std::min(count - 1, guessing));
        for (std::uint64_t i = 0; i < out_.layers.size(); ++i)
            out_.feed_forward = std::max(out_.feed_forward, of_layer("feed_forward_length", i));
        read_windows();
        for (std::uint64_t i = 0; i < out_.layers.size(); ++i) read_layer(i);
        leave_out_shared();
        return true;
    }

private:
    [[nodiscard]] const std::vector<std::int64_t>* find(std::string_view key) const {
        const auto found = header_.numbers.find(out_.architecture + "." + std::string(key));
        return found == header_.numbers.end() || found->second.empty() ? nullptr : &found->second;
    }
    [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

    /// Figures are bounded, so that what is computed from them is a number too.
    [[nodiscard]] std::uint64_t of_layer(std::string_view key, std::uint64_t layer, std::uint64_t fallback = 0) const {
        const auto* values = find(key);
        if (values == nullptr) return fallback;
        const auto value = values->size() == 1 ? values->front() : layer < values->size() ? (*values)[layer] : 0;
        return value < 0 ? 0 : std::min(kMaxFigure, static_cast<std::uint64_t>(value));
    }
    [[nodiscard]] std::uint64_t figure(std::string_view key, std::uint64_t fallback = 0) const {
        return of_layer(key, 0, fallback);
    }

    void read_windows() {
        const auto pattern = std::ranges::find(kPatterns, out_.architecture, &Pattern::architecture);
        const bool known = pattern != kPatterns.end();
        const auto window = figure("attention.sliding_window", known ? pattern->window : 0);
        const auto* said = find("attention.sliding_window_pattern");
        if (window == 0 || std::ranges::find(kNoWindow, out_.architecture) != kNoWindow.end()) return;
        if (said == nullptr && !known) {
            out_.notes.push_back("the file does not say which layers see only the last " + std::to_string(window) +
                                 " tokens: all are counted as seeing the whole context");
            return;
        }
        out_.window = window;
        const auto period = said != nullptr && said->size() == 1 ? figure("attention.sliding_window_pattern")
                            : known                              ? pattern->period
                                                                 : 0;
        for (std::uint64_t i = 0; i < out_.layers.size(); ++i) {
            auto& is = out_.layers[i].window;
            if (said != nullptr && said->size() > 1)
                is = of_layer("attention.sliding_window_pattern", i) != 0;
            else if (known && pattern->full_first)
                is = period == 0 || i % period != 0;
            else
                is = period == 0 || i % period < period - 1;
        }
    }

    [[nodiscard]] bool is_recurrent(std::uint64_t layer) const {
        if (!has("ssm.conv_kernel") && !has("wkv.head_size") && !has("shortconv.l_cache")) return false;
        if (has("attention.recurrent_layers")) return of_layer("attention.recurrent_layers", layer) != 0;
        if (out_.architecture == "falcon-h1" || !has("attention.head_count")) return true;
        if (const auto interval = figure("full_attention_interval"); interval != 0) return (layer + 1) % interval != 0;
        // qwen3next and its kin, where the file does not say it.
        constexpr std::uint64_t kInterval = 4;
        if (out_.architecture.starts_with("qwen3")) return (layer + 1) % kInterval != 0;
        if (of_layer("attention.head_count_kv", layer, of_layer("attention.head_count", layer)) != 0) return false;
        const auto* feed_forward = find("feed_forward_length");
        // nemotron_h: a layer of neither kind is a feed-forward one.
        return feed_forward == nullptr || feed_forward->size() == 1 || of_layer("feed_forward_length", layer) == 0;
    }

    [[nodiscard]] std::uint64_t state_of_recurrent(std::uint64_t layer) const {
        if (const auto head = figure("wkv.head_size"); head != 0) {  // RWKV
            constexpr std::uint64_t kTokenShifts = 2;
            return out_.embedding * (figure("token_shift_count", kTokenShifts) + head);
        }
        if (const auto cache = figure("shortconv.l_cache"); cache != 0) return out_.embedding * (cache - 1);  // LFM2
        const auto kernel = figure("ssm.conv_kernel");
        const auto before = kernel == 0 ? 0 : kernel - 1;
        if (const auto head = figure("kda.head_dim"); head != 0) {  // Kimi Linear
            const auto heads = of_layer("attention.head_count", layer);
            return 3 * before * heads * head + heads * head * head;
        }
        const auto inner = figure("ssm.inner_size");
        const auto state = figure("ssm.state_size");
        return before * (inner + 2 * figure("ssm.group_count") * state) + state * inner;
    }

    void read_layer(std::uint64_t index) {
        auto& layer = out_.layers[index];
        const bool recurrent = is_recurrent(index);
        if (recurrent) layer.state = state_of_recurrent(index);
        if (recurrent && out_.architecture != "falcon-h1") return;
        const auto heads = of_layer("attention.head_count", index);
        const auto kv_heads = of_layer("attention.head_count_kv", index, heads);
        layer.attention = kv_heads != 0;
        // As llama.cpp has it: the first layer's heads decide, where the file does not say a head's size.
        const auto first = std::max<std::uint64_t>(1, figure("attention.head_count"));
        auto key = figure("attention.key_length", out_.embedding / first);
        auto value = figure("attention.value_length", out_.embedding / first);
        if (layer.window) {
            key = figure("attention.key_length_swa", key);
            value = figure("attention.value_length_swa", value);
        }
        layer.key = key * kv_heads;
        // Multi-head latent attention: the values are part of the keys.
        layer.value = has("attention.key_length_mla") ? 0 : value * kv_heads;
        layer.indexer = figure("attention.indexer.key_length");
    }

    /// The last layers of gemma3n and gemma4 use the caches of those before.
    void leave_out_shared() {
        const auto shared = std::min<std::uint64_t>(figure("attention.shared_kv_layers"), out_.layers.size());
        for (auto i = out_.layers.size() - shared; i < out_.layers.size(); ++i) out_.layers[i].attention = false;
    }

    const Gguf& header_;
    Layers& out_;
};

}  // namespace

Result<Layers> read_layers(const Gguf& header, const std::string& file) {
    Layers out;
    if (!Reader(header, out).read())
        return fail(Errc::unreadable, "model " + file + " says neither an architecture nor how many layers it has");
    return out;
}

}  // namespace numalease::weights
