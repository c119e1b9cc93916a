#include <algorithm>

#include "where/where.hpp"

namespace numalease::client {

namespace {

/// Below it nobody looks at a mapping by itself.
constexpr Bytes kSmallest = model::kMiB;
/// KV-sized: at least this much, or this part of everything where that is less. 64 MiB is the KV cache of a small model
/// at a few hundred tokens (8 KV heads of 128 in 32 layers, 16 bit: 128 KiB a token).
constexpr Bytes kKvSize = 64 * model::kMiB;
constexpr Bytes kKvPart = 16;
constexpr std::size_t kMostMappings = 16384;  ///< kept by themselves, the largest
constexpr std::size_t kMostFiles = 4096;
constexpr std::size_t kMostPolicies = 256;

bool larger(const Large& a, const Large& b) { return a.size > b.size; }

}  // namespace

NodeUse& NodeUse::operator+=(const NodeUse& other) {
    anonymous += other.anonymous;
    shared += other.shared;
    file += other.file;
    hugetlb += other.hugetlb;
    large += other.large;
    threads += other.threads;
    return *this;
}

NodeUse Found::all() const {
    NodeUse sum;
    for (const auto& [node, use] : nodes) sum += use;
    return sum;
}

void Tally::add(int pid, const Mapping& mapping) {
    const auto size = sum_of(mapping.nodes);
    if (size == 0) return;
    const auto kind = kind_of(mapping);
    PerNode of_file;
    for (const auto& [node, bytes] : mapping.nodes) {
        auto& use = nodes_[node];
        // Copies of a file's pages are anonymous; on which nodes they are is not told apart.
        const auto owned = kind == Kind::file || kind == Kind::shared
                               ? static_cast<Bytes>(static_cast<double>(bytes) * static_cast<double>(mapping.owned) /
                                                    static_cast<double>(size))
                               : bytes;
        if (kind == Kind::hugetlb) {
            use.hugetlb += bytes;
            continue;
        }
        use.anonymous += owned;
        (kind == Kind::file ? use.file : use.shared) += bytes - owned;
        if (bytes > owned) of_file[node] = bytes - owned;
    }
    if (kind == Kind::file) {
        if (of_file.empty() || (files_.size() >= kMostFiles && !files_.contains(mapping.file))) return;
        auto& file = files_[mapping.file];
        file.kind = kind;
        file.name = mapping.file;
        for (const auto& [node, bytes] : of_file) file.nodes[node] += bytes;
        return;
    }
    if (!mapping.policy.empty() && (policies_.size() < kMostPolicies || policies_.contains(mapping.policy)))
        policies_[mapping.policy] += size;
    if (size < kSmallest) return;
    mappings_.push_back({pid, mapping.start, kind, mapping.file, mapping.policy, mapping.nodes, size});
    if (mappings_.size() >= 2 * kMostMappings) keep_largest();
}

void Tally::keep_largest() {
    std::ranges::stable_sort(mappings_, larger);
    if (mappings_.size() > kMostMappings) mappings_.resize(kMostMappings);
}

void Tally::finish(Found& found) {
    for (const auto& [node, use] : nodes_) found.nodes[node] += use;
    found.policies = policies_;
    found.kv_size = std::max(kSmallest, std::min(kKvSize, found.all().total() / kKvPart));
    keep_largest();
    for (const auto& mapping : mappings_) {
        if (mapping.size < found.kv_size) break;
        for (const auto& [node, bytes] : mapping.nodes) found.nodes[node].large += bytes;
        found.mappings.push_back(mapping);
    }
    for (auto& [name, file] : files_) {
        file.size = sum_of(file.nodes);
        if (file.size >= found.kv_size) found.files.push_back(file);
    }
    std::ranges::stable_sort(found.files, larger);
}

}  // namespace numalease::client
