#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/units.hpp"
#include "model/value.hpp"

namespace numalease::model {

/// A process that has pages of a file in its address space.
struct Mapper {
    int pid = 0;
    std::string command;

    bool operator==(const Mapper&) const = default;
};

/// How much of a file is in the page cache, and where.
struct Residency {
    Bytes size = 0;                   ///< of the file
    Bytes resident = 0;               ///< exact
    bool sampled = false;             ///< `nodes` is an estimate
    std::map<unsigned, Bytes> nodes;  ///< of `resident`; less in sum where a page's node could not be told
    std::vector<Mapper> mapped_by;    ///< the first kMostMappers

    static constexpr std::size_t kMostMappers = 16;
    bool operator==(const Residency&) const = default;
};

Dict to_dict(const Residency& residency);
Residency residency_from_dict(const Dict& dict);

}  // namespace numalease::model
