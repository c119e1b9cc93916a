#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "model/error.hpp"

namespace numalease::model {

/// A set of small kernel numbers (CPUs or nodes) in the kernel's list format, "0-3,8".
/// Numbers may be sparse; nothing is ever derived from their count.
/// Source: Documentation/admin-guide/kernel-parameters.rst, "cpu lists".
class IndexSet {
public:
    IndexSet() = default;
    IndexSet(std::initializer_list<unsigned> items);

    /// Parses "0-3,8". The empty string is the empty set. `limit` is the first number refused.
    /// Errors: invalid_request for "0-", "3-1", "0,,2", signs, blanks and numbers from `limit` on.
    static Result<IndexSet> parse_list(std::string_view text, unsigned limit);
    static IndexSet range(unsigned first, unsigned last);

    [[nodiscard]] bool contains(unsigned item) const;
    void add(unsigned item);
    void remove(unsigned item);
    [[nodiscard]] bool empty() const { return words_.empty(); }
    [[nodiscard]] unsigned size() const;
    [[nodiscard]] unsigned first() const;  ///< smallest member; the set must not be empty
    [[nodiscard]] std::vector<unsigned> items() const;
    [[nodiscard]] bool covers(const IndexSet& other) const;
    [[nodiscard]] bool intersects(const IndexSet& other) const;
    [[nodiscard]] std::string text() const;  ///< "0-3,8"; empty for the empty set

    /// Little-endian bit mask as systemd's AllowedCPUs= and set_mempolicy(2) take it.
    [[nodiscard]] std::vector<std::uint8_t> bytes() const;
    static IndexSet from_bytes(const std::vector<std::uint8_t>& mask);

    IndexSet& operator|=(const IndexSet& other);
    IndexSet& operator&=(const IndexSet& other);
    IndexSet& operator-=(const IndexSet& other);
    friend IndexSet operator|(IndexSet a, const IndexSet& b) { return a |= b; }
    friend IndexSet operator&(IndexSet a, const IndexSet& b) { return a &= b; }
    friend IndexSet operator-(IndexSet a, const IndexSet& b) { return a -= b; }
    bool operator==(const IndexSet&) const = default;

private:
    void trim();
    std::vector<std::uint64_t> words_;  // no trailing zero word, so equality is by value
};

inline constexpr unsigned kCpuLimit = 8192;   ///< CONFIG_NR_CPUS of the largest distribution kernels
inline constexpr unsigned kNodeLimit = 1024;  ///< MAX_NUMNODES with CONFIG_NODES_SHIFT=10

/// CPUs by their kernel numbers.
struct CpuSet : IndexSet {
    using IndexSet::IndexSet;
    CpuSet() = default;
    CpuSet(IndexSet set) : IndexSet(std::move(set)) {}
    static Result<CpuSet> parse(std::string_view text) {
        auto set = parse_list(text, kCpuLimit);
        if (!set) return std::unexpected(set.error());
        return CpuSet(std::move(*set));
    }
    bool operator==(const CpuSet&) const = default;
};

/// NUMA nodes by their kernel numbers.
struct NodeSet : IndexSet {
    using IndexSet::IndexSet;
    NodeSet() = default;
    NodeSet(IndexSet set) : IndexSet(std::move(set)) {}
    static Result<NodeSet> parse(std::string_view text) {
        auto set = parse_list(text, kNodeLimit);
        if (!set) return std::unexpected(set.error());
        return NodeSet(std::move(*set));
    }
    bool operator==(const NodeSet&) const = default;
};

}  // namespace numalease::model
