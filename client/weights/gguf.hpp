#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/units.hpp"

namespace numalease::weights {

/// One tensor of a file.
struct Tensor {
    std::string name;
    std::uint32_t type = 0;
    std::uint64_t rows = 0;  ///< of `width` elements
    std::uint64_t width = 0;
    model::Bytes offset = 0;  ///< from the start of the data
    model::Bytes bytes = 0;   ///< as stored; of a type that is not known: up to the next tensor
};

/// What the header of a GGUF file says. Of its metadata what is a number, a short text, or the length of an array.
struct Gguf {
    std::uint32_t version = 0;
    std::map<std::string, std::vector<std::int64_t>, std::less<>> numbers;  ///< arrays of at most kMaxKept numbers too
    std::map<std::string, std::string, std::less<>> texts;
    std::map<std::string, std::uint64_t, std::less<>> lengths;  ///< of arrays
    std::vector<Tensor> tensors;
    model::Bytes file = 0;  ///< size of the file
    bool has_unknown_type = false;

    /// The number under `key`, or the first of an array.
    [[nodiscard]] std::uint64_t number(std::string_view key, std::uint64_t fallback = 0) const;
};

inline constexpr std::uint64_t kMaxKeys = 65'536;
inline constexpr std::uint64_t kMaxTensors = 262'144;  ///< of all parts together
inline constexpr std::uint64_t kMaxKept = 4'096;
inline constexpr model::Bytes kMaxHeader = 256 * model::kMiB;

/// Reads the header of one file: versions 2 and 3, little-endian. Memory and time are bounded by the limits above,
/// whatever the file says.
/// Errors: unreadable, naming the file and what is wrong with it: no GGUF, truncated, beyond a limit.
/// Source: docs/gguf.md of ggml.
model::Result<Gguf> read_gguf(const std::string& file);

/// True where the file begins as a GGUF does. Errors: unreadable.
model::Result<bool> is_gguf(const std::string& file);

}  // namespace numalease::weights
