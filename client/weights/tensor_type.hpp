#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "model/units.hpp"

namespace numalease::weights {

/// How ggml stores one type of tensor: `block` elements in `bytes` bytes.
struct TensorType {
    std::uint32_t number = 0;
    std::string_view name;  ///< as -ctk takes it and llama.cpp prints it
    std::uint32_t block = 1;
    std::uint32_t bytes = 0;
};

/// Nothing for a number that is not known: newer than this table, or ik_llama.cpp's own.
/// Source: ggml.h, ggml-common.h of llama.cpp v0.4.0.
std::optional<TensorType> tensor_type(std::uint32_t number);
/// By name, in any case: "q8_0", "F16".
std::optional<TensorType> tensor_type(std::string_view name);

/// Bytes of `elements` in a row of this type; rows that are no whole number of blocks are rounded up.
model::Bytes row_bytes(const TensorType& type, std::uint64_t elements);

}  // namespace numalease::weights
