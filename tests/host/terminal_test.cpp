#include "host/terminal.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "host/process.hpp"

namespace numalease::host {
namespace {

using model::Errc;
using testing::HasSubstr;

/// A process with a terminal of its own, where `mesg` says whether it wants messages.
class WithTerminal {
public:
    explicit WithTerminal(bool mesg) {
        int slave = -1;
        std::array<char, 64> name{};
        EXPECT_EQ(openpty(&master_, &slave, name.data(), nullptr, nullptr), 0);
        name_ = std::string(name.data()).substr(std::string("/dev/").size());
        EXPECT_EQ(chmod(name.data(), mesg ? 0620 : 0600), 0);
        std::array<int, 2> ready{};
        EXPECT_EQ(pipe(ready.data()), 0);
        pid_ = fork();
        if (pid_ == 0) {
            setsid();
            ioctl(slave, TIOCSCTTY, 0);
            dup2(slave, STDIN_FILENO);
            [[maybe_unused]] const auto told = write(ready[1], "x", 1);
            while (true) pause();
        }
        char byte = 0;
        EXPECT_EQ(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        close(ready[1]);
        close(slave);
        fcntl(master_, F_SETFL, O_NONBLOCK);
        process_ = {.pid = pid_, .start_time = *read_start_time(*proc_, pid_)};
    }
    WithTerminal(const WithTerminal&) = delete;
    WithTerminal& operator=(const WithTerminal&) = delete;
    ~WithTerminal() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        close(master_);
    }

    [[nodiscard]] model::Result<std::string> write_to(const model::Process& process, std::string_view text) const {
        return write_to_terminal(*proc_, *pts_, process, text);
    }
    [[nodiscard]] std::string shown() const {
        std::array<char, 256> text{};
        const auto got = read(master_, text.data(), text.size());
        return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got)) : std::string();
    }
    [[nodiscard]] const model::Process& process() const { return process_; }
    [[nodiscard]] const std::string& name() const { return name_; }

private:
    model::Result<Root> proc_ = Root::open("/proc");
    model::Result<Root> pts_ = Root::open("/dev/pts");
    int master_ = -1;
    int pid_ = -1;
    model::Process process_;
    std::string name_;
};

TEST(Terminal, OfAProcessIsWrittenTo) {
    const WithTerminal it(true);
    const auto written = it.write_to(it.process(), "hello\r\n");
    ASSERT_TRUE(written) << written.error().detail;
    EXPECT_EQ(*written, it.name());
    EXPECT_THAT(it.shown(), HasSubstr("hello"));
}

TEST(Terminal, ThatWantsNoMessagesGetsNone) {
    const WithTerminal it(false);
    const auto written = it.write_to(it.process(), "hello\r\n");
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Errc::denied);
    EXPECT_THAT(written.error().detail, HasSubstr("mesg n"));
    EXPECT_EQ(it.shown(), "");
}

TEST(Terminal, IsNotOfAnotherProcessOfThatNumber) {
    const WithTerminal it(true);
    auto other = it.process();
    ++other.start_time;
    EXPECT_FALSE(it.write_to(other, "hello\r\n"));
    EXPECT_EQ(it.shown(), "");
}

TEST(Terminal, IsNotHadByEverybody) {
    const auto proc = Root::open("/proc");
    const auto pts = Root::open("/dev/pts");
    const auto gone = write_to_terminal(*proc, *pts, {.pid = 1 << 22, .start_time = 1}, "x");
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, Errc::unsupported);
}

TEST(Terminal, ThatIsFullIsNotWaitedFor) {
    const WithTerminal it(true);
    const std::string much(4096, 'x');
    model::Result<std::string> written;
    for (int i = 0; i < 64 && (written = it.write_to(it.process(), much)); ++i) {
    }
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Errc::io);
    EXPECT_EQ(written.error().err, EAGAIN);
}

}  // namespace
}  // namespace numalease::host
