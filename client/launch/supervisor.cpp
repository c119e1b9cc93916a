#include "launch/supervisor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "text/output.hpp"

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::array kHandedOn{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr std::size_t kMostLine = 4096;
constexpr int kBySignal = 128;

bool is_ending(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

/// systemd and the daemon send a signal to every process of a unit or a lease: it must not come twice, since servers
/// take the second one for impatience.
bool sends_to_all(unsigned pid) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
    return name == "systemd" || name == "numa-leased";
}

/// What another start would not change: usage, an unreadable model, denied, never, cannot be run, not found.
bool is_for_good(int status) {
    constexpr std::array kForGood{64, 66, 77, 78, 126, 127};
    return std::ranges::find(kForGood, status) != kForGood.end();
}

}  // namespace

int shell_status(int wait_status) {
    return WIFSIGNALED(wait_status) ? kBySignal + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Supervisor::Supervisor(Patience patience) : patience_(patience) {
    sigset_t mask;
    sigemptyset(&mask);
    for (const auto signal : kHandedOn) sigaddset(&mask, signal);
    sigaddset(&mask, SIGCHLD);
    // Whoever ignores its children's ends is never told of them.
    std::signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &mask, &before_);
    signals_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

Supervisor::~Supervisor() {
    end_helper();
    if (signals_ >= 0) close(signals_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
}

Result<pid_t> Supervisor::fork_with(const Become& become) {
    if (signals_ < 0) return fail(Errc::io, "cannot watch signals", errno);
    std::fflush(nullptr);
    const auto pid = fork();
    if (pid < 0) return fail(Errc::io, "cannot start another process", errno);
    if (pid > 0) return pid;
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    const int status = become();
    std::fflush(nullptr);
    _exit(status);
}

Result<pid_t> Supervisor::start(std::string name, Become become) {
    const auto pid = fork_with(become);
    if (pid)
        wards_.push_back({.name = std::move(name), .become = std::move(become), .pid = *pid, .started = Clock::now()});
    return pid;
}

Result<void> Supervisor::help(std::function<int(int lines)> work, std::function<void(const std::string&)> hear,
                              std::function<void(bool)> done) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) < 0) return fail(Errc::io, "cannot make a pipe", errno);
    const auto parent = getpid();
    const auto pid = fork_with([&] {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) return 0;
        close(ends[0]);
        return work(ends[1]);
    });
    close(ends[1]);
    if (!pid) {
        close(ends[0]);
        return std::unexpected(pid.error());
    }
    helper_ = *pid;
    lines_ = ends[0];
    fcntl(lines_, F_SETFL, O_NONBLOCK);
    hear_ = std::move(hear);
    done_ = std::move(done);
    return {};
}

int Supervisor::watch(bool restart) {
    reap(restart);  // before there was anybody to be told
    while (!is_over()) {
        std::array<pollfd, 2> fds{pollfd{.fd = signals_, .events = POLLIN, .revents = 0},
                                  pollfd{.fd = lines_, .events = POLLIN, .revents = 0}};
        if (poll(fds.data(), fds.size(), patience_left()) < 0 && errno != EINTR) break;
        take_signals();
        hear_helper();
        reap(restart);
        do_what_is_due();
    }
    end_helper();
    return status_;
}

bool Supervisor::is_over() const {
    return std::ranges::all_of(
        wards_, [](const Ward& ward) { return ward.pid == 0 && ward.again == Clock::time_point::max(); });
}

/// Until something is due.  Units: milliseconds; -1 for nothing.
int Supervisor::patience_left() const {
    auto next = std::min(hand_on_at_, kill_at_);
    for (const auto& ward : wards_) next = std::min(next, ward.again);
    if (next == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 60'000));
}

void Supervisor::take_signals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == sizeof info) {
        const auto signal = static_cast<int>(info.ssi_signo);
        if (signal == SIGCHLD) continue;
        if (is_ending(signal)) {
            ending_ = true;
            for (auto& ward : wards_)
                if (std::exchange(ward.again, Clock::time_point::max()) != Clock::time_point::max() && status_ == 0)
                    status_ = ward.status;
        }
        // A terminal's comes to all of its foreground.
        if (info.ssi_code == SI_KERNEL) continue;
        if (sends_to_all(info.ssi_pid)) {
            held_back_ = signal;
            hand_on_at_ = Clock::now() + patience_.hand_on;
        } else {
            hand_on(signal);
        }
    }
}

void Supervisor::hand_on(int signal) {
    for (const auto& ward : wards_)
        if (ward.pid != 0) kill(ward.pid, signal);
}

void Supervisor::reap(bool restart) {
    int status = 0;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
        if (pid == helper_) {
            helper_ = 0;
            hear_helper();
            if (!ending_) done_(shell_status(status) == 0);
            continue;
        }
        const auto ward = std::ranges::find(wards_, pid, &Ward::pid);
        if (ward != wards_.end()) ended(*ward, shell_status(status), restart);
    }
}

void Supervisor::ended(Ward& ward, int status, bool restart) {
    ward.pid = 0;
    ward.status = status;
    if (status == 0) return;
    if (Clock::now() - ward.started >= patience_.calm) ward.failures = 0;
    ++ward.failures;
    const auto what = ward.name + " ended with " + std::to_string(status);
    if (restart && !ending_ && !is_for_good(status) && ward.failures < patience_.failures) {
        say(what + "; it is started again");
        ward.again = Clock::now() + patience_.again;
        return;
    }
    if (status_ == 0) status_ = status;
    if (ending_) return;
    if (wards_.size() > 1) say(what + "; so all end");
    end_the_others();
}

void Supervisor::end_the_others() {
    ending_ = true;
    for (auto& ward : wards_) ward.again = Clock::time_point::max();
    hand_on(SIGTERM);
    kill_at_ = Clock::now() + patience_.kill;
}

void Supervisor::do_what_is_due() {
    const auto now = Clock::now();
    if (now >= hand_on_at_) {
        hand_on_at_ = Clock::time_point::max();
        hand_on(held_back_);
    }
    if (now >= kill_at_) {
        kill_at_ = Clock::time_point::max();
        for (const auto& ward : wards_)
            if (ward.pid != 0) say(ward.name + " does not end by SIGTERM: SIGKILL");
        hand_on(SIGKILL);
    }
    for (auto& ward : wards_) {
        if (now < ward.again) continue;
        ward.again = Clock::time_point::max();
        const auto pid = fork_with(ward.become);
        ward.pid = pid.value_or(0);
        ward.started = now;
        if (pid) continue;
        say_failure(pid.error());
        if (status_ == 0) status_ = ward.status;
        end_the_others();
    }
}

void Supervisor::hear_helper() {
    if (lines_ < 0) return;
    std::array<char, 512> part{};
    ssize_t got = 0;
    while ((got = read(lines_, part.data(), part.size())) > 0) {
        line_.append(part.data(), static_cast<std::size_t>(got));
        for (auto end = line_.find('\n'); end != std::string::npos; end = line_.find('\n')) {
            hear_(line_.substr(0, end));
            line_.erase(0, end + 1);
        }
        if (line_.size() > kMostLine) line_.clear();
    }
    if (got < 0 && errno == EAGAIN) return;
    close(std::exchange(lines_, -1));
}

void Supervisor::end_helper() {
    if (helper_ > 0) {
        kill(helper_, SIGKILL);
        waitpid(helper_, nullptr, 0);
        helper_ = 0;
    }
    if (lines_ >= 0) close(std::exchange(lines_, -1));
}

}  // namespace numalease::client
