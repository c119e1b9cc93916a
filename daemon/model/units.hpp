#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "model/error.hpp"

namespace numalease::model {

/// A number of bytes.
using Bytes = std::uint64_t;
inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

using Micros = std::chrono::microseconds;

/// Parses an IEC size: "8G", "8GiB", "1.5G", "512M", "4096" (bytes). 1K is 1024.
/// Errors: invalid_request for anything else, and for what does not fit in 64 bits.
Result<Bytes> parse_bytes(std::string_view text);

/// "8G", "1.5G", "260M", "17K", "12": the largest unit of which there is at least one, one decimal at most.
std::string bytes_text(Bytes bytes);

/// The longest time there is. Half of what there is room for: a moment of a clock plus any time is still a moment.
inline constexpr Micros kNever{std::numeric_limits<std::int64_t>::max() / 2};

/// Parses a time as systemd writes them: "90s", "2h", "1h 30min", "250ms"; a bare number is seconds.
/// Errors: invalid_request.  Source: systemd.time(7).
Result<Micros> parse_duration(std::string_view text);

/// "1h 30min", "90s" as "1min 30s", "250ms", "0s", "never".
std::string duration_text(Micros time);

/// Parses an unsigned decimal number below or equal to `max`. Errors: invalid_request naming `what`.
Result<std::uint64_t> parse_unsigned(std::string_view text, std::string_view what, std::uint64_t max);

std::string_view trim(std::string_view text);

}  // namespace numalease::model
