#pragma once

#include <unistd.h>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

/// GGUF files byte by byte, for tests.
namespace numalease::test {

template <class T>
std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
}
inline std::string raw_text(const std::string& text) { return raw(std::uint64_t{text.size()}) + text; }

inline std::string text_key(const std::string& key, const std::string& value) {
    return raw_text(key) + raw(std::uint32_t{8}) + raw_text(value);
}
inline std::string number_key(const std::string& key, std::uint32_t value) {
    return raw_text(key) + raw(std::uint32_t{4}) + raw(value);
}
inline std::string array_key(const std::string& key, const std::vector<std::uint32_t>& values) {
    auto out = raw_text(key) + raw(std::uint32_t{9}) + raw(std::uint32_t{4}) + raw(std::uint64_t{values.size()});
    for (const auto value : values) out += raw(value);
    return out;
}
inline std::string tensor_info(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
                               std::uint64_t offset) {
    auto out = raw_text(name) + raw(static_cast<std::uint32_t>(shape.size()));
    for (const auto side : shape) out += raw(side);
    return out + raw(type) + raw(offset);
}

/// Magic, version, counts, keys, tensors, padding, and `data` bytes.
inline std::string gguf_bytes(const std::vector<std::string>& keys, const std::vector<std::string>& tensors,
                              std::size_t data, std::uint32_t version = 3) {
    auto out = "GGUF" + raw(version) + raw(std::uint64_t{tensors.size()}) + raw(std::uint64_t{keys.size()});
    for (const auto& key : keys) out += key;
    for (const auto& tensor : tensors) out += tensor;
    constexpr std::size_t kAlignment = 32;
    out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment);
    return out + std::string(data, 'w');
}

/// Two layers of a small llama: 8 KiB of weights.
inline std::string small_model() {
    return gguf_bytes(
        {text_key("general.architecture", "llama"), number_key("llama.block_count", 2),
         number_key("llama.embedding_length", 64), number_key("llama.context_length", 1024),
         number_key("llama.attention.head_count", 4), array_key("llama.attention.head_count_kv", {2, 0})},
        {tensor_info("token_embd.weight", {64, 16}, 0, 0), tensor_info("blk.0.ffn_up.weight", {64, 16}, 1, 4096),
         tensor_info("blk.1.ffn_up.weight", {64, 16}, 1, 6144)},
        8192);
}

/// A folder of its own that goes with the test.
class ModelFolder {
public:
    ModelFolder() : path_(std::filesystem::temp_directory_path() / ("numa-lease-weights-" + std::to_string(getpid()))) {
        std::filesystem::create_directories(path_);
    }
    ~ModelFolder() { std::filesystem::remove_all(path_); }
    ModelFolder(const ModelFolder&) = delete;
    ModelFolder& operator=(const ModelFolder&) = delete;

    [[nodiscard]] std::string path(const std::string& name) const { return path_ / name; }
    std::string put(const std::string& name, const std::string& bytes) const {
        std::ofstream(path(name), std::ios::binary) << bytes;
        return path(name);
    }

private:
    std::filesystem::path path_;
};

}  // namespace numalease::test
