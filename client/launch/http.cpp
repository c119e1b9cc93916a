#include "launch/http.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Result;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kTick = std::chrono::seconds(10);
constexpr std::size_t kMostAnswer = 1U << 20U;

struct Socket {
    int fd;
    explicit Socket(int made) : fd(made) {}
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    ~Socket() {
        if (fd >= 0) close(fd);
    }
};

/// RFC 9112; the connection is not kept, so that the end of the answer is its end.
std::string request_text(std::uint16_t port, const std::string& line) {
    const auto path_end = std::min(line.find(' ', line.find(' ') + 1), line.size());
    const auto body = line.substr(std::min(path_end + 1, line.size()));
    auto out =
        line.substr(0, path_end) + " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\nConnection: close\r\n";
    if (!body.empty())
        out += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    return out + "\r\n" + body;
}

/// "HTTP/1.1 200 OK"
Result<int> status_of(std::string_view answer) {
    constexpr std::size_t kCode = 9;
    constexpr std::size_t kDigits = 3;
    int status = 0;
    if (answer.starts_with("HTTP/1.") && answer.size() >= kCode + kDigits) {
        const auto code = answer.substr(kCode, kDigits);
        if (std::from_chars(code.begin(), code.end(), status).ec == std::errc() && status != 0) return status;
    }
    return fail(Errc::io, "what listens there answers no HTTP", EPROTO);
}

/// Errno of waiting until something can be done; 0: it can.
int wait_for(int fd, short events, Clock::time_point until, const std::function<void()>& tick) {
    for (;;) {
        const auto left = std::min<Clock::duration>(until - Clock::now(), kTick);
        if (left <= Clock::duration::zero()) return ETIMEDOUT;
        pollfd one{.fd = fd, .events = events, .revents = 0};
        const int got = poll(&one, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
        if (got > 0) return 0;
        if (got < 0 && errno != EINTR) return errno;
        if (got == 0 && tick) tick();
    }
}

int connect_to(int fd, std::uint16_t port, Clock::time_point until) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    if (const int err = wait_for(fd, POLLOUT, until, {}); err != 0) return err;
    int err = 0;
    socklen_t size = sizeof err;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size) < 0 ? errno : err;
}

}  // namespace

Result<int> ask_http(std::uint16_t port, const std::string& line, Clock::duration patience,
                     const std::function<void()>& tick) {
    const auto until = Clock::now() + patience;
    const auto failed = [&](int err) {
        return fail(Errc::io, "127.0.0.1:" + std::to_string(port) + ": " + std::strerror(err), err);
    };
    const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.fd < 0) return failed(errno);
    if (const int err = connect_to(socket.fd, port, until); err != 0) return failed(err);
    auto text = request_text(port, line);
    while (!text.empty()) {
        const auto sent = send(socket.fd, text.data(), text.size(), MSG_NOSIGNAL);
        if (sent > 0) text.erase(0, static_cast<std::size_t>(sent));
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return failed(errno);
        if (sent < 0)
            if (const int err = wait_for(socket.fd, POLLOUT, until, tick); err != 0) return failed(err);
    }
    std::string answer;
    std::array<char, 4096> part{};
    while (answer.size() < kMostAnswer) {
        if (const int err = wait_for(socket.fd, POLLIN, until, tick); err != 0) return failed(err);
        const auto got = recv(socket.fd, part.data(), part.size(), 0);
        if (got == 0) break;
        if (got < 0 && errno != EAGAIN && errno != EINTR) return failed(errno);
        if (got > 0) answer.append(part.data(), static_cast<std::size_t>(got));
    }
    return status_of(answer);
}

}  // namespace numalease::client
