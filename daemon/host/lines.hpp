#pragma once

#include <string_view>
#include <vector>

namespace numalease::host {

/// The lines of a kernel file, without their newlines. Views into `text`.
std::vector<std::string_view> lines_of(std::string_view text);

/// The words of a line, split at blanks, tabs and newlines. Views into `text`.
std::vector<std::string_view> words_of(std::string_view text);

}  // namespace numalease::host
