#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weights/layers.hpp"
#include "weights/model.hpp"
#include "weights/tensor_type.hpp"

namespace numalease::weights {

/// What the engine was told that decides how much memory it takes.
struct Settings {
    std::uint64_t context = 0;   ///< tokens, of all sequences together; 0: what the model was trained for
    std::uint64_t slots = 1;     ///< sequences at a time
    bool unified = false;        ///< one cache for all of them
    std::uint32_t key_type = 1;  ///< of the cache, as TensorType::number
    std::uint32_t value_type = 1;
    std::uint64_t ubatch = 512;    ///< tokens computed at a time
    bool full_windows = false;     ///< layers with a window keep everything too
    std::uint64_t gpu_layers = 0;  ///< the last layers, and what comes behind them as one more
    bool cache_on_host = false;    ///< also of layers on a GPU
    /// Where tensors go whose name matches: the first that does counts. True: into main memory.
    std::vector<std::pair<std::string, bool>> overrides;
};

/// Main memory, in bytes.
struct Need {
    model::Bytes weights = 0;
    model::Bytes cache = 0;      ///< KV cache and recurrent states
    model::Bytes allowance = 0;  ///< for compute buffers: a guess, not read from the file
    model::Bytes on_gpu = 0;     ///< weights that go elsewhere
    std::uint64_t context = 0;   ///< tokens that `cache` is for

    [[nodiscard]] model::Bytes total() const { return sum(sum(weights, cache), allowance); }
    /// The largest number there is where the sum is none.
    static model::Bytes sum(model::Bytes a, model::Bytes b);
};

/// Errors: invalid_request, where an override is no regular expression.
model::Result<Need> need_of(const Model& model, const Layers& layers, const Settings& settings);

}  // namespace numalease::weights
