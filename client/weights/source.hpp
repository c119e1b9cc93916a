#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "model/units.hpp"

namespace numalease::weights {

/// A file read from its front; what is skipped is not read. It may be cut short meanwhile: then a read fails.
/// What only this has read does not stay in the page cache: it would be where we run, and not where the lease is.
class Source {
public:
    /// Errors: unreadable, naming the file: not there, no right to it, no regular file.
    static model::Result<Source> open(const std::string& file);

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] model::Bytes size() const { return size_; }
    [[nodiscard]] model::Bytes offset() const { return offset_; }

    /// False past the end, or where the file cannot be read; then all that follows fails too.
    bool read(void* to, std::size_t count);
    bool skip(std::uint64_t count);
    [[nodiscard]] bool ok() const { return ok_; }

private:
    struct Close {
        Close() : was_cached(true) {}
        bool was_cached;
        void operator()(std::FILE* file) const;
    };

    std::unique_ptr<std::FILE, Close> file_;
    std::string name_;
    model::Bytes size_ = 0;
    model::Bytes offset_ = 0;
    bool ok_ = true;
};

}  // namespace numalease::weights
