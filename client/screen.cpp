#include "client/screen.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <string_view>

namespace numalease::client {

namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";

bool put(std::string_view text) {
    while (!text.empty()) {
        const auto written = write(STDOUT_FILENO, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
}

sigset_t ours() {
    sigset_t out;
    sigemptyset(&out);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}) sigaddset(&out, signal);
    return out;
}

std::int64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    constexpr std::int64_t kMillion = 1'000'000;
    return time.tv_sec * kMillion + time.tv_nsec / 1000;
}

}  // namespace

Screen::Screen() {
    const auto mask = ours();
    sigprocmask(SIG_BLOCK, &mask, nullptr);
    signal(SIGPIPE, SIG_IGN);
    signals_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    enter();
}

Screen::~Screen() {
    leave();
    close(signals_);
}

void Screen::enter() {
    has_keys_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    if (has_keys_) {
        auto raw = before_;
        raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    put(kEnter);
}

void Screen::leave() {
    put(kLeave);
    if (has_keys_) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

Screen::Size Screen::size() {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
    return {.columns = size.ws_col, .rows = size.ws_row};
}

bool Screen::show(const std::vector<std::string>& lines) {
    const auto rows = size().rows;
    std::string text = "\x1b[H";
    for (std::size_t i = 0; i < lines.size() && i < rows; ++i) {
        const bool cut = i + 1 == rows && lines.size() > rows;
        text += (i == 0 ? "" : "\r\n") + (cut ? "+ " + std::to_string(lines.size() - i) + " more lines" : lines[i]) +
                "\x1b[K";
    }
    return put(text + "\x1b[J");
}

Screen::Event Screen::wait(model::Micros time) {
    const auto end = now() + time.count();
    while (true) {
        const auto left = end - now();
        if (left <= 0) return Event::time;
        std::array<pollfd, 2> polled{pollfd{.fd = signals_, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = has_keys_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
        if (poll(polled.data(), polled.size(), static_cast<int>(left / 1000 + 1)) < 0 && errno != EINTR)
            return Event::quit;
        signalfd_siginfo info{};
        if (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
            if (info.ssi_signo == SIGWINCH) return Event::resized;
            if (info.ssi_signo != SIGTSTP) return Event::quit;
            leave();
            raise(SIGSTOP);
            enter();
            return Event::resized;
        }
        if (polled[1].revents == 0) continue;
        std::array<char, 64> keys{};
        const auto got = read(STDIN_FILENO, keys.data(), keys.size());
        if (got <= 0) return Event::quit;  // the terminal is gone
        constexpr char kEndOfInput = 4;    // Ctrl-D
        for (const char key : std::string_view(keys.data(), static_cast<std::size_t>(got)))
            if (key == 'q' || key == 'Q' || key == kEndOfInput) return Event::quit;
    }
}

}  // namespace numalease::client
