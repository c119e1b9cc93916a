#pragma once

#include <string>

#include "model/units.hpp"

namespace numalease::client {

/// What a model needs in memory, from its file: its size and 10 % for the KV cache and buffers. Of a split model
/// (NAME-00001-of-00003.gguf) all parts count, whichever is named.
/// Errors: unreadable, naming the file or the part that is missing.
model::Result<model::Bytes> model_memory(const std::string& file);

}  // namespace numalease::client
