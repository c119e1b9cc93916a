#include "where/sampling.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace numalease::client {

namespace {

/// [0, 1), the same for the same `n`.  Source: SplitMix64, https://prng.di.unimi.it/splitmix64.c
double random_of(std::uint64_t n) {
    constexpr unsigned kUsed = 53;  // bits of a double
    std::uint64_t z = (n + 1) * 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    z ^= z >> 31U;
    return std::ldexp(static_cast<double>(z >> (64U - kUsed)), -static_cast<int>(kUsed));
}

double pages_in(const Span& span, Bytes page) {
    return std::max(1.0, std::floor(static_cast<double>(span.end - span.start) / static_cast<double>(page)));
}

/// Anonymous, hugetlb, and what may be read again: by the path alone, a file on a tmpfs cannot be told from another.
constexpr std::size_t kGroups = 3;
std::size_t group_of(const Mapping& mapping) {
    const auto kind = kind_of(mapping);
    return kind == Kind::anonymous ? 0 : kind == Kind::hugetlb ? 1 : 2;
}

}  // namespace

std::vector<Pick> pick_pages(const std::vector<Span>& spans, Bytes resident, std::size_t count, Bytes page) {
    const double most = std::max(1.0, std::ceil(static_cast<double>(resident) / static_cast<double>(page)));
    double all = 0;
    for (const auto& span : spans) all += std::min(pages_in(span, page), most);
    std::vector<Pick> out;
    if (all == 0 || count == 0) return out;
    const double step = std::max(1.0, all / static_cast<double>(count));
    double begin = 0;  // of the span, in pages that count
    const auto place = [&](std::uint64_t part) { return (static_cast<double>(part) + random_of(part)) * step; };
    double at = place(0);
    for (std::size_t i = 0; i < spans.size(); ++i) {
        const double pages = pages_in(spans[i], page);
        const double counted = std::min(pages, most);
        for (; at < begin + counted && out.size() < count; at = place(out.size())) {
            const double inside = std::min(std::floor((at - begin) * (pages / counted)), pages - 1);
            out.push_back({i, spans[i].start + static_cast<std::uint64_t>(inside) * page});
        }
        begin += counted;
    }
    return out;
}

std::vector<Mapping> estimate(const std::vector<Span>& spans, const std::vector<Pick>& picks,
                              const std::vector<int>& nodes, const ProcessStatus& status,
                              const std::set<std::string>& hugetlb_devices) {
    std::vector<Mapping> out;
    std::array<double, kGroups> seen{};
    for (std::size_t i = 0; i < picks.size();) {
        const auto& span = spans[picks[i].span];
        Mapping mapping{
            .start = span.start, .policy = {}, .file = span.file, .hugetlb = false, .nodes = {}, .owned = 0};
        mapping.hugetlb = span.file.starts_with("/anon_hugepage") || hugetlb_devices.contains(span.device);
        std::map<unsigned, std::size_t> hits;
        const auto first = i;
        for (; i < picks.size() && picks[i].span == picks[first].span; ++i)
            if (nodes[i] >= 0) ++hits[static_cast<unsigned>(nodes[i])];
        const double worth = static_cast<double>(span.end - span.start) / static_cast<double>(i - first);
        for (const auto& [node, count] : hits)
            mapping.nodes[node] = static_cast<Bytes>(static_cast<double>(count) * worth);
        if (mapping.nodes.empty()) continue;
        seen.at(group_of(mapping)) += static_cast<double>(sum_of(mapping.nodes));
        out.push_back(std::move(mapping));
    }
    const std::array<Bytes, kGroups> known{status.anonymous, status.hugetlb, status.file + status.shared};
    for (auto& mapping : out) {
        const auto group = group_of(mapping);
        const double scale = static_cast<double>(known.at(group)) / seen.at(group);
        for (auto& [node, bytes] : mapping.nodes) bytes = static_cast<Bytes>(static_cast<double>(bytes) * scale);
        mapping.owned = group == 0 ? sum_of(mapping.nodes) : 0;
    }
    return out;
}

}  // namespace numalease::client
