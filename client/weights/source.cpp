#include "weights/source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace numalease::weights {

using model::Errc;
using model::fail;
using model::Result;

Result<Source> Source::open(const std::string& file) {
    // Not to wait for a writer, where it is a pipe.
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return fail(Errc::unreadable, "model " + file + ": " + std::strerror(errno), errno);
    Source out;
    out.name_ = file;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);  // nothing is read ahead
    char first = 0;
    const iovec byte{.iov_base = &first, .iov_len = 1};
    // EAGAIN: it would have to be read from the disk.
    out.file_.get_deleter().was_cached = preadv2(fd, &byte, 1, 0, RWF_NOWAIT) >= 0 || errno != EAGAIN;
    out.file_.reset(fdopen(fd, "rb"));
    struct stat facts{};
    if (!out.file_) {
        close(fd);
        return fail(Errc::unreadable, "model " + file + ": " + std::strerror(errno), errno);
    }
    if (fstat(fd, &facts) < 0 || !S_ISREG(facts.st_mode))
        return fail(Errc::unreadable, "model " + file + ": not a file");
    out.size_ = static_cast<model::Bytes>(facts.st_size);
    return out;
}

void Source::Close::operator()(std::FILE* file) const {
    constexpr off_t kBuffer = 65'536;  // stdio reads that much further at most
    if (!was_cached)
        (void)posix_fadvise(fileno(file), 0, std::max<off_t>(0, ftello(file)) + kBuffer, POSIX_FADV_DONTNEED);
    (void)std::fclose(file);
}

bool Source::read(void* to, std::size_t count) {
    ok_ = ok_ && count <= size_ - offset_ && std::fread(to, 1, count, file_.get()) == count;
    if (ok_) offset_ += count;
    return ok_;
}

bool Source::skip(std::uint64_t count) {
    // A seek throws away what stdio has read ahead.
    std::array<char, 256> little{};
    if (count <= little.size()) return read(little.data(), count);
    ok_ = ok_ && count <= size_ - offset_ && fseeko(file_.get(), static_cast<off_t>(count), SEEK_CUR) == 0;
    if (ok_) offset_ += count;
    return ok_;
}

}  // namespace numalease::weights
