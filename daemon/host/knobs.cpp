#include "host/knobs.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "host/lines.hpp"
#include "host/topology.hpp"

namespace numalease::host {

using model::Bytes;
using model::Errc;
using model::fail;
using model::KnobFormat;
using model::KnobKey;
using model::KnobKind;
using model::PoolReading;
using model::Result;

namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kChunk = model::kGiB;  ///< huge pages written at a time: a cancel is seen within a second or so
constexpr std::chrono::seconds kSyncDeadline{10};
constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();

std::unexpected<model::Error> unexpected_text(const std::string& path, std::string_view text) {
    return fail(Errc::io, "cannot understand " + path + ": it reads '" + std::string(text.substr(0, 80)) + "'");
}

/// Shape: "always [madvise] never". A single word without brackets is taken as it stands: what was just written to a
/// plain file of a fake tree.
std::string_view chosen(std::string_view text) {
    const auto open = text.find('[');
    const auto close = text.find(']', open == std::string_view::npos ? 0 : open);
    if (open != std::string_view::npos && close != std::string_view::npos)
        return text.substr(open + 1, close - open - 1);
    return text.find(' ') == std::string_view::npos ? text : std::string_view{};
}

Result<std::uint64_t> read_count(const Root& root, const std::string& path) {
    auto text = root.read(path);
    if (!text) return std::unexpected(text.error());
    const auto count = model::parse_unsigned(model::trim(*text), "count", kAny);
    if (!count) return unexpected_text(root.full_path(path), model::trim(*text));
    return *count;
}

std::string milliseconds_since(Clock::time_point start) {
    const auto gone = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    return std::to_string(gone.count()) + " ms";
}

void add_note(std::string& note, const std::string& text) { note += (note.empty() ? "" : "; ") + text; }

/// One resize on its way: the pool, what was asked, and what happened so far.
struct Resize {
    const Root& root;
    const KnobKey& key;
    std::uint64_t target;
    std::uint64_t to_surplus;
    const std::atomic<bool>& cancel;
    PoolResult result;

    [[nodiscard]] std::uint64_t count() const { return result.reading.persistent(); }

    /// Writes one count and reads back.
    Result<void> step(std::uint64_t pages) {
        if (auto done = root.write(key.path(), std::to_string(pages)); !done) return done;
        auto reading = read_pool(root, key);
        if (!reading) return std::unexpected(reading.error());
        result.reading = *reading;
        return {};
    }

    /// Grows until the target, a write that gives nothing, or a cancel.
    Result<void> grow(std::uint64_t chunk) {
        while (count() < target && !cancel) {
            const auto before = count();
            if (auto done = step(std::min(target, before + chunk)); !done) return done;
            if (count() <= before) break;
        }
        return {};
    }

    /// Shrinks, never by more than what was free and not promised at first: the kernel turns pages in use into surplus
    /// ones, which is right for `to_surplus` pages and no more.
    Result<void> shrink(std::uint64_t chunk) {
        const auto& now = result.reading;
        const auto promised = std::min(now.global_free, now.global_reserved);
        const auto lowest =
            std::max(target, count() - std::min(count(), std::min(now.free, now.global_free - promised) + to_surplus));
        while (count() > lowest && !cancel) {
            const auto before = count();
            if (auto done = step(std::max(lowest, before - std::min(before, chunk))); !done) return done;
            if (count() >= before) break;
        }
        return {};
    }
};

/// Source: admin-guide/sysctl/vm.rst, "compact_memory"; per node: ABI/stable/sysfs-devices-node.
void compact_node(const Root& root, unsigned node, std::string& note) {
    const auto start = Clock::now();
    const auto done = root.write("sys/devices/system/node/node" + std::to_string(node) + "/compact", "1");
    add_note(note, done ? "compacted in " + milliseconds_since(start) : "not compacted: " + done.error().detail);
}

/// Set by the thread when sync(2) returns. Owned by both, because on a dead mount the thread outlives the wait.
struct SyncState {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
};

/// True while a sync(2) of an earlier call hangs: a second thread would only hang beside it.
std::atomic<bool> sync_hangs{false};

/// Errors: not_now.
Result<void> sync_within_deadline() {
    if (sync_hangs) return fail(Errc::not_now, "not dropping the page cache: an earlier sync(2) still hangs");
    const auto state = std::make_shared<SyncState>();
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the thread inherits it: signals stay with the event loop
    std::thread([state] {
        ::sync();
        const std::lock_guard lock(state->mutex);
        sync_hangs = false;
        state->done = true;
        state->changed.notify_one();
    }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    std::unique_lock lock(state->mutex);
    if (state->changed.wait_for(lock, kSyncDeadline, [&] { return state->done; })) return {};
    sync_hangs = true;
    return fail(Errc::not_now,
                "not dropping the page cache: sync(2) did not return in 10 s (a mount that does not answer?)");
}

/// Of /proc/meminfo.
struct CacheFacts {
    Bytes cached = 0;  ///< Cached + Buffers
    Bytes mapped = 0;
    Bytes shared = 0;
};

/// Shape: "Cached:          1234 kB".
Result<CacheFacts> read_page_cache(const Root& root) {
    auto text = root.read("proc/meminfo");
    if (!text) return std::unexpected(text.error());
    CacheFacts out;
    for (auto line : lines_of(*text)) {
        const auto colon = line.find(':');
        const auto name = line.substr(0, colon);
        auto* const into = name == "Cached" || name == "Buffers" ? &out.cached
                           : name == "Mapped"                    ? &out.mapped
                           : name == "Shmem"                     ? &out.shared
                                                                 : nullptr;
        if (into == nullptr || colon == std::string_view::npos) continue;
        line.remove_prefix(colon + 1);
        if (line.ends_with(" kB")) line.remove_suffix(3);
        if (const auto kib = model::parse_unsigned(model::trim(line), "meminfo", kAny / model::kKiB))
            *into += *kib * model::kKiB;
    }
    return out;
}

}  // namespace

Result<std::string> read_knob(const Root& root, const KnobKey& key) {
    const auto path = key.path();
    if (key.row().kind != KnobKind::shared) return fail(Errc::internal, key.text() + " is no value to be read");
    auto text = root.read(path);
    if (!text) return std::unexpected(text.error());
    std::string_view value = model::trim(*text);
    switch (key.row().format) {
        case KnobFormat::choice: value = chosen(value); break;
        case KnobFormat::integer:
            if (!model::parse_unsigned(value, key.row().name, kAny))
                return unexpected_text(root.full_path(path), value);
            break;
        case KnobFormat::boolean:
            if (value != "true" && value != "false" && value != "1" && value != "0") value = {};
            break;
        case KnobFormat::trigger: value = {}; break;
    }
    if (value.empty()) return unexpected_text(root.full_path(path), model::trim(*text));
    return std::string(value);
}

Result<std::string> write_knob(const Root& root, const KnobKey& key, const std::string& value) {
    if (key.row().kind != KnobKind::shared) return fail(Errc::internal, key.text() + " is no value to be written");
    if (auto done = root.write(key.path(), value); !done) return std::unexpected(done.error());
    return read_knob(root, key);
}

Result<PoolReading> read_pool(const Root& root, const KnobKey& key) {
    auto here = key.path();
    here.resize(here.rfind('/'));
    const auto size = here.substr(here.rfind('/') + 1);  // "hugepages-2048kB"
    const auto everywhere = "sys/kernel/mm/hugepages/" + size;
    PoolReading reading;
    const std::pair<std::uint64_t*, std::string> files[] = {
        {&reading.total, here + "/nr_hugepages"},
        {&reading.surplus, here + "/surplus_hugepages"},
        {&reading.free, here + "/free_hugepages"},
        {&reading.global_free, everywhere + "/free_hugepages"},
        {&reading.global_reserved, everywhere + "/resv_hugepages"},
    };
    for (const auto& [field, path] : files) {
        const auto count = read_count(root, path);
        if (!count) return std::unexpected(count.error());
        *field = *count;
    }
    return reading;
}

Result<PoolResult> resize_pool(const Root& root, const KnobKey& key, std::uint64_t target, bool compact,
                               const std::atomic<bool>& cancel, std::uint64_t to_surplus) {
    const auto start = Clock::now();
    const auto chunk = std::max<std::uint64_t>(1, kChunk / std::max<Bytes>(1, key.page_size));
    auto before = read_pool(root, key);
    if (!before) return std::unexpected(before.error());
    Resize resize{.root = root,
                  .key = key,
                  .target = target,
                  .to_surplus = to_surplus,
                  .cancel = cancel,
                  .result = {.reading = *before, .note = {}}};
    const auto first = resize.count();
    if (auto done = target < first ? resize.shrink(chunk) : resize.grow(chunk); !done)
        return std::unexpected(done.error());

    auto& note = resize.result.note;
    const auto tell = [&] {
        add_note(note, std::to_string(target - std::min(target, first)) + " pages asked, " +
                           std::to_string(resize.count() - std::min(resize.count(), first)) + " got in " +
                           milliseconds_since(start));
    };
    if (resize.count() < target) tell();
    if (resize.count() < target && compact && !cancel) {
        compact_node(root, key.node, note);
        if (auto done = resize.grow(chunk); !done) return std::unexpected(done.error());
        tell();
    }
    if (resize.count() > target && target < first)
        add_note(note, std::to_string(resize.count() - target) + " pages still in use or promised");
    if (target > first && resize.result.reading.surplus < before->surplus)
        add_note(note, std::to_string(before->surplus - resize.result.reading.surplus) +
                           " of them are pages that others had as surplus");
    if (cancel && resize.count() != target) add_note(note, "cancelled");
    return std::move(resize.result);
}

Result<DroppedCache> drop_page_cache(const Root& root) {
    const auto before = read_page_cache(root);
    if (!before) return std::unexpected(before.error());
    // Only this machine's own cache can be dirty; a fake tree has nothing to wait for.
    if (root.is_this_machine())
        if (auto done = sync_within_deadline(); !done) return std::unexpected(done.error());
    // 1 is the page cache alone; 2 and 3 also throw away dentries and inodes, which every other program pays for.
    const KnobKey key{.knob = model::Knob::drop_caches};
    if (auto done = root.write(key.path(), "1"); !done) return std::unexpected(done.error());
    const auto after = read_page_cache(root);
    if (!after) return std::unexpected(after.error());
    return DroppedCache{
        .before = before->cached, .after = after->cached, .mapped = after->mapped, .shared = after->shared};
}

Result<Bytes> reclaim_node(const Root& root, unsigned node, Bytes bytes) {
    const auto before = read_node_memory(root, node);
    if (!before) return std::unexpected(before.error());
    const KnobKey key{.knob = model::Knob::reclaim, .node = node};
    const auto done = root.write(key.path(), std::to_string(bytes) + " swappiness=0");
    if (!done && done.error().err != EAGAIN) return std::unexpected(done.error());
    const auto after = read_node_memory(root, node);
    if (!after) return std::unexpected(after.error());
    return after->free - std::min(after->free, before->free);
}

}  // namespace numalease::host
