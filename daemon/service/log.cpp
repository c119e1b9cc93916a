#include "service/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

namespace numalease::service::log {

namespace {

struct Sink {
    Level least = Level::info;
    bool journal = false;
    std::shared_ptr<spdlog::logger> text;
};

/// The one mutable global of the program: where its events go.
Sink& sink() {
    static Sink it;
    return it;
}

struct LevelRow {
    std::string_view name;
    spdlog::level::level_enum spdlog_level;
    char priority;  ///< of syslog(3)
};
constexpr std::array kLevels{LevelRow{"debug", spdlog::level::debug, '7'}, LevelRow{"info", spdlog::level::info, '6'},
                             LevelRow{"warning", spdlog::level::warn, '4'}, LevelRow{"error", spdlog::level::err, '3'}};

/// JOURNAL_STREAM=DEVICE:INODE names the stream that systemd gave us; it counts only while it is standard error.
bool stderr_is_journal() {
    const char* stream = std::getenv("JOURNAL_STREAM");
    struct stat facts{};
    if (stream == nullptr || fstat(STDERR_FILENO, &facts) != 0) return false;
    return fmt::format("{}:{}", facts.st_dev, facts.st_ino) == stream;
}

/// A value as it stands in a `key=value` line: quoted where it holds blanks or quotes.
std::string quoted_text(std::string_view value) {
    const auto plain = [](unsigned char c) { return std::isgraph(c) != 0 && c != '"' && c != '\\'; };
    if (!value.empty() && std::ranges::all_of(value, plain)) return std::string(value);
    std::string out = "\"";
    for (const char c : value) {
        if (c == '"' || c == '\\') out += '\\';
        out += std::iscntrl(static_cast<unsigned char>(c)) != 0 ? ' ' : c;
    }
    return out + '"';
}

void send_to_journal(Level level, std::string_view message_id, std::string_view text, const Fields& fields) {
    std::vector<std::string> lines{fmt::format("MESSAGE={}", text), fmt::format("MESSAGE_ID={}", message_id),
                                   fmt::format("PRIORITY={}", kLevels.at(static_cast<std::size_t>(level)).priority),
                                   "SYSLOG_IDENTIFIER=numa-leased"};
    for (const auto& field : fields) lines.push_back(fmt::format("{}={}", field.name, field.value));
    std::vector<iovec> parts;
    parts.reserve(lines.size());
    for (auto& line : lines) parts.push_back({.iov_base = line.data(), .iov_len = line.size()});
    sd_journal_sendv(parts.data(), static_cast<int>(parts.size()));
}

}  // namespace

bool parse_level(std::string_view text, Level& level) {
    const auto found = std::ranges::find(kLevels, text, &LevelRow::name);
    if (found == kLevels.end()) return false;
    level = static_cast<Level>(found - kLevels.begin());
    return true;
}

void start(Level least) {
    sink().least = least;
    sink().journal = stderr_is_journal();
    sink().text = std::make_shared<spdlog::logger>("numa-leased", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    sink().text->set_pattern("%Y-%m-%dT%H:%M:%S.%e level=%l %v");
    sink().text->set_level(spdlog::level::debug);
    sink().text->flush_on(spdlog::level::debug);
}

std::string_view destination() { return sink().journal ? "journal" : "log"; }

void event(Level level, std::string_view message_id, std::string_view text, const Fields& fields) {
    if (level < sink().least || !sink().text) return;
    if (sink().journal) return send_to_journal(level, message_id, text, fields);
    std::string line = "msg=" + quoted_text(text);
    for (const auto& field : fields) {
        if (field.value.empty()) continue;
        std::string name(field.name);
        std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        line += ' ' + name + '=' + quoted_text(field.value);
    }
    sink().text->log(kLevels.at(static_cast<std::size_t>(level)).spdlog_level, "{}", line);
}

}  // namespace numalease::service::log
