#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/gguf.hpp"

namespace numalease::weights {

/// What one layer keeps of the tokens that it has seen.
struct Layer {
    bool attention = false;
    bool window = false;        ///< of the last tokens only
    std::uint64_t key = 0;      ///< elements a token
    std::uint64_t value = 0;    ///< elements a token
    std::uint64_t indexer = 0;  ///< elements a token, of sparse attention's index
    std::uint64_t state = 0;    ///< elements a sequence, however long: recurrent layers
};

/// The parts of a model's description that decide what its context takes.
struct Layers {
    std::string architecture;
    std::uint64_t context = 0;  ///< tokens it was trained for
    std::uint64_t window = 0;   ///< tokens
    std::uint64_t embedding = 0;
    std::uint64_t feed_forward = 0;
    std::uint64_t vocabulary = 0;
    std::vector<Layer> layers;
    std::vector<std::string> notes;  ///< what could not be known, one line each
};

/// Errors: unreadable, where a model without these figures cannot be sized.
/// Source: llama.cpp v0.4.0, llama-hparams.cpp and the architectures' own load_arch_hparams.
model::Result<Layers> read_layers(const Gguf& header, const std::string& file);

}  // namespace numalease::weights
