#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "host/journal.hpp"
#include "model/units.hpp"

namespace numalease::host {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::string_view kKernelLock = "sys/kernel/mm";

/// Holder of a lock on the open file, by /proc/locks of `root`; empty where it does not say.
/// Format: "1: FLOCK  ADVISORY  WRITE 1234 00:17:5678 0 EOF".
std::string holder_by_kernel(const Root& root, int fd) {
    struct stat facts{};
    const auto text = root.read("proc/locks");
    if (!text || ::fstat(fd, &facts) != 0) return {};
    std::array<char, 64> file{};
    std::snprintf(file.data(), file.size(), " %02x:%02x:%llu ", major(facts.st_dev), minor(facts.st_dev),
                  static_cast<unsigned long long>(facts.st_ino));
    const auto found = text->find(file.data());
    if (found == std::string::npos || found == 0) return {};
    const auto blank = text->rfind(' ', found - 1);
    return blank == std::string::npos ? std::string{} : text->substr(blank + 1, found - blank - 1);
}

/// What a holder wrote into its lock file.  Shape: "1234\n".
std::string holder_by_file(int fd) {
    std::array<char, 32> text{};
    const auto got = ::pread(fd, text.data(), text.size(), 0);
    const auto pid = model::trim(std::string_view(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0));
    return model::parse_unsigned(pid, "pid", 1U << 22U) ? std::string(pid) : std::string{};
}

std::unexpected<model::Error> held(const std::string& what, const std::string& pid, int err) {
    return fail(Errc::already_running,
                "another process" + (pid.empty() ? std::string{} : " (PID " + pid + ')') + " holds " + what +
                    ": one numa-leased serves a kernel; use that one, or stop it first",
                err);
}

Result<void> lock(int fd, const std::string& what) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return {};
    return fail(errno == EWOULDBLOCK ? Errc::already_running : Errc::io,
                "cannot lock " + what + ": " + errno_text(errno), errno);
}

}  // namespace

Result<Locks> take_locks(const Root& root, const std::string& runtime_directory) {
    Locks locks;
    const auto path = runtime_directory + "/lock";
    ::mkdir(runtime_directory.c_str(), 0755);
    locks.runtime = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!locks.runtime) {
        const int err = errno;
        return fail(Errc::io, "cannot open " + path + ": " + errno_text(err), err);
    }
    if (auto done = lock(locks.runtime.get(), path); !done) {
        if (done.error().code != Errc::already_running) return std::unexpected(done.error());
        return held(path, holder_by_file(locks.runtime.get()), done.error().err);
    }
    // The number is for the message above only; the lock itself is the truth.
    const auto pid = std::to_string(::getpid()) + '\n';
    if (::ftruncate(locks.runtime.get(), 0) != 0 ||
        ::pwrite(locks.runtime.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
        // A full disk: the lock holds all the same.
    }

    auto kernel = root.open_below(kKernelLock, O_RDONLY | O_DIRECTORY);
    if (!kernel && kernel.error().code == Errc::unsupported) return locks;  // no /sys here, so nothing to share
    if (!kernel) return std::unexpected(kernel.error());
    locks.kernel = std::move(*kernel);
    if (auto done = lock(locks.kernel.get(), root.full_path(kKernelLock)); !done) {
        if (done.error().code != Errc::already_running) return std::unexpected(done.error());
        return held(root.full_path(kKernelLock), holder_by_kernel(root, locks.kernel.get()), done.error().err);
    }
    return locks;
}

}  // namespace numalease::host
