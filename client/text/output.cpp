#include "text/output.hpp"

#include <pwd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "model/units.hpp"

namespace numalease::client {

using model::Dict;
using model::Value;
using nlohmann::json;

namespace {

/// Length of the UTF-8 sequence at the front of `text`, 0 where it is none, overlong, or a C1 control character.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned first = byte(0);
    const std::size_t length = first < 0x80   ? 1
                               : first < 0xc2 ? 0
                               : first < 0xe0 ? 2
                               : first < 0xf0 ? 3
                               : first < 0xf5 ? 4
                                              : 0;
    if (length == 0 || length > text.size()) return 0;
    for (std::size_t i = 1; i < length; ++i)
        if ((byte(i) & 0xc0U) != 0x80) return 0;
    if (first == 0xc2 && byte(1) < 0xa0) return 0;
    // U+200E/F, U+202A–E and U+2066–9 turn the reading direction around.
    if (first == 0xe2 &&
        ((byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae))) ||
         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9)))
        return 0;
    return length;
}

/// Characters, not bytes: continuation bytes do not take room.
std::size_t shown_width(std::string_view text) {
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }));
}

std::string cut(std::string_view text, std::size_t width) {
    std::string out;
    std::size_t used = 0;
    for (const char c : text) {
        if ((static_cast<unsigned char>(c) & 0xc0U) != 0x80 && ++used > width) break;
        out += c;
    }
    return out;
}

json as_json(const Dict& dict);

struct JsonVisitor {
    json operator()(const Dict& dict) const { return as_json(dict); }
    json operator()(const Value::Dicts& list) const {
        auto out = json::array();
        for (const auto& item : list) out.push_back(as_json(item));
        return out;
    }
    json operator()(const auto& plain) const { return plain; }
};

json as_json(const Dict& dict) {
    auto out = json::object();
    for (const auto& [key, value] : dict) out[key] = std::visit(JsonVisitor{}, value.v);
    return out;
}

/// In ASCII: other people's text may hold C1 control characters, and JSON goes to terminals too.
std::string dumped(const json& value) { return value.dump(2, ' ', true, json::error_handler_t::replace) + '\n'; }

}  // namespace

std::string printable(std::string_view text) {
    constexpr std::string_view kHex = "0123456789abcdef";
    std::string out;
    while (!text.empty()) {
        const auto byte = static_cast<unsigned char>(text.front());
        const auto length = utf8_length(text);
        if (length == 0 || byte < 0x20 || byte == 0x7f) {
            out += "\\x";
            out += kHex[byte >> 4U];
            out += kHex[byte & 0xfU];
            text.remove_prefix(1);
        } else {
            out += text.substr(0, length);
            text.remove_prefix(length);
        }
    }
    return out;
}

std::string shell_word(std::string_view text) {
    constexpr std::string_view kSafe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:,=+@%";
    if (!text.empty() && text.find_first_not_of(kSafe) == std::string_view::npos) return std::string(text);
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + '\'';
}

std::string shell_line(const std::vector<std::string>& argv) {
    std::string out;
    for (const auto& word : argv) out += (out.empty() ? "" : " ") + shell_word(word);
    return out;
}

std::string table_text(const Table& rows, std::size_t width) {
    std::vector<std::size_t> widths;
    Table cells;
    for (const auto& row : rows) {
        auto& out = cells.emplace_back();
        for (std::size_t i = 0; i < row.size(); ++i) {
            out.push_back(printable(row[i]));
            if (i >= widths.size()) widths.push_back(0);
            widths[i] = std::max(widths[i], shown_width(out.back()));
        }
    }
    std::string text;
    for (const auto& row : cells) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) {
            line += row[i];
            if (i + 1 < row.size()) line += std::string(widths[i] - shown_width(row[i]) + 2, ' ');
        }
        line.resize(line.find_last_not_of(' ') + 1);
        text += (width == 0 ? line : cut(line, width)) + '\n';
    }
    return text;
}

std::size_t terminal_width() {
    if (const char* columns = std::getenv("COLUMNS"); columns != nullptr)
        if (const auto width = model::parse_unsigned(columns, "COLUMNS", 10000); width && *width > 0) return *width;
    winsize size{};
    if (isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) return size.ws_col;
    return 0;
}

std::string json_text(const Dict& dict) { return dumped(as_json(dict)); }
std::string json_text(const Value::Dicts& list) { return dumped(JsonVisitor{}(list)); }

int say_failure(const model::Error& error) {
    say(error.detail);
    return model::row_of(error.code).exit_status;
}

void say(std::string_view line) { std::fprintf(stderr, "numa-leasectl: %s\n", printable(line).c_str()); }

int print(std::string_view text) {
    constexpr int kNoOutput = 125;
    const bool whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    if (whole) return 0;
    say("cannot write to standard output");
    return kNoOutput;
}

std::string user_name(std::uint64_t uid) {
    const auto* entry = getpwuid(static_cast<uid_t>(uid));
    return entry != nullptr ? entry->pw_name : std::to_string(uid);
}

}  // namespace numalease::client
