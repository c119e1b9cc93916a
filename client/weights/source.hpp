#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "model/units.hpp"

namespace numalease::weights {

/// A file read from its front; what is skipped is not read. It may be cut short meanwhile: then a read fails.
/// Nothing of it comes into the page cache where the file system can do without (O_DIRECT): it would be on the node
/// where we run, and not where the lease is.
class Source {
public:
    /// Errors: unreadable, naming the file: not there, no right to it, no regular file.
    static model::Result<Source> open(const std::string& file);
    Source(Source&& other) noexcept;
    Source& operator=(Source&&) = delete;
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;
    ~Source();

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] model::Bytes size() const { return size_; }
    [[nodiscard]] model::Bytes offset() const { return offset_; }

    /// False past the end, or where the file cannot be read; then all that follows fails too.
    bool read(void* to, std::size_t count);
    bool skip(std::uint64_t count);
    [[nodiscard]] bool ok() const { return ok_; }

private:
    static constexpr std::size_t kBlock = 65'536;  ///< a multiple of every disk's own
    struct alignas(4096) Block {
        std::byte bytes[kBlock];  // NOLINT(*-avoid-c-arrays): read(2) fills it
    };

    Source() = default;
    bool fill();

    int file_ = -1;
    std::unique_ptr<Block> block_;
    model::Bytes block_at_ = 0;
    std::size_t in_block_ = 0;  ///< bytes that are there
    std::string name_;
    model::Bytes size_ = 0;
    model::Bytes offset_ = 0;
    bool ok_ = true;
};

}  // namespace numalease::weights
