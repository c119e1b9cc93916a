#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace CLI {
class FormatterBase;
}

namespace numalease::client {

/// The text in lines of at most `width` characters, broken at blanks. A longer word has a line of its own.
std::string wrapped(std::string_view text, std::size_t width);

/// Writes --help in 80 columns.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace numalease::client
