#include "model/units.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace numalease::model {

namespace {

struct Unit {
    std::string_view name;
    std::uint64_t factor;
};

constexpr std::array kSizeUnits{Unit{"T", kGiB * 1024}, Unit{"G", kGiB}, Unit{"M", kMiB}, Unit{"K", kKiB}};

constexpr std::uint64_t kSecond = 1'000'000;
constexpr std::uint64_t kDay = 86'400 * kSecond;
constexpr std::array kTimeUnits{Unit{"us", 1},
                                Unit{"ms", 1'000},
                                Unit{"seconds", kSecond},
                                Unit{"second", kSecond},
                                Unit{"sec", kSecond},
                                Unit{"s", kSecond},
                                Unit{"minutes", 60 * kSecond},
                                Unit{"minute", 60 * kSecond},
                                Unit{"min", 60 * kSecond},
                                Unit{"m", 60 * kSecond},
                                Unit{"hours", 3600 * kSecond},
                                Unit{"hour", 3600 * kSecond},
                                Unit{"hr", 3600 * kSecond},
                                Unit{"h", 3600 * kSecond},
                                Unit{"days", kDay},
                                Unit{"day", kDay},
                                Unit{"d", kDay},
                                Unit{"weeks", 7 * kDay},
                                Unit{"week", 7 * kDay},
                                Unit{"w", 7 * kDay}};

/// Reads "12" or "1.5" from the front of `rest` and multiplies; false where there is no number or no room.
bool scaled(std::string_view number, std::uint64_t factor, std::uint64_t& out) {
    std::uint64_t whole = 0;
    const auto dot = number.find('.');
    const auto integral = number.substr(0, dot);
    const auto [end, error] = std::from_chars(integral.data(), integral.data() + integral.size(), whole);
    if (error != std::errc() || end != integral.data() + integral.size()) return false;
    if (__builtin_mul_overflow(whole, factor, &out)) return false;
    if (dot == std::string_view::npos) return true;
    const auto digits = number.substr(dot + 1);
    std::uint64_t fraction = 0;
    if (digits.empty() || digits.size() > 6) return false;
    const auto [fraction_end, fraction_error] = std::from_chars(digits.data(), digits.data() + digits.size(), fraction);
    if (fraction_error != std::errc() || fraction_end != digits.data() + digits.size()) return false;
    const auto part = static_cast<long double>(fraction) / std::pow(10.0L, static_cast<long double>(digits.size()));
    return !__builtin_add_overflow(out, static_cast<std::uint64_t>(part * static_cast<long double>(factor)), &out);
}

}  // namespace

std::string_view trim(std::string_view text) {
    constexpr std::string_view kBlank = " \t\n\r";
    const auto first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

Result<Bytes> parse_bytes(std::string_view text) {
    const auto digits = text.find_first_not_of("0123456789.");
    const auto number = text.substr(0, digits);
    auto suffix = digits == std::string_view::npos ? std::string_view{} : text.substr(digits);
    if (suffix.ends_with("iB")) suffix.remove_suffix(2);
    std::uint64_t factor = suffix.empty() || suffix == "B" ? 1 : 0;
    for (const auto& unit : kSizeUnits)
        if (suffix == unit.name) factor = unit.factor;
    Bytes out = 0;
    if (number.empty() || factor == 0 || !scaled(number, factor, out))
        return fail(Errc::invalid_request, "'" + std::string(text) + "' is not a size like 8G or 512M");
    return out;
}

std::string bytes_text(Bytes bytes) {
    for (const auto& unit : kSizeUnits) {
        if (bytes < unit.factor) continue;
        const Bytes tenths = bytes / unit.factor * 10 + bytes % unit.factor * 10 / unit.factor;
        std::string out = std::to_string(tenths / 10);
        if (tenths % 10 != 0) out += '.' + std::to_string(tenths % 10);
        return out + std::string(unit.name);
    }
    return std::to_string(bytes);
}

Result<Micros> parse_duration(std::string_view text) {
    const auto bad = [&] {
        return fail(Errc::invalid_request, "'" + std::string(text) + "' is not a time like 90s or 2h");
    };
    constexpr auto kMax = static_cast<std::uint64_t>(kNever.count());
    std::uint64_t total = 0;
    auto rest = trim(text);
    if (rest.empty()) return bad();
    while (!rest.empty()) {
        const auto digits = rest.find_first_not_of("0123456789.");
        const auto number = rest.substr(0, digits);
        rest.remove_prefix(number.size());
        rest = trim(rest);
        const auto name = rest.substr(0, rest.find_first_of("0123456789. \t"));
        rest.remove_prefix(name.size());
        rest = trim(rest);
        std::uint64_t factor = name.empty() ? kSecond : 0;
        for (const auto& unit : kTimeUnits)
            if (name == unit.name) factor = unit.factor;
        std::uint64_t part = 0;
        if (number.empty() || factor == 0 || !scaled(number, factor, part)) return bad();
        if (__builtin_add_overflow(total, part, &total) || total > kMax) return bad();
    }
    return Micros(static_cast<std::int64_t>(total));
}

std::string duration_text(Micros time) {
    constexpr std::array kShown{Unit{"d", kDay},    Unit{"h", 3600 * kSecond}, Unit{"min", 60 * kSecond},
                                Unit{"s", kSecond}, Unit{"ms", 1'000},         Unit{"us", 1}};
    if (time == kNever) return "never";
    auto rest = static_cast<std::uint64_t>(time.count() < 0 ? 0 : time.count());
    std::string out;
    int shown = 0;
    for (const auto& unit : kShown) {
        if (rest < unit.factor || shown == 2) continue;
        out += (shown++ == 0 ? "" : " ") + std::to_string(rest / unit.factor) + std::string(unit.name);
        rest %= unit.factor;
    }
    return out.empty() ? "0s" : out;
}

Result<std::uint64_t> parse_unsigned(std::string_view text, std::string_view what, std::uint64_t max) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size() || value > max)
        return fail(Errc::invalid_request,
                    std::string(what) + ": '" + std::string(text) + "' is not a number up to " + std::to_string(max));
    return value;
}

}  // namespace numalease::model
