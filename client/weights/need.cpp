#include "weights/need.hpp"

#include <algorithm>
#include <regex>

namespace numalease::weights {

using model::Bytes;
using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::uint64_t kPad = 256;                 ///< caches are whole multiples of this
constexpr std::uint64_t kMaxContext = 1ULL << 31U;  ///< llama.cpp counts tokens with 32 bits

Bytes product(Bytes a, Bytes b) {
    Bytes out = 0;
    return __builtin_mul_overflow(a, b, &out) ? UINT64_MAX : out;
}

std::uint64_t padded(std::uint64_t tokens) { return (tokens + kPad - 1) / kPad * kPad; }

Bytes bytes_of(std::uint32_t type, std::uint64_t elements) {
    constexpr std::uint32_t kF16 = 1;
    const auto known = tensor_type(type);
    return row_bytes(known ? *known : *tensor_type(kF16), elements);
}

/// "blk.12.ffn_up.weight": 12. Others belong to no layer.
std::optional<std::uint64_t> layer_of(std::string_view tensor) {
    constexpr std::string_view kBlock = "blk.";
    constexpr std::uint64_t kMost = 100'000;
    if (!tensor.starts_with(kBlock)) return std::nullopt;
    tensor.remove_prefix(kBlock.size());
    const auto number = model::parse_unsigned(tensor.substr(0, tensor.find('.')), "layer", kMost);
    return number ? std::optional(*number) : std::nullopt;
}

/// Is this layer on a GPU? `count`: what comes behind the last layer. Source: llama_model::load_tensors.
bool is_on_gpu(std::uint64_t layer, std::uint64_t count, std::uint64_t gpu_layers) {
    return layer + gpu_layers >= count + 1;
}

Result<std::vector<std::pair<std::regex, bool>>> compile(const std::vector<std::pair<std::string, bool>>& overrides) {
    std::vector<std::pair<std::regex, bool>> out;
    for (const auto& [pattern, host] : overrides) {
        try {
            out.emplace_back(std::regex(pattern), host);
        } catch (const std::regex_error&) {
            return fail(Errc::invalid_request, "'" + pattern + "' is no regular expression");
        }
    }
    return out;
}

Result<void> add_weights(Need& out, const Model& model, std::uint64_t count, const Settings& settings) {
    constexpr std::size_t kLongest = 256;  // std::regex recurses by the length of what it looks at
    const auto overrides = compile(settings.overrides);
    if (!overrides) return std::unexpected(overrides.error());
    for (const auto& tensor : model.header.tensors) {
        const auto layer = layer_of(tensor.name);
        // Embeddings are looked up by the CPU; the output is one more layer.
        const bool input = !layer && !tensor.name.starts_with("output");
        bool gpu = !input && is_on_gpu(layer.value_or(count), count, settings.gpu_layers);
        if (tensor.name.size() <= kLongest)
            for (const auto& [pattern, host] : *overrides)
                if (std::regex_search(tensor.name, pattern)) {
                    gpu = !host;
                    break;
                }
        auto& where = gpu ? out.on_gpu : out.weights;
        where = Need::sum(where, tensor.bytes);
    }
    // One matrix for the words in and out is on both sides.
    const auto named = [&model](std::string_view name) {
        return std::ranges::find(model.header.tensors, name, &Tensor::name);
    };
    const auto words = named("token_embd.weight");
    if (words != model.header.tensors.end() && named("output.weight") == model.header.tensors.end() &&
        is_on_gpu(count, count, settings.gpu_layers))
        out.on_gpu = Need::sum(out.on_gpu, words->bytes);
    return {};
}

Bytes cache_of(const Layers& layers, const Settings& settings, std::uint64_t context) {
    const auto sequences = std::clamp<std::uint64_t>(settings.slots, 1, kPad);
    const auto streams = settings.unified ? 1 : sequences;
    const auto cells = padded(std::max<std::uint64_t>(1, context / streams));
    const auto seen = layers.window * (settings.unified ? sequences : 1) + settings.ubatch;
    const auto window_cells = settings.full_windows ? cells : padded(std::min(cells, seen));
    Bytes out = 0;
    for (std::uint64_t i = 0; i < layers.layers.size(); ++i) {
        const auto& layer = layers.layers[i];
        if (is_on_gpu(i, layers.layers.size(), settings.gpu_layers) && !settings.cache_on_host) continue;
        out = Need::sum(out, product(layer.state, sizeof(float) * sequences));
        if (!layer.attention) continue;
        const auto token = bytes_of(settings.key_type, layer.key) + bytes_of(settings.value_type, layer.value) +
                           bytes_of(settings.key_type, layer.indexer);
        out = Need::sum(out, product(streams * (layer.window ? window_cells : cells), token));
    }
    return out;
}

/// The largest intermediate results of one step: the scores of every word, a layer's inside, and the attention mask.
Bytes allowance_of(const Layers& layers, const Settings& settings, std::uint64_t context) {
    constexpr Bytes kBase = 32 * model::kMiB;
    constexpr std::uint64_t kTimes = 4;  // a layer's inputs and outputs, and what lies between
    const auto inside = kTimes * layers.embedding + 2 * layers.feed_forward;
    return kBase + settings.ubatch * sizeof(float) * (layers.vocabulary + inside + context / 2);
}

}  // namespace

Bytes Need::sum(Bytes a, Bytes b) {
    Bytes out = 0;
    return __builtin_add_overflow(a, b, &out) ? UINT64_MAX : out;
}

Result<Need> need_of(const Model& model, const Layers& layers, const Settings& settings) {
    Need out;
    auto bounded = settings;
    bounded.ubatch = std::min(bounded.ubatch, kMaxContext);
    const auto context = settings.context != 0 ? settings.context : layers.context;
    out.context = std::clamp<std::uint64_t>(context, 1, kMaxContext);
    if (const auto added = add_weights(out, model, layers.layers.size(), bounded); !added)
        return std::unexpected(added.error());
    out.cache = cache_of(layers, bounded, out.context);
    out.allowance = allowance_of(layers, bounded, out.context);
    return out;
}

}  // namespace numalease::weights
