#include "client/model_size.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

namespace numalease::client {

using model::Bytes;
using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::size_t kDigits = 5;
constexpr std::uint64_t kMaxParts = 99999;

/// PREFIX "00001" "-of-" "00003" SUFFIX, as llama.cpp's gguf-split writes it.
struct Split {
    std::string prefix;
    std::uint64_t count = 0;
    std::string suffix;

    [[nodiscard]] std::string part(std::uint64_t number) const {
        const auto padded = [](std::uint64_t n) {
            const auto digits = std::to_string(n);
            return std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits;
        };
        return prefix + padded(number) + "-of-" + padded(count) + suffix;
    }
};

std::optional<Split> split_of(const std::string& file) {
    constexpr std::string_view kSuffix = ".gguf";
    constexpr std::string_view kOf = "-of-";
    constexpr std::size_t kTail = kDigits + kOf.size() + kDigits + kSuffix.size();
    if (file.size() <= kTail || !file.ends_with(kSuffix)) return std::nullopt;
    const auto tail = std::string_view(file).substr(file.size() - kTail);
    if (tail.substr(kDigits, kOf.size()) != kOf) return std::nullopt;
    const auto number = model::parse_unsigned(tail.substr(0, kDigits), "part", kMaxParts);
    const auto count = model::parse_unsigned(tail.substr(kDigits + kOf.size(), kDigits), "parts", kMaxParts);
    if (!number || !count || *number == 0 || *number > *count) return std::nullopt;
    return Split{.prefix = file.substr(0, file.size() - kTail), .count = *count, .suffix = std::string(kSuffix)};
}

Result<Bytes> file_size(const std::string& file) {
    // Opened, not only looked at: a file that cannot be read will not be loaded either.
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat facts{};
    const int failed = fd < 0 || fstat(fd, &facts) < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    if (failed != 0)
        return fail(Errc::unreadable, "model " + file + ": " + std::strerror(failed) + "; say --memory SIZE instead",
                    failed);
    if (!S_ISREG(facts.st_mode))
        return fail(Errc::unreadable, "model " + file + ": not a file; say --memory SIZE instead");
    return static_cast<Bytes>(facts.st_size);
}

}  // namespace

Result<Bytes> model_memory(const std::string& file) {
    constexpr Bytes kAllowance = 10;  // one tenth
    const auto split = split_of(file);
    if (!split) {
        const auto size = file_size(file);
        return size ? Result<Bytes>(*size + *size / kAllowance) : size;
    }
    Bytes total = 0;
    for (std::uint64_t number = 1; number <= split->count; ++number) {
        const auto size = file_size(split->part(number));
        if (!size) return size;
        if (__builtin_add_overflow(total, *size, &total))
            return fail(Errc::unreadable, "model " + file + ": its parts are larger than any memory");
    }
    return total + total / kAllowance;
}

}  // namespace numalease::client
