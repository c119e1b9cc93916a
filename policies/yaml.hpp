#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "model/error.hpp"

namespace numalease::policies {

inline constexpr std::size_t kMaxFileBytes = 1'048'576;
inline constexpr std::size_t kMaxDepth = 64;
inline constexpr std::size_t kMaxNodes = 10'000;

/// A place in a file.  Units: lines and columns count from 1.
struct Position {
    int line = 1;
    int column = 1;
};

/// One value of a YAML document. Of YAML only maps, lists and plain text are used: no aliases, anchors or tags.
struct Item {
    enum class Kind { null, text, list, map };
    Kind kind = Kind::null;
    Position at;
    std::string key;  ///< under which it stands in a map
    Position key_at;
    std::string text;         ///< kind text
    std::vector<Item> items;  ///< kinds list and map, in the order of the file
};

/// "FILE:LINE:COLUMN: what".
std::unexpected<model::Error> fail_at(std::string_view file, Position at, const std::string& what);

/// Every line is empty or a comment, as in a file that the package ships.
bool says_nothing(const std::string& text);

/// Reads one document. Limits are enforced while the parser runs, before anything of that size is built.
/// Errors: unreadable, for everything that is not one document of maps, lists and text within the limits.
model::Result<Item> read_yaml(const std::string& text, std::string_view file);

}  // namespace numalease::policies
