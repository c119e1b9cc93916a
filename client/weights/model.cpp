#include "weights/model.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

namespace numalease::weights {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::size_t kDigits = 5;
constexpr std::uint64_t kMaxParts = 4096;

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

}  // namespace

Result<Model> read_model(const std::string& file) {
    const auto split = split_of(file);
    Model out;
    out.file = file;
    const auto parts = split ? split->count : 1;
    for (std::uint64_t number = 1; number <= parts; ++number) {
        out.files.push_back(split ? split->part(number) : file);
        auto part = read_gguf(out.files.back());
        if (!part) return std::unexpected(part.error());
        out.stored += part->file;  // a file's size is below 2^63, and there are few
        if (number == 1) {
            const auto says = part->number("split.count", 1);
            if (says > 1 && says != parts)
                return fail(Errc::unreadable, "model " + file + " is one of " + std::to_string(says) +
                                                  " parts; name it as gguf-split does, …-00001-of-0000N.gguf");
            out.header = std::move(*part);
            continue;
        }
        auto& tensors = out.header.tensors;
        if (part->tensors.size() > kMaxTensors - std::min<std::uint64_t>(kMaxTensors, tensors.size()))
            return fail(Errc::unreadable,
                        "model " + file + " has more than " + std::to_string(kMaxTensors) + " tensors");
        std::ranges::move(part->tensors, std::back_inserter(tensors));
        out.header.has_unknown_type = out.header.has_unknown_type || part->has_unknown_type;
    }
    return out;
}

}  // namespace numalease::weights
