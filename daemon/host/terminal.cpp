#include "host/terminal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "host/lines.hpp"
#include "host/process.hpp"

namespace numalease::host {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr unsigned kPtsMajor = 136;  // Source: admin-guide/devices.txt, Unix98 PTY slaves

/// Field 7 of /proc/PID/stat. Format: minor in bits 31 to 20 and 7 to 0, major in 15 to 8. Source: proc(5).
Result<unsigned> terminal_number(const Root& proc_root, int pid) {
    constexpr std::size_t kTerminal = 4;  // counted from the state, which is field 3
    const auto text = proc_root.read(std::to_string(pid) + "/stat");
    const auto end = text ? text->rfind(')') : std::string::npos;
    const auto words =
        words_of(end == std::string::npos ? std::string_view() : std::string_view(*text).substr(end + 1));
    const auto number =
        model::parse_unsigned(words.size() > kTerminal ? words[kTerminal] : "", "terminal", ~std::uint32_t{0});
    if (!number || *number == 0) return fail(Errc::unsupported, "no terminal");
    const auto major = (*number >> 8U) & 0xfffU;
    if (major != kPtsMajor) return fail(Errc::unsupported, "a terminal that is not below /dev/pts");
    return static_cast<unsigned>((*number & 0xffU) | ((*number >> 12U) & 0xfff00U));
}

/// A container has terminals of its own with the same numbers. What the process has open tells whose they are; where
/// it has none of them open, whom the file belongs to must do.
bool is_its_own(const Root& proc_root, int pid, const struct stat& terminal) {
    bool other = false;
    for (int fd = 0; fd < 3; ++fd) {
        struct stat facts{};
        const auto path = std::to_string(pid) + "/fd/" + std::to_string(fd);
        if (::fstatat(proc_root.fd(), path.c_str(), &facts, 0) != 0 || !S_ISCHR(facts.st_mode)) continue;
        if (facts.st_dev == terminal.st_dev && facts.st_ino == terminal.st_ino) return true;
        other = other || facts.st_rdev == terminal.st_rdev;
    }
    struct stat owner{};
    return !other && ::fstatat(proc_root.fd(), std::to_string(pid).c_str(), &owner, 0) == 0 &&
           owner.st_uid == terminal.st_uid;
}

}  // namespace

Result<std::string> write_to_terminal(const Root& proc_root, const Root& pts, const model::Process& process,
                                      std::string_view text) {
    const auto number = terminal_number(proc_root, process.pid);
    if (!number) return std::unexpected(number.error());
    const auto name = "pts/" + std::to_string(*number);
    const UniqueFd file(
        ::openat(pts.fd(), std::to_string(*number).c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
    struct stat facts{};
    if (!file || ::fstat(file.get(), &facts) != 0) return fail(Errc::io, name + ": " + errno_text(errno), errno);
    if (!S_ISCHR(facts.st_mode) || facts.st_rdev != makedev(kPtsMajor, *number))
        return fail(Errc::denied, name + " is no such terminal");
    if ((facts.st_mode & S_IWGRP) == 0) return fail(Errc::denied, name + " wants no messages (mesg n)");
    // After it is open: of a process that is gone, the terminal may be somebody else's by now.
    if (!is_its_own(proc_root, process.pid, facts) || !is_alive(proc_root, process))
        return fail(Errc::denied, name + " is not the terminal of process " + std::to_string(process.pid));
    const auto put = ::write(file.get(), text.data(), text.size());
    if (put != static_cast<ssize_t>(text.size())) {
        const int err = put < 0 ? errno : EAGAIN;
        return fail(Errc::io, name + ": " + errno_text(err), err);
    }
    return name;
}

Result<std::string> write_to_one_of(const Root& proc_root, const std::vector<model::Process>& processes,
                                    std::string_view text) {
    model::Error why{Errc::unsupported, "no process of it has a terminal"};
    const auto pts = Root::open("/dev/pts");
    if (!pts) return std::unexpected(std::move(why));
    for (const auto& process : processes) {
        auto written = write_to_terminal(proc_root, *pts, process, text);
        if (written) return written;
        if (written.error().code != Errc::unsupported) why = std::move(written.error());
    }
    return std::unexpected(std::move(why));
}

}  // namespace numalease::host
