#include "service/handed_over.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "host/process.hpp"

namespace numalease::service {
namespace {

/// systemd's end: a datagram socket for notices, which carry descriptors.
class Manager {
public:
    Manager() : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        const auto name = "@numa-lease-test-" + std::to_string(getpid());
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path, name.c_str(), name.size());
        address.sun_path[0] = '\0';
        const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
        EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
        setenv("NOTIFY_SOCKET", name.c_str(), 1);
    }
    ~Manager() { unsetenv("NOTIFY_SOCKET"); }
    Manager(const Manager&) = delete;
    Manager& operator=(const Manager&) = delete;

    /// One notice, and how many descriptors came with it. The first is kept in `last`.
    std::string read(std::size_t& descriptors) {
        char text[512]{};
        alignas(cmsghdr) char control[256]{};
        iovec part{.iov_base = text, .iov_len = sizeof text};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        const auto size = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        descriptors = 0;
        for (auto* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
            if (item->cmsg_type != SCM_RIGHTS) continue;
            descriptors = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(item), sizeof fd);
            last = host::UniqueFd(fd);
        }
        return size < 0 ? "" : std::string(text, static_cast<std::size_t>(size));
    }
    host::UniqueFd last;

private:
    host::UniqueFd fd_;
};

TEST(HandedOver, APidfdGoesIntoTheStoreUnderItsProcessesNameAndIsNotPolled) {
    Manager manager;
    const model::Process process{.pid = getpid(), .start_time = 77};
    const auto pidfd = host::open_pidfd(getpid());
    ASSERT_TRUE(pidfd);
    store(process, pidfd->get());
    std::size_t descriptors = 0;
    const auto text = manager.read(descriptors);
    EXPECT_EQ(text, "FDSTORE=1\nFDPOLL=0\nFDNAME=holder-" + std::to_string(getpid()) + "-77");
    EXPECT_EQ(descriptors, 1U);
    EXPECT_EQ(host::pid_of_pidfd(manager.last.get()), getpid());
    unstore(stored_name(process));
    EXPECT_EQ(manager.read(descriptors), "FDSTOREREMOVE=1\nFDNAME=holder-" + std::to_string(getpid()) + "-77");
}

/// What sd_listen_fds(3) promises: descriptors from 3 on, named in the environment, for this process only.
TEST(HandedOver, TakesTheSocketAndTheHoldersAndForgetsWhatNobodyKnows) {
    Manager manager;
    const auto child = fork();
    if (child == 0) {
        const int listening = socket(AF_UNIX, SOCK_STREAM, 0);
        const sockaddr_un nameless{.sun_family = AF_UNIX, .sun_path = {}};
        bind(listening, reinterpret_cast<const sockaddr*>(&nameless), sizeof(sa_family_t));
        listen(listening, 1);
        const auto pidfd = host::open_pidfd(getppid());
        const int high[] = {fcntl(listening, F_DUPFD, 100), fcntl(pidfd->get(), F_DUPFD, 100), dup(0)};
        for (int i = 0; i < 3; ++i) dup2(high[i], 3 + i);
        setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
        setenv("LISTEN_FDS", "3", 1);
        setenv("LISTEN_FDNAMES", "socket:holder-12-34:stranger", 1);
        auto taken = take_handed_over();
        const bool right = taken.socket.get() == 3 && taken.holders.size() == 1 &&
                           taken.holders.contains("holder-12-34") && taken.holders["holder-12-34"].get() == 4 &&
                           fcntl(5, F_GETFD) < 0 && getenv("LISTEN_FDS") == nullptr;
        _exit(right ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    std::size_t descriptors = 0;
    EXPECT_EQ(manager.read(descriptors), "FDSTOREREMOVE=1\nFDNAME=stranger");
}

TEST(HandedOver, WithoutSystemdThereIsNothing) {
    const auto taken = take_handed_over();
    EXPECT_FALSE(taken.socket);
    EXPECT_TRUE(taken.holders.empty());
}

}  // namespace
}  // namespace numalease::service
