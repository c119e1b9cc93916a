#include "weights/source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace numalease::weights {

using model::Errc;
using model::fail;
using model::Result;

Result<Source> Source::open(const std::string& file) {
    // Not to wait for a writer, where it is a pipe.
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    Source out;
    out.name_ = file;
    out.file_ = ::open(file.c_str(), kFlags | O_DIRECT);
    if (out.file_ < 0 && errno == EINVAL) {  // a file system without: most have their files in memory anyway
        out.file_ = ::open(file.c_str(), kFlags);
        if (out.file_ >= 0) (void)posix_fadvise(out.file_, 0, 0, POSIX_FADV_RANDOM);  // nothing is read ahead
    }
    struct stat facts{};
    if (out.file_ < 0 || fstat(out.file_, &facts) < 0)
        return fail(Errc::unreadable, "model " + file + ": " + std::strerror(errno), errno);
    if (!S_ISREG(facts.st_mode)) return fail(Errc::unreadable, "model " + file + ": not a file");
    out.size_ = static_cast<model::Bytes>(facts.st_size);
    out.block_ = std::make_unique<Block>();
    return out;
}

Source::Source(Source&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      block_(std::move(other.block_)),
      block_at_(other.block_at_),
      in_block_(other.in_block_),
      name_(std::move(other.name_)),
      size_(other.size_),
      offset_(other.offset_),
      ok_(other.ok_) {}

Source::~Source() {
    if (file_ >= 0) (void)close(file_);
}

/// Reads the block that the offset is in.
bool Source::fill() {
    block_at_ = offset_ / kBlock * kBlock;
    in_block_ = 0;
    while (in_block_ < kBlock) {
        const auto got =
            pread(file_, block_->bytes + in_block_, kBlock - in_block_, static_cast<off_t>(block_at_ + in_block_));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        in_block_ += static_cast<std::size_t>(got);
        // An end that is no multiple of the disk's own block is the end: reading on from there is an error.
        if (in_block_ % 512 != 0) break;
    }
    return offset_ < block_at_ + in_block_;
}

bool Source::read(void* to, std::size_t count) {
    ok_ = ok_ && count <= size_ - offset_;
    auto* out = static_cast<std::byte*>(to);
    while (ok_ && count > 0) {
        if (offset_ < block_at_ || offset_ >= block_at_ + in_block_) {
            ok_ = fill();
            continue;
        }
        const auto from = static_cast<std::size_t>(offset_ - block_at_);
        const auto part = std::min(count, in_block_ - from);
        std::memcpy(out, block_->bytes + from, part);
        out += part;
        offset_ += part;
        count -= part;
    }
    return ok_;
}

bool Source::skip(std::uint64_t count) {
    ok_ = ok_ && count <= size_ - offset_;
    if (ok_) offset_ += count;
    return ok_;
}

}  // namespace numalease::weights
