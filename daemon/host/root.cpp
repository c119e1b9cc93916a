#include "host/root.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace numalease::host {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::size_t kReadBlock = 16384;

struct CloseDir {
    void operator()(DIR* directory) const { ::closedir(directory); }
};

std::string relative(std::string_view path) {
    while (path.starts_with('/')) path.remove_prefix(1);
    return path.empty() ? "." : std::string(path);
}

/// Links are resolved as if `root` were "/", so that a fake or dumped tree never leads out of itself. Kernels before
/// 5.6 and some seccomp filters have no openat2: there a plain openat must do.
int open_in_root(int root, const std::string& path, int flags) {
    open_how how{};
    how.flags = static_cast<std::uint64_t>(static_cast<unsigned>(flags | O_CLOEXEC));
    how.resolve = RESOLVE_IN_ROOT;
    long fd = -1;
    for (int tries = 0; tries < 16; ++tries) {  // EAGAIN: a ".." met a rename just then
        fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof(how));
        if (fd >= 0 || (errno != EINTR && errno != EAGAIN)) break;
    }
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) fd = ::openat(root, path.c_str(), flags | O_CLOEXEC);
    return static_cast<int>(fd);
}

std::unexpected<model::Error> refused(std::string_view verb, const std::string& path, int err) {
    const bool missing = err == ENOENT || err == ENOTDIR;
    std::string detail = "cannot " + std::string(verb) + ' ' + path + ": " + errno_text(err);
    if (err == EROFS) detail += " (mounted read-only, as in a container: numa-leased must run outside of it)";
    return fail(missing ? Errc::unsupported : Errc::io, std::move(detail), err);
}

}  // namespace

std::string errno_text(int err) {
    const char* text = ::strerrordesc_np(err);
    return text != nullptr ? text : "error " + std::to_string(err);
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
        if (fd_ >= 0) ::close(fd_);
        fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
}

UniqueFd::~UniqueFd() {
    if (fd_ >= 0) ::close(fd_);
}

Result<Root> Root::open(const std::string& directory) {
    UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) {
        const int err = errno;
        return fail(Errc::io, "cannot open the root directory " + directory + ": " + errno_text(err), err);
    }
    return Root(std::move(fd), directory);
}

Result<UniqueFd> Root::open_below(std::string_view path, int flags) const {
    UniqueFd fd(open_in_root(fd_.get(), relative(path), flags));
    if (!fd) return refused("open", full_path(path), errno);
    return fd;
}

Result<std::string> Root::read(std::string_view path, std::size_t limit) const {
    auto fd = open_below(path, O_RDONLY);
    if (!fd) return std::unexpected(fd.error());
    std::string text;
    while (true) {
        const std::size_t size = text.size();
        // One byte more than the limit, so that a file of just `limit` bytes is told from a longer one.
        text.resize(std::min(size + kReadBlock, limit + 1));
        const ssize_t got = ::read(fd->get(), text.data() + size, text.size() - size);
        const int err = errno;
        text.resize(size + (got > 0 ? static_cast<std::size_t>(got) : 0));
        if (got == 0) return text;
        if (got < 0 && err != EINTR) return refused("read", full_path(path), err);
        if (text.size() > limit)
            return fail(Errc::io,
                        "cannot read " + full_path(path) + ": longer than " + std::to_string(limit) + " bytes", EFBIG);
    }
}

Result<void> Root::write(std::string_view path, std::string_view text) const {
    auto fd = open_below(path, O_WRONLY | O_TRUNC);
    if (!fd) return std::unexpected(fd.error());
    ssize_t put = -1;
    do {
        put = ::write(fd->get(), text.data(), text.size());
    } while (put < 0 && errno == EINTR);
    if (put < 0) return refused("write '" + std::string(text) + "' to", full_path(path), errno);
    if (static_cast<std::size_t>(put) != text.size())
        return fail(Errc::io, "cannot write '" + std::string(text) + "' to " + full_path(path) + ": the kernel took " +
                                  std::to_string(put) + " of " + std::to_string(text.size()) + " bytes");
    return {};
}

bool Root::exists(std::string_view path) const {
    return static_cast<bool>(UniqueFd(open_in_root(fd_.get(), relative(path), O_PATH)));
}

std::vector<std::string> Root::list(std::string_view path) const {
    std::vector<std::string> names;
    auto fd = open_below(path, O_RDONLY | O_DIRECTORY);
    if (!fd) return names;
    const std::unique_ptr<DIR, CloseDir> directory(::fdopendir(fd->get()));
    if (!directory) return names;
    [[maybe_unused]] const int owned_by_directory = fd->release();
    while (const dirent* entry = ::readdir(directory.get())) {
        const std::string_view name(entry->d_name);
        if (name != "." && name != "..") names.emplace_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<int> Root::numbers(std::string_view path) const {
    std::vector<int> out;
    for (const auto& name : list(path)) {
        int number = 0;
        const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
        if (bad == std::errc() && end == name.data() + name.size()) out.push_back(number);
    }
    return out;
}

std::string Root::link_name(std::string_view path) const {
    const auto slash = path.rfind('/');
    const auto folder = open_below(slash == std::string_view::npos ? "" : path.substr(0, slash), O_PATH | O_DIRECTORY);
    if (!folder) return {};
    std::array<char, 4096> target{};
    const std::string name(path.substr(slash + 1));
    const auto size = ::readlinkat(folder->get(), name.c_str(), target.data(), target.size());
    if (size <= 0) return {};
    const std::string_view text(target.data(), static_cast<std::size_t>(size));
    return std::string(text.substr(text.rfind('/') + 1));
}

bool Root::is_this_machine() const {
    struct stat here{};
    struct stat root{};
    return ::fstat(fd_.get(), &here) == 0 && ::stat("/", &root) == 0 && here.st_dev == root.st_dev &&
           here.st_ino == root.st_ino;
}

std::string Root::full_path(std::string_view path) const {
    std::string out = directory_;
    while (out.ends_with('/')) out.pop_back();
    if (!path.starts_with('/')) out += '/';
    return out += path;
}

}  // namespace numalease::host
