#include "host/lines.hpp"

#include <algorithm>

namespace numalease::host {

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const auto end = std::min(text.find('\n'), text.size());
        lines.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

std::vector<std::string_view> words_of(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\n";
    std::vector<std::string_view> words;
    while (true) {
        const auto first = text.find_first_not_of(kBlanks);
        if (first == std::string_view::npos) return words;
        text.remove_prefix(first);
        const auto end = std::min(text.find_first_of(kBlanks), text.size());
        words.push_back(text.substr(0, end));
        text.remove_prefix(end);
    }
}

}  // namespace numalease::host
