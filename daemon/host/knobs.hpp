#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "host/root.hpp"
#include "model/knob.hpp"

namespace numalease::host {

/// The value as the kernel shows it, in the form in which it is written back: "1", "madvise".
/// Errors: unsupported where this kernel has no such file, io.
model::Result<std::string> read_knob(const Root& root, const model::KnobKey& key);

/// Writes a shared knob and reads it back; the caller compares.
/// Errors: as Root::write and read_knob.
model::Result<std::string> write_knob(const Root& root, const model::KnobKey& key, const std::string& value);

/// Errors: unsupported, io.
model::Result<model::PoolReading> read_pool(const Root& root, const model::KnobKey& key);

/// What a resize did.
struct PoolResult {
    model::PoolReading reading;  ///< after
    std::string note;            ///< "2000 asked, 478 got; compacted in 1.2 s; …", empty where it simply worked
};

/// Brings the pool's persistent count to `target` in chunks, and reads back. Growing stops where the kernel gives no
/// more; with `compact`, it compacts the node once and tries again. Shrinking only ever frees pages that are free, and
/// lets `to_surplus` pages in use become surplus.
/// Thread: blocks for up to minutes; run it in a worker with all signals blocked (a signal cuts a huge-page write
/// short, and the kernel reports success). `cancel` is looked at between chunks.
/// Errors: unsupported, io.
model::Result<PoolResult> resize_pool(const Root& root, const model::KnobKey& key, std::uint64_t target, bool compact,
                                      const std::atomic<bool>& cancel, std::uint64_t to_surplus = 0);

/// The machine's page cache around a drop.
struct DroppedCache {
    model::Bytes before = 0;
    model::Bytes after = 0;
    model::Bytes mapped = 0;  ///< of `after`: in the address space of some process
    model::Bytes shared = 0;  ///< of `after`: shared memory and tmpfs, which have no other place

    bool operator==(const DroppedCache&) const = default;
};
/// sync(2) with a deadline in a thread of its own, then "1" to drop_caches.
/// Errors: io; not_now where sync does not return in time.
model::Result<DroppedCache> drop_page_cache(const Root& root);

/// Writes "<bytes> swappiness=0" to nodeN/reclaim: files' pages and nobody's own memory. The kernel returns EAGAIN
/// where it reclaimed less: not an error here. Returns the bytes by which MemFree rose. Errors: unsupported, io.
/// Source: mm/vmscan.c, user_proactive_reclaim.
model::Result<model::Bytes> reclaim_node(const Root& root, unsigned node, model::Bytes bytes);

}  // namespace numalease::host
