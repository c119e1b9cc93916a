#include "launch/report.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "text/output.hpp"

namespace numalease::client {

using model::Dict;
using model::Errc;
using model::fail;
using model::Result;
using model::Value;
using nlohmann::json;

namespace {

constexpr auto kDaemonMayReturn = std::chrono::seconds(30);
constexpr auto kOthersFirst = std::chrono::seconds(5);  // systemd, or another client
constexpr auto kLookAgain = std::chrono::milliseconds(200);

Result<void> write_all(int fd, std::string_view text, const std::string& file) {
    while (!text.empty()) {
        const auto wrote = write(fd, text.data(), text.size());
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return fail(Errc::io, "report " + file + ": " + std::strerror(errno), errno);
        text.remove_prefix(static_cast<std::size_t>(wrote));
    }
    return {};
}

/// Where the process that waits has been killed, that is an error and no SIGPIPE.
Result<void> hand_over(int socket, std::string_view text, const std::string& file) {
    while (!text.empty()) {
        const auto sent = send(socket, text.data(), text.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return fail(Errc::io, "report " + file + ": nobody will write what comes after", errno);
        text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return {};
}

std::string read_to_end(int fd) {
    std::string out;
    std::array<char, 4096> part{};
    while (true) {
        const auto got = read(fd, part.data(), part.size());
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return out;
        out.append(part.data(), static_cast<std::size_t>(got));
    }
}

// ── The process that waits ───────────────────────────────────────────────────────────────────────────────────────

/// Until the lease is over, also across a daemon that is started anew. Where nobody starts one, we put back what it
/// left, as any other verb would.
Result<Dict> wait_for_end(const Endpoint& endpoint, const std::string& id) {
    using Clock = std::chrono::steady_clock;
    Result<Dict> ended = fail(Errc::no_daemon, "nobody answers");
    auto lost = Clock::now();
    while (Clock::now() < lost + kDaemonMayReturn) {
        auto connection = Clock::now() < lost + kOthersFirst ? find_daemon(endpoint) : reach(endpoint, Need::looking);
        if (connection) {
            ended = connection->wait(id, "ended", std::chrono::hours(24), {});
            if (ended || ended.error().code != Errc::no_daemon) return ended;
            if (connection->is_daemon()) lost = Clock::now();
        }
        std::this_thread::sleep_for(kLookAgain);
    }
    return ended;
}

/// `start` is what `granted` has sent: the lease's id on a line, and the report so far.
void finish(const std::string& file, const Endpoint& endpoint, const std::string& start) {
    const auto newline = start.find('\n');
    if (newline == std::string::npos) return;  // no lease
    const auto id = start.substr(0, newline);
    auto report = json::parse(start.substr(newline + 1), nullptr, false);
    if (!report.is_object()) return;
    if (auto ended = wait_for_end(endpoint, id))
        report["lease"] = json::parse(json_text(*ended));
    else
        report["notes"].push_back("the end of " + id + " was not seen: " + ended.error().detail);
    auto reader = reach(endpoint, Need::looking);
    auto knobs = reader ? reader->knobs() : Result<Value::Dicts>(std::unexpected(reader.error()));
    // A daemon that ends when it is idle may be gone between two calls.
    if (!knobs)
        if (auto own = start_reader(endpoint)) knobs = own->knobs();
    if (knobs)
        report["after"]["knobs"] = json::parse(json_text(*knobs));
    else
        report["notes"].push_back("the state after could not be read: " + knobs.error().detail);
    report["complete"] = true;
    static_cast<void>(write_atomically(file, report.dump(2, ' ', false, json::error_handler_t::replace) + '\n'));
}

/// Out of the command's tree, session and descriptors.
[[noreturn]] void wait_apart(const std::string& file, const Endpoint& endpoint, int socket) {
    setsid();
    if (fork() != 0) _exit(0);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, fd);
    const int low = dup2(socket, STDERR_FILENO + 1);
    close_range(static_cast<unsigned>(low) + 1, ~0U, 0);
    signal(SIGHUP, SIG_IGN);
    finish(file, endpoint, read_to_end(low));
    _exit(0);
}

}  // namespace

std::string Report::text() const {
    Dict out{{"version", 1U}, {"complete", complete}, {"command", command}, {"notes", notes}};
    if (!lease.empty()) out["lease"] = lease;
    if (!page_cache.empty()) out["page_cache"] = page_cache;
    if (before) out["before"] = Dict{{"knobs", *before}};
    if (after) out["after"] = Dict{{"knobs", *after}};
    return json_text(out);
}

Result<void> write_atomically(const std::string& file, const std::string& text) {
    const auto mask = umask(0);
    umask(mask);
    auto temporary = file + ".XXXXXX";
    const int fd = mkostemp(temporary.data(), O_CLOEXEC);
    if (fd < 0) return fail(Errc::io, "report " + file + ": " + std::strerror(errno), errno);
    fchmod(fd, 0666 & ~mask);  // as for any file that the user makes
    auto wrote = write_all(fd, text, file);
    close(fd);
    if (wrote && rename(temporary.c_str(), file.c_str()) < 0)
        wrote = fail(Errc::io, "report " + file + ": " + std::strerror(errno), errno);
    if (!wrote) unlink(temporary.c_str());
    return wrote;
}

Result<Reporter> Reporter::start(const std::string& file, const Endpoint& endpoint) {
    std::error_code error;
    const auto absolute = std::filesystem::absolute(file, error).string();
    struct stat facts{};
    if (stat(absolute.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode))
        return fail(Errc::unreadable, "report " + file + ": exists and is not a file");
    // Shows now, and not after an hour of work, that the file can be written.
    if (auto wrote = write_atomically(absolute, Report{}.text()); !wrote)
        return fail(Errc::unreadable, wrote.error().detail, wrote.error().err);
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) < 0)
        return fail(Errc::io, "cannot make a socket", errno);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        wait_apart(absolute, endpoint, ends[0]);
    }
    close(ends[0]);
    if (child > 0) waitpid(child, nullptr, 0);
    return Reporter(absolute, ends[1]);
}

Reporter::Reporter(Reporter&& other) noexcept
    : file_(std::move(other.file_)), socket_(std::exchange(other.socket_, -1)), report_(std::move(other.report_)) {}

Reporter::~Reporter() {
    if (socket_ >= 0) close(socket_);
}

void Reporter::before(std::string command, Result<Value::Dicts> knobs) {
    report_.command = std::move(command);
    if (knobs)
        report_.before = std::move(*knobs);
    else
        report_.notes.push_back("the state before could not be read: " + knobs.error().detail);
}

Result<void> Reporter::granted(const std::string& id, const Dict& lease) {
    report_.lease = lease;
    report_.lease.erase("page_cache");  // the lease is written anew at its end
    report_.page_cache = model::get_dict(lease, "page_cache");
    if (auto wrote = write_atomically(file_, report_.text()); !wrote) return wrote;
    const auto start = id + '\n' + report_.text();
    const auto sent = hand_over(socket_, start, file_);
    close(std::exchange(socket_, -1));
    return sent;
}

void Reporter::refused(const model::Error& error) {
    report_.notes.push_back("no lease: " + error.detail);
    report_.complete = true;
    if (auto wrote = write_atomically(file_, report_.text()); !wrote) say(wrote.error().detail);
}

}  // namespace numalease::client
