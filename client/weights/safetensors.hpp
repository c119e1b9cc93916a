#pragma once

#include <string>

#include "weights/layers.hpp"
#include "weights/model.hpp"

namespace numalease::weights {

/// What a model in safetensors form is, as vLLM and SGLang load it.
struct Safetensors {
    Model model;    ///< header.tensors has no more than names and sizes
    Layers layers;  ///< from config.json; empty without one
};

/// `path`: a folder, its model.safetensors.index.json, or one file. Of a folder the shards that its index names, else
/// every *.safetensors in it. A header of more than 100 MB is refused, as the format's own library does.
/// Errors: unreadable, naming the file.  Source: the safetensors format's README; transformers' config.json.
model::Result<Safetensors> read_safetensors(const std::string& path);

/// True for what the function above reads: by name, or a folder.
bool is_safetensors(const std::string& path);

}  // namespace numalease::weights
