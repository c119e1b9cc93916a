#include "host/history.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "host/journal.hpp"
#include "host/lines.hpp"
#include "host/root.hpp"

namespace numalease::host {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr const char* kName = "/history";
constexpr const char* kOldName = "/history.old";

std::unexpected<model::Error> broken(const std::string& path, const char* what, int err) {
    return fail(Errc::io, std::string("cannot ") + what + ' ' + path + ": " + errno_text(err), err);
}

/// What lies there under our name may be anything: opening it neither waits nor leads elsewhere.
UniqueFd open_file(const std::string& path, int flags) {
    return UniqueFd(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644));
}

void add_lines(std::deque<std::string>& out, const std::string& path) {
    const auto file = open_file(path, O_RDONLY);
    struct stat facts{};
    if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return;
    std::string text(2 * kHistoryBytes, '\0');
    std::size_t size = 0;
    while (size < text.size()) {
        const auto got = ::read(file.get(), text.data() + size, text.size() - size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        size += static_cast<std::size_t>(got);
    }
    for (const auto line : lines_of(std::string_view(text).substr(0, size))) {
        if (line.empty() || line.size() > kHistoryLineBytes) continue;
        out.emplace_back(line);
        if (out.size() > kHistoryLines) out.pop_front();
    }
}

}  // namespace

std::string history_line(const model::Record& record) { return journal_line(0, record); }

Result<model::Record> parse_history_line(std::string_view line) { return parse_journal_line(line, 0); }

std::deque<std::string> read_history(const std::string& directory) {
    std::deque<std::string> out;
    add_lines(out, directory + kOldName);
    add_lines(out, directory + kName);
    return out;
}

Result<void> append_history(const std::string& directory, std::string_view line, std::size_t most) {
    const auto path = directory + kName;
    if (line.size() > kHistoryLineBytes) return fail(Errc::internal, path + ": a line that could not be read again");
    auto file = open_file(path, O_RDWR | O_CREAT | O_APPEND);
    struct stat facts{};
    if (!file || ::fstat(file.get(), &facts) != 0) return broken(path, "open", errno);
    if (!S_ISREG(facts.st_mode)) return broken(path, "use", EINVAL);
    if (static_cast<std::size_t>(facts.st_size) >= most) {
        if (::rename(path.c_str(), (directory + kOldName).c_str()) != 0) return broken(path, "set aside", errno);
        file = open_file(path, O_RDWR | O_CREAT | O_APPEND | O_EXCL);
        if (!file) return broken(path, "create", errno);
        facts.st_size = 0;
    }
    char last = '\n';
    if (facts.st_size > 0 && ::pread(file.get(), &last, 1, facts.st_size - 1) != 1) return broken(path, "read", errno);
    const auto text = (last == '\n' ? "" : "\n") + std::string(line) + '\n';
    ssize_t put = -1;
    do {
        put = ::write(file.get(), text.data(), text.size());
    } while (put < 0 && errno == EINTR);
    if (put < 0) return broken(path, "write", errno);
    // A short write to a file means that the disk is full.
    if (static_cast<std::size_t>(put) != text.size()) return broken(path, "write", ENOSPC);
    return {};
}

}  // namespace numalease::host
