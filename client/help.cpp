#include "client/help.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <sstream>

namespace numalease::client {

namespace {

constexpr std::size_t kWidth = 80;

/// Characters, not bytes: what is not the second or later byte of one.
std::size_t length(std::string_view text) {
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }));
}

/// CLI11 indents what follows a newline of a description, and breaks no line itself.
class Narrow : public CLI::Formatter {
public:
    std::string make_option_desc(const CLI::Option* option) const override {
        return wrapped(CLI::Formatter::make_option_desc(option), kWidth - get_column_width());
    }

    std::string make_subcommand(const CLI::App* verb) const override {
        std::ostringstream out;
        CLI::detail::format_help(out, verb->get_display_name(true),
                                 wrapped(verb->get_description(), kWidth - get_column_width()), get_column_width());
        return out.str();
    }
};

}  // namespace

std::string wrapped(std::string_view text, std::size_t width) {
    std::istringstream words{std::string(text)};
    std::string out;
    std::size_t column = 0;
    for (std::string word; words >> word;) {
        const auto size = length(word);
        const bool fits = column + 1 + size <= width;
        if (!out.empty()) out += fits ? ' ' : '\n';
        column = out.empty() || !fits ? size : column + 1 + size;
        out += word;
    }
    return out;
}

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<Narrow>(); }

}  // namespace numalease::client
