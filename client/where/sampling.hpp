#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "where/numa_maps.hpp"

/// Where the pages of a large process are, by asking for some of them. Pure: which to ask for, and what the answers
/// mean.
namespace numalease::client {

/// A page to ask for.
struct Pick {
    std::size_t span = 0;  ///< of which of the spans
    std::uint64_t address = 0;

    bool operator==(const Pick&) const = default;
};

/// At most `count` pages, one at a random place in each of as many equal parts: evenly spaced ones would all be on one
/// node of a memory that is interleaved page by page. A span counts for no more than all that is `resident`, so that
/// address space that is only reserved does not draw all picks. Where there are no more pages than `count`, every page
/// is picked. The same input gives the same picks.
std::vector<Pick> pick_pages(const std::vector<Span>& spans, Bytes resident, std::size_t count, Bytes page);

/// The mappings that the answers make likely: `nodes` has a node for each pick, or less than 0 for no page there. Each
/// kind is scaled to what the process has of it. `hugetlb_devices`: file systems of huge pages.
std::vector<Mapping> estimate(const std::vector<Span>& spans, const std::vector<Pick>& picks,
                              const std::vector<int>& nodes, const ProcessStatus& status,
                              const std::set<std::string>& hugetlb_devices);

}  // namespace numalease::client
