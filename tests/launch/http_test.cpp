#include "launch/http.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace numalease::client {
namespace {

using namespace std::chrono_literals;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

/// Listens at 127.0.0.1, and answers one connection.
class OneAnswer {
public:
    explicit OneAnswer(std::string answer) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
        EXPECT_EQ(listen(fd_, 1), 0);
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this, text = std::move(answer)] {
            const int peer = accept(fd_, nullptr, nullptr);
            if (peer < 0) return;
            request_.resize(4096);
            const auto got = recv(peer, request_.data(), request_.size(), 0);
            request_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
            for (std::size_t at = 0; at < text.size();) {
                const auto sent = send(peer, text.data() + at, text.size() - at, MSG_NOSIGNAL);
                if (sent <= 0) break;
                at += static_cast<std::size_t>(sent);
            }
            close(peer);
        });
    }
    ~OneAnswer() { end(); }
    const std::string& request() {
        end();
        return request_;
    }
    [[nodiscard]] std::uint16_t port() const { return port_; }

private:
    void end() {
        shutdown(fd_, SHUT_RDWR);
        if (thread_.joinable()) thread_.join();
        if (fd_ >= 0) close(fd_);
        fd_ = -1;
    }
    int fd_;
    std::uint16_t port_ = 0;
    std::string request_;
    std::thread thread_;
};

TEST(AskHttp, GetsTheStatus) {
    OneAnswer server("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}");
    EXPECT_EQ(ask_http(server.port(), "GET /health", 10s), 503);
    EXPECT_EQ(server.request(), "GET /health HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(server.port()) +
                                    "\r\nConnection: close\r\n\r\n");
}

TEST(AskHttp, PostsWhatStandsBehindThePath) {
    OneAnswer server("HTTP/1.0 200 OK\r\n\r\n");
    EXPECT_EQ(ask_http(server.port(), R"(POST /x {"a": 1})", 10s), 200);
    EXPECT_THAT(server.request(), StartsWith("POST /x HTTP/1.1\r\n"));
    EXPECT_THAT(server.request(), HasSubstr("\r\nContent-Length: 8\r\n"));
    EXPECT_THAT(server.request(), EndsWith("\r\n\r\n{\"a\": 1}"));
}

TEST(AskHttp, HasBoundsAgainstWhateverListensThere) {
    {
        OneAnswer server("220 mail\r\n");
        EXPECT_EQ(ask_http(server.port(), "GET /", 10s).error().err, EPROTO);
    }
    {
        OneAnswer server("");
        EXPECT_EQ(ask_http(server.port(), "GET /", 10s).error().err, EPROTO);
    }
    {
        OneAnswer server("HTTP/1.1 200 OK\r\n\r\n" + std::string(8U << 20U, 'x'));
        EXPECT_EQ(ask_http(server.port(), "GET /", 10s), 200) << "and no more is read than is needed";
    }
}

TEST(AskHttp, SaysThatNobodyListensOrAnswers) {
    std::uint16_t port = 0;
    {
        const OneAnswer server("");
        port = server.port();
    }
    EXPECT_EQ(ask_http(port, "GET /", 1s).error().err, ECONNREFUSED);
    // Connected by the kernel, and never accepted.
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(listen(fd, 4), 0);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    EXPECT_EQ(ask_http(ntohs(address.sin_port), "GET /", 50ms).error().err, ETIMEDOUT);
    close(fd);
}

}  // namespace
}  // namespace numalease::client
