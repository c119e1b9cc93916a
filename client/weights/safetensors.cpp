#include "weights/safetensors.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "weights/source.hpp"

namespace numalease::weights {

using model::Bytes;
using model::Errc;
using model::fail;
using model::Result;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr Bytes kMaxHeader = 100'000'000;
constexpr std::size_t kMaxFiles = 4096;
constexpr int kMaxDepth = 16;

/// Deeper than any of these files is: the parser, and what frees its result, would go down level by level.
bool is_shallow(const std::string& text) {
    int depth = 0;
    bool quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted) {
            if (c == '\\') ++i;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > kMaxDepth) return false;
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
    return true;
}

Result<Json> parse(const std::string& text, const std::string& file) {
    auto json = is_shallow(text) ? Json::parse(text, nullptr, false) : Json(Json::value_t::discarded);
    if (json.is_discarded() || !json.is_object())
        return fail(Errc::unreadable, "model " + file + " has a description that is no JSON object");
    return json;
}

Result<Json> read_json(const std::string& file) {
    auto source = Source::open(file);
    if (!source) return std::unexpected(source.error());
    if (source->size() > kMaxHeader) return fail(Errc::unreadable, "model " + file + " is too large to be read");
    std::string text(source->size(), '\0');
    if (!source->read(text.data(), text.size())) return fail(Errc::unreadable, "model " + file + " cannot be read");
    return parse(text, file);
}

std::uint64_t number(const Json& json, const char* key, std::uint64_t fallback = 0) {
    constexpr std::uint64_t kMost = 1U << 24U;
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned()) return fallback;
    return std::min(kMost, found->get<std::uint64_t>());
}

/// u64 length, JSON of that length: {"NAME": {"dtype": …, "shape": […], "data_offsets": [FROM, TO]}, …}
Result<void> add_file(const std::string& file, Model& out) {
    auto source = Source::open(file);
    if (!source) return std::unexpected(source.error());
    std::uint64_t length = 0;
    if (!source->read(&length, sizeof length) || length > source->size() - sizeof length)
        return fail(Errc::unreadable, "model " + file + " is truncated, or no safetensors file");
    if (length > kMaxHeader) return fail(Errc::unreadable, "model " + file + " has a header of more than 100 MB");
    std::string text(length, '\0');
    if (!source->read(text.data(), text.size())) return fail(Errc::unreadable, "model " + file + " cannot be read");
    const auto header = parse(text, file);
    if (!header) return std::unexpected(header.error());
    const auto data = source->size() - source->offset();
    for (const auto& [name, tensor] : header->items()) {
        if (name == "__metadata__") continue;
        const auto offsets = tensor.is_object() ? tensor.find("data_offsets") : tensor.end();
        if (!tensor.is_object() || offsets == tensor.end() || !offsets->is_array() || offsets->size() != 2 ||
            !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned())
            return fail(Errc::unreadable, "model " + file + " has a tensor without a place");
        const auto from = (*offsets)[0].get<std::uint64_t>();
        const auto to = (*offsets)[1].get<std::uint64_t>();
        if (from > to || to > data)
            return fail(Errc::unreadable, "model " + file + " is truncated: a tensor ends behind its end");
        if (out.header.tensors.size() == kMaxTensors)
            return fail(Errc::unreadable, "model " + file + " has too many tensors");
        out.header.tensors.push_back({.name = name, .offset = from, .bytes = to - from});
    }
    out.files.push_back(file);
    out.stored += source->size();
    return {};
}

Result<std::set<std::string>> files_of_index(const fs::path& index) {
    const auto json = read_json(index);
    if (!json) return std::unexpected(json.error());
    std::set<std::string> out;
    const auto map = json->find("weight_map");
    if (map == json->end() || !map->is_object())
        return fail(Errc::unreadable, "model " + index.string() + " has no weight_map");
    for (const auto& [tensor, file] : map->items()) {
        const auto name = file.is_string() ? file.get<std::string>() : "";
        // A shard is beside its index, wherever the text points.
        if (name.empty() || name.find('/') != std::string::npos)
            return fail(Errc::unreadable, "model " + index.string() + " names a shard that is no file beside it");
        out.insert(index.parent_path() / name);
    }
    return out;
}

Result<std::set<std::string>> files_of(const fs::path& path) {
    std::error_code error;
    if (path.extension() == ".json") return files_of_index(path);
    if (!fs::is_directory(path, error)) return std::set<std::string>{path};
    const auto index = path / "model.safetensors.index.json";
    if (fs::exists(index, error)) return files_of_index(index);
    std::set<std::string> out;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
        if (it->path().extension() == ".safetensors") out.insert(it->path());
    if (error || out.empty())
        return fail(Errc::unreadable, "model " + path.string() + ": no *.safetensors in that folder", error.value());
    return out;
}

Layers layers_of(const Json& config) {
    Layers out;
    const auto type = config.find("model_type");
    out.architecture = type != config.end() && type->is_string() ? type->get<std::string>() : "unknown";
    out.context = number(config, "max_position_embeddings");
    out.embedding = number(config, "hidden_size");
    out.feed_forward = number(config, "intermediate_size");
    out.vocabulary = number(config, "vocab_size");
    constexpr std::uint64_t kMaxLayers = 4096;
    const auto heads = std::max<std::uint64_t>(1, number(config, "num_attention_heads"));
    const auto width = number(config, "num_key_value_heads", heads) * number(config, "head_dim", out.embedding / heads);
    const auto latent = number(config, "kv_lora_rank");
    const Layer layer{.attention = true,
                      .key = latent != 0 ? latent + number(config, "qk_rope_head_dim") : width,
                      .value = latent != 0 ? 0 : width};
    out.layers.assign(std::min(kMaxLayers, number(config, "num_hidden_layers")), layer);
    return out;
}

}  // namespace

bool is_safetensors(const std::string& path) {
    std::error_code error;
    return path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json") || fs::is_directory(path, error);
}

Result<Safetensors> read_safetensors(const std::string& path) {
    Safetensors out;
    out.model.file = path;
    const auto files = files_of(path);
    if (!files) return std::unexpected(files.error());
    if (files->size() > kMaxFiles) return fail(Errc::unreadable, "model " + path + " has too many parts");
    for (const auto& file : *files)
        if (auto added = add_file(file, out.model); !added) return std::unexpected(added.error());
    std::error_code error;
    const auto folder = fs::is_directory(path, error) ? fs::path(path) : fs::path(path).parent_path();
    if (const auto config = read_json(folder / "config.json")) out.layers = layers_of(*config);
    return out;
}

}  // namespace numalease::weights
