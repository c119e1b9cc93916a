#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/error.hpp"

namespace numalease::host {

/// strerror(3) without its static buffer: "No space left on device".
std::string errno_text(int err);

/// An owned file descriptor.
class UniqueFd {
public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept;
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    ~UniqueFd();

    [[nodiscard]] int get() const { return fd_; }
    [[nodiscard]] int release() { return std::exchange(fd_, -1); }
    explicit operator bool() const { return fd_ >= 0; }

private:
    int fd_ = -1;
};

/// A directory that stands for "/": the real one, or a fake tree in tests. Paths are relative ("proc/sys/…") and are
/// resolved below it.
class Root {
public:
    /// Errors: io.
    static model::Result<Root> open(const std::string& directory);

    /// Reads a small text file. At most `limit` bytes; a longer file is an error, not a truncation.
    /// Errors: unsupported (ENOENT), io.
    [[nodiscard]] model::Result<std::string> read(std::string_view path, std::size_t limit = 1U << 20U) const;

    /// One write(2) of `text`, O_WRONLY|O_TRUNC|O_CLOEXEC, checked. A short write is an error.
    /// Errors: unsupported (ENOENT), io with the kernel's errno.
    [[nodiscard]] model::Result<void> write(std::string_view path, std::string_view text) const;

    /// Opens a file or directory below the root, close-on-exec.
    /// Errors: unsupported (ENOENT), io.
    [[nodiscard]] model::Result<UniqueFd> open_below(std::string_view path, int flags) const;

    [[nodiscard]] bool exists(std::string_view path) const;
    /// Names in a directory, sorted; empty where there is none.
    [[nodiscard]] std::vector<std::string> list(std::string_view path) const;
    /// Those of them that are numbers: processes, threads.
    [[nodiscard]] std::vector<int> numbers(std::string_view path) const;
    /// The last component of what a link points to: "nvidia" of a device's driver. Empty where there is no link.
    [[nodiscard]] std::string link_name(std::string_view path) const;
    /// True where this root is the running system's own "/", not a fake or dumped tree.
    [[nodiscard]] bool is_this_machine() const;
    /// The path as a person would type it, for messages: "/proc/sys/vm/drop_caches".
    [[nodiscard]] std::string full_path(std::string_view path) const;
    [[nodiscard]] int fd() const { return fd_.get(); }
    [[nodiscard]] const std::string& directory() const { return directory_; }

private:
    Root(UniqueFd fd, std::string directory) : fd_(std::move(fd)), directory_(std::move(directory)) {}
    UniqueFd fd_;
    std::string directory_;
};

}  // namespace numalease::host
