#include "model/index_set.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <charconv>

namespace numalease::model {

namespace {

constexpr unsigned kWordBits = 64;

Result<unsigned> parse_number(std::string_view& rest, std::string_view whole, unsigned limit) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error == std::errc::result_out_of_range || (error == std::errc() && value >= limit))
        return fail(Errc::invalid_request,
                    "'" + std::string(whole) + "': number too large, the limit is " + std::to_string(limit - 1));
    if (error != std::errc())
        return fail(Errc::invalid_request, "'" + std::string(whole) + "' is not a list like 0-3,8");
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return value;
}

}  // namespace

IndexSet::IndexSet(std::initializer_list<unsigned> items) {
    for (const unsigned item : items) add(item);
}

IndexSet IndexSet::range(unsigned first, unsigned last) {
    IndexSet set;
    for (unsigned item = first; item <= last; ++item) set.add(item);
    return set;
}

Result<IndexSet> IndexSet::parse_list(std::string_view text, unsigned limit) {
    IndexSet set;
    if (text.empty()) return set;
    std::string_view rest = text;
    while (true) {
        const auto first = parse_number(rest, text, limit);
        if (!first) return std::unexpected(first.error());
        unsigned last = *first;
        if (rest.starts_with('-')) {
            rest.remove_prefix(1);
            const auto end = parse_number(rest, text, limit);
            if (!end) return std::unexpected(end.error());
            last = *end;
        }
        if (last < *first)
            return fail(Errc::invalid_request, "'" + std::string(text) + "': a range runs from low to high");
        set |= range(*first, last);
        if (rest.empty()) return set;
        if (!rest.starts_with(','))
            return fail(Errc::invalid_request, "'" + std::string(text) + "' is not a list like 0-3,8");
        rest.remove_prefix(1);
    }
}

bool IndexSet::contains(unsigned item) const {
    const std::size_t word = item / kWordBits;
    return word < words_.size() && ((words_[word] >> (item % kWordBits)) & 1U) != 0;
}

void IndexSet::add(unsigned item) {
    const std::size_t word = item / kWordBits;
    if (word >= words_.size()) words_.resize(word + 1, 0);
    words_[word] |= std::uint64_t{1} << (item % kWordBits);
}

void IndexSet::remove(unsigned item) {
    const std::size_t word = item / kWordBits;
    if (word < words_.size()) words_[word] &= ~(std::uint64_t{1} << (item % kWordBits));
    trim();
}

unsigned IndexSet::size() const {
    unsigned count = 0;
    for (const auto word : words_) count += static_cast<unsigned>(std::popcount(word));
    return count;
}

unsigned IndexSet::first() const {
    assert(!empty());
    for (std::size_t word = 0; word < words_.size(); ++word)
        if (words_[word] != 0)
            return static_cast<unsigned>(word * kWordBits) + static_cast<unsigned>(std::countr_zero(words_[word]));
    return 0;
}

std::vector<unsigned> IndexSet::items() const {
    std::vector<unsigned> out;
    out.reserve(size());
    for (std::size_t word = 0; word < words_.size(); ++word)
        for (auto bits = words_[word]; bits != 0; bits &= bits - 1)
            out.push_back(static_cast<unsigned>(word * kWordBits) + static_cast<unsigned>(std::countr_zero(bits)));
    return out;
}

bool IndexSet::covers(const IndexSet& other) const {
    if (other.words_.size() > words_.size()) return false;
    for (std::size_t word = 0; word < other.words_.size(); ++word)
        if ((other.words_[word] & ~words_[word]) != 0) return false;
    return true;
}

bool IndexSet::intersects(const IndexSet& other) const {
    const auto common = std::min(words_.size(), other.words_.size());
    for (std::size_t word = 0; word < common; ++word)
        if ((words_[word] & other.words_[word]) != 0) return true;
    return false;
}

std::string IndexSet::text() const {
    std::string out;
    const auto all = items();
    for (std::size_t at = 0; at < all.size();) {
        std::size_t end = at;
        while (end + 1 < all.size() && all[end + 1] == all[end] + 1) ++end;
        if (!out.empty()) out += ',';
        out += std::to_string(all[at]);
        if (end > at) out += '-' + std::to_string(all[end]);
        at = end + 1;
    }
    return out;
}

std::vector<std::uint8_t> IndexSet::bytes() const {
    std::vector<std::uint8_t> out;
    for (const auto word : words_)
        for (unsigned shift = 0; shift < kWordBits; shift += 8) out.push_back(static_cast<std::uint8_t>(word >> shift));
    while (!out.empty() && out.back() == 0) out.pop_back();
    return out;
}

IndexSet IndexSet::from_bytes(const std::vector<std::uint8_t>& mask) {
    IndexSet set;
    for (std::size_t byte = 0; byte < mask.size(); ++byte)
        for (unsigned bit = 0; bit < 8; ++bit)
            if ((unsigned{mask[byte]} >> bit & 1U) != 0) set.add(static_cast<unsigned>(byte * 8 + bit));
    return set;
}

IndexSet& IndexSet::operator|=(const IndexSet& other) {
    if (other.words_.size() > words_.size()) words_.resize(other.words_.size(), 0);
    for (std::size_t word = 0; word < other.words_.size(); ++word) words_[word] |= other.words_[word];
    return *this;
}

IndexSet& IndexSet::operator&=(const IndexSet& other) {
    if (words_.size() > other.words_.size()) words_.resize(other.words_.size());
    for (std::size_t word = 0; word < words_.size(); ++word) words_[word] &= other.words_[word];
    trim();
    return *this;
}

IndexSet& IndexSet::operator-=(const IndexSet& other) {
    const auto common = std::min(words_.size(), other.words_.size());
    for (std::size_t word = 0; word < common; ++word) words_[word] &= ~other.words_[word];
    trim();
    return *this;
}

void IndexSet::trim() {
    while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

}  // namespace numalease::model
