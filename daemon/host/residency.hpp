#pragma once

#include "host/root.hpp"
#include "model/residency.hpp"

namespace numalease::host {

/// A share is then off by at most 0.4 % (one standard deviation), and asking takes no longer than counting 4 GiB: each
/// sample is a page fault, in which the kernel maps its neighbours as well.
inline constexpr std::uint64_t kResidencySamples = 16384;

/// What of an open file is in the page cache. mincore(2) counts every page and reads none from the disk; at most
/// `samples` of them, one at random out of each equal part of the file, are then mapped in and asked for their node.
/// A part's resident pages count for the node of its sample, so a file of no more pages than that is exact.
/// Units: bytes of whole pages.
/// Thread: for a process of its own that may be killed. A file that somebody cuts short meanwhile is a SIGBUS, and a
/// disk that does not answer holds it up. What it has mapped is gone when it returns.
/// Errors: invalid_request for what is no regular file or is not open for reading; unsupported where the file system
/// is not a local one; denied where the kernel would not tell us the truth; io.
/// Source: mincore(2), move_pages(2).
model::Result<model::Residency> read_residency(int file, const Root& proc, std::uint64_t samples = kResidencySamples);

}  // namespace numalease::host
