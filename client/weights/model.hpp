#pragma once

#include <string>
#include <vector>

#include "weights/gguf.hpp"

namespace numalease::weights {

/// A model on disk: one file, or all parts of a split one (NAME-00001-of-00003.gguf), whichever is named.
struct Model {
    std::string file;                ///< as named
    std::vector<std::string> files;  ///< what is read when it loads
    Gguf header;                     ///< of the first part, with the tensors of all
    model::Bytes stored = 0;         ///< the files' sizes
};

/// Errors: unreadable, naming the file or the part that is missing or wrong.
model::Result<Model> read_model(const std::string& file);

}  // namespace numalease::weights
