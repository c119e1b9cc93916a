#pragma once

#include <string>
#include <vector>

#include "host/root.hpp"
#include "model/record.hpp"

namespace numalease::host {

/// The daemon's memory across its own death: one line a record, in the runtime directory, readable with cat.
///
///     numa-lease-journal 1 boot=6f9e5f68-bb15-4221-ab3f-7f114ca762c8
///     5c3a0e71 1 row numa_balancing prior=1 writing=0 wants.c1=0
///     19b7c2d4 2 lease c1 id=c1 state=preparing …
///
/// First word: CRC-32 (IEEE) of the rest of the line in hex; second: sequence number, one up each line.
class Journal {
public:
    /// What was found at opening.
    struct Found {
        std::vector<model::Record> records;
        std::vector<std::string> warnings;  ///< torn tail, other boot, foreign file, newer version: what was ignored
    };

    /// Opens or creates DIRECTORY/journal. A torn or corrupt tail is cut off, a file of another boot is set aside as
    /// journal.old, and a file that is no journal as journal.foreign; each with a warning, never an error.
    /// Errors: io where the directory cannot be used at all (read-only, full).
    static model::Result<Journal> open(const std::string& directory, const std::string& boot_id, Found& found);

    /// Reads without opening for writing, creating, cutting or renaming anything.
    static Found peek(const std::string& directory, const std::string& boot_id);

    /// Makes the records durable: one write of all lines, then fdatasync. All or nothing: after a failure the file is
    /// cut back to where it was.
    /// Errors: io (ENOSPC, …); internal where a line, or the whole file, would not be read at the next start.
    model::Result<void> append(const std::vector<model::Record>& records);

    /// Rewrites the journal as just these records (new file, fsync, rename, fsync of the directory).
    /// Errors: as `append`.
    model::Result<void> compact(const std::vector<model::Record>& snapshot);

    /// True where a compaction pays: many more lines than `live` entities, or a large file that has doubled since.
    [[nodiscard]] bool wants_compaction(std::size_t live) const;

private:
    Journal() = default;
    UniqueFd directory_;
    UniqueFd file_;
    std::string boot_id_;
    std::uint64_t sequence_ = 0;
    std::uint64_t lines_ = 0;
    std::uint64_t size_ = 0;       ///< bytes known to be whole
    std::uint64_t compacted_ = 0;  ///< bytes after the last compaction
};

/// Format of one line, exposed for tests and fuzzing.
std::string journal_line(std::uint64_t sequence, const model::Record& record);
model::Result<model::Record> parse_journal_line(std::string_view line, std::uint64_t expected_sequence);

/// /proc/sys/kernel/random/boot_id.
model::Result<std::string> read_boot_id(const Root& root);

/// Takes both locks of "one daemon per kernel": RUNTIME_DIR/lock, and flock on ROOT/sys/kernel/mm (which holds across
/// mount namespaces). Held until the descriptors close. Errors: already_running, io.
struct Locks {
    UniqueFd runtime;
    UniqueFd kernel;
};
model::Result<Locks> take_locks(const Root& root, const std::string& runtime_directory);

}  // namespace numalease::host
