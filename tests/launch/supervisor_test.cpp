#include "launch/supervisor.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "launch/together.hpp"

namespace numalease::client {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

constexpr Supervisor::Patience kQuick{.hand_on = 50ms, .kill = 200ms, .again = 1ms, .calm = 1min, .failures = 3};

/// Children and the test tell each other things.
struct Pipe {
    std::array<int, 2> ends{};
    Pipe() { EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0); }
    ~Pipe() {
        close(ends[0]);
        close(ends[1]);
    }
    void put(char byte) const { EXPECT_EQ(write(ends[1], &byte, 1), 1); }
    char get() const {
        char byte = 0;
        EXPECT_EQ(read(ends[0], &byte, 1), 1);
        return byte;
    }
    /// All that is there.
    [[nodiscard]] std::string rest() const {
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        std::string out(64, '\0');
        const auto got = read(ends[0], out.data(), out.size());
        out.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        return out;
    }
};

int wait_for_a_signal() {
    for (;;) pause();
}

TEST(Supervisor, EndsWithTheFirstFailureOrWithNought) {
    Supervisor good(kQuick);
    ASSERT_TRUE(good.start("a", [] { return 0; }));
    ASSERT_TRUE(good.start("b", [] { return 0; }));
    EXPECT_EQ(good.watch(false), 0);
    Supervisor bad(kQuick);
    ASSERT_TRUE(bad.start("a", [] { return 7; }));
    EXPECT_EQ(bad.watch(false), 7);
    Supervisor killed(kQuick);
    ASSERT_TRUE(killed.start("a", [] { return raise(SIGKILL); }));
    EXPECT_EQ(killed.watch(false), 128 + SIGKILL);
}

TEST(Supervisor, OneThatFailsEndsTheOthersAndItsStatusStands) {
    const Pipe up;
    Supervisor supervisor(kQuick);
    ASSERT_TRUE(supervisor.start("waits", [&] {
        up.put('.');
        return wait_for_a_signal();
    }));
    ASSERT_TRUE(supervisor.start("fails", [&] {
        up.get();
        return 9;
    }));
    EXPECT_EQ(supervisor.watch(false), 9);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "nobody is left";
}

TEST(Supervisor, OneThatDoesNotEndIsKilled) {
    const Pipe up;
    Supervisor supervisor(kQuick);
    ASSERT_TRUE(supervisor.start("stubborn", [&] {
        std::signal(SIGTERM, SIG_IGN);
        up.put('.');
        return wait_for_a_signal();
    }));
    ASSERT_TRUE(supervisor.start("fails", [&] {
        up.get();
        return 9;
    }));
    EXPECT_EQ(supervisor.watch(false), 9);
}

TEST(Supervisor, OneThatIsDoneEndsNobody) {
    const Pipe done;
    Supervisor supervisor(kQuick);
    ASSERT_TRUE(supervisor.start("short", [] { return 0; }));
    ASSERT_TRUE(supervisor.start("long", [&] {
        done.get();
        return 0;
    }));
    ASSERT_TRUE(supervisor.start("helps it", [&] {
        usleep(20'000);
        done.put('.');
        return 0;
    }));
    EXPECT_EQ(supervisor.watch(false), 0);
}

TEST(Supervisor, HandsSignalsOnAndReturnsWhatBecameOfThem) {
    const Pipe up;
    const Pipe got;
    Supervisor supervisor(kQuick);
    for (const auto* name : {"a", "b"})
        ASSERT_TRUE(supervisor.start(name, [&] {
            sigset_t mask;
            sigemptyset(&mask);
            for (const int one : {SIGUSR1, SIGTERM}) sigaddset(&mask, one);
            sigprocmask(SIG_BLOCK, &mask, nullptr);
            up.put('.');
            for (int signal = 0;;) {
                sigwait(&mask, &signal);
                got.put(signal == SIGUSR1 ? 'u' : 't');
                if (signal == SIGTERM) return 3;
            }
        }));
    up.get();
    up.get();
    kill(getpid(), SIGUSR1);
    kill(getpid(), SIGTERM);  // both are blocked here, and come from a process of the test
    EXPECT_EQ(supervisor.watch(true), 3) << "whoever was told to end is not started again";
    auto heard = got.rest();
    std::ranges::sort(heard);
    EXPECT_EQ(heard, "ttuu");
}

TEST(Supervisor, StartsAgainWhatFailsUntilItIsHopeless) {
    const Pipe ran;
    Supervisor supervisor(kQuick);
    ASSERT_TRUE(supervisor.start("a", [&] {
        ran.put('.');
        return 5;
    }));
    EXPECT_EQ(supervisor.watch(true), 5);
    EXPECT_EQ(ran.rest(), "...");
    Supervisor usage(kQuick);
    ASSERT_TRUE(usage.start("a", [&] {
        ran.put('.');
        return 127;
    }));
    EXPECT_EQ(usage.watch(true), 127);
    EXPECT_EQ(ran.rest(), ".") << "that would not change";
}

TEST(Supervisor, ItsHelperIsHeardAndEndsWithTheOthers) {
    const Pipe done;
    std::vector<std::string> lines;
    bool with_nought = false;
    {
        Supervisor supervisor(kQuick);
        ASSERT_TRUE(supervisor.start("a", [&] {
            done.get();
            return 0;
        }));
        ASSERT_TRUE(supervisor.help(
            [](int out) {
                EXPECT_EQ(write(out, "one\ntwo\n", 8), 8);
                return 0;
            },
            [&](const std::string& line) { lines.push_back(line); },
            [&](bool good) {
                with_nought = good;
                done.put('.');
            }));
        EXPECT_EQ(supervisor.watch(false), 0);
    }
    EXPECT_THAT(lines, ElementsAre("one", "two"));
    EXPECT_TRUE(with_nought);

    Supervisor supervisor(kQuick);
    bool heard = false;
    ASSERT_TRUE(supervisor.start("a", [] { return 0; }));
    ASSERT_TRUE(supervisor.help([](int) { return wait_for_a_signal(); }, [](const std::string&) {},
                                [&](bool) { heard = true; }));
    EXPECT_EQ(supervisor.watch(false), 0);
    EXPECT_FALSE(heard);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(Together, NobodyBeginsBeforeAllCan) {
    const Pipe order;
    Supervisor supervisor(kQuick);
    Together together;
    for (std::size_t i = 0; i < 3; ++i) {
        together.add();
        ASSERT_TRUE(supervisor.start("one", [&, i] {
            together.enter();
            usleep(static_cast<unsigned>(10'000 * i));
            order.put('c');
            if (!together.wait_for_all(i)) return 1;
            order.put('b');
            return 0;
        }));
        together.added();
    }
    EXPECT_TRUE(together.begin());
    EXPECT_EQ(supervisor.watch(false), 0);
    EXPECT_EQ(order.rest(), "cccbbb");
}

TEST(Together, NobodyBeginsWhereOneCannotAndItsStatusStands) {
    const Pipe begun;
    for (std::size_t bad = 0; bad < 3; ++bad) {
        Supervisor supervisor(kQuick);
        Together together;
        for (std::size_t i = 0; i < 3; ++i) {
            together.add();
            ASSERT_TRUE(supervisor.start("one", [&, i] {
                together.enter();
                if (i == bad) return 75;
                if (together.wait_for_all(i)) begun.put('.');
                return 0;
            }));
            together.added();
        }
        EXPECT_FALSE(together.begin());
        EXPECT_EQ(supervisor.watch(false), 75);
    }
    EXPECT_EQ(begun.rest(), "");
}

TEST(Supervisor, ChildrenHaveTheSignalsThatWeHad) {
    Supervisor supervisor(kQuick);
    ASSERT_TRUE(supervisor.start("a", [] {
        sigset_t mask;
        sigprocmask(SIG_BLOCK, nullptr, &mask);
        return sigismember(&mask, SIGTERM) == 0 && sigismember(&mask, SIGCHLD) == 0 ? 0 : 1;
    }));
    EXPECT_EQ(supervisor.watch(false), 0);
}

}  // namespace
}  // namespace numalease::client
