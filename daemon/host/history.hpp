#pragma once

#include <deque>
#include <string>

#include "model/record.hpp"

namespace numalease::host {

/// A file of records that are only ever added, for people to look back at: `history` in a directory that outlives the
/// boot, and `history.old`, what was in it before it was full. A line is a journal's, with 0 for its number.
inline constexpr std::size_t kHistoryBytes = 2U << 20U;   ///< of each of the two
inline constexpr std::size_t kHistoryLines = 10'000;      ///< read at most, the last ones
inline constexpr std::size_t kHistoryLineBytes = 16'384;  ///< a longer line is none of ours

/// The line of a record, without its newline.
std::string history_line(const model::Record& record);
/// Errors: unreadable for one that is torn, damaged or somebody else's.
model::Result<model::Record> parse_history_line(std::string_view line);

/// The last lines, oldest first; none where there are no files. They are not looked into.
std::deque<std::string> read_history(const std::string& directory);

/// Adds a line in one write, below what was torn before it. `most`: bytes from which on a file counts as full.
/// Errors: io.
model::Result<void> append_history(const std::string& directory, std::string_view line,
                                   std::size_t most = kHistoryBytes);

}  // namespace numalease::host
