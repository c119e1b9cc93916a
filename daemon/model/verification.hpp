#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/units.hpp"
#include "model/value.hpp"

namespace numalease::model {

/// What a cgroup is charged for on one node: what its own processes touched first, whoever uses it now.  Units: bytes.
/// Source: admin-guide/cgroup-v2.rst, memory.numa_stat. Pages of hugetlbfs are not in it.
struct Charged {
    Bytes anonymous = 0;  ///< and shared memory: what no file holds
    Bytes file = 0;       ///< page cache
    Bytes mapped = 0;     ///< of `file`

    [[nodiscard]] Bytes total() const { return anonymous + file; }
    Charged& operator+=(const Charged& other);
    bool operator==(const Charged&) const = default;
};
using ChargedByNode = std::map<unsigned, Charged>;

Charged sum_of(const ChargedByNode& nodes);

/// Where the memory of a lease was when its engine was ready, against what was leased.
struct Verification {
    Micros at{0};         ///< real clock; 0: never looked at
    std::string unknown;  ///< why nothing below is known: "it has no cgroup of its own"
    ChargedByNode nodes;  ///< those that hold something
    Bytes inside = 0;     ///< of all of it, on leased nodes
    /// Where it was to be spread: the fullest node against its part, in thousandths; 1000 is even.
    std::optional<std::uint64_t> imbalance_permille;
    std::vector<std::string> warnings;  ///< one line each

    bool operator==(const Verification&) const = default;
};

Dict to_dict(const Verification& it);
Verification verification_from_dict(const Dict& dict);

/// "1.2G, 100 % of it on leased nodes (node 0: 600M, node 1: 600M); 1G anonymous, 200M of files, 180M of it mapped".
std::string verification_text(const Verification& it);

/// "38 %", "<1 %", ">99 %"; "0 %" of nothing.
std::string share_text(Bytes part, Bytes whole);

}  // namespace numalease::model
