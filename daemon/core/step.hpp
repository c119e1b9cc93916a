#pragma once

#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/leases.hpp"
#include "core/ledger.hpp"
#include "core/place.hpp"
#include "model/lease.hpp"
#include "model/record.hpp"

namespace numalease::core {

/// A unit that could not be put back yet.
struct UnitRetry {
    unsigned failures = 0;
    model::Micros at{0};  ///< boot clock; 0 while a try is under way

    bool operator==(const UnitRetry&) const = default;
};

/// Whether the unit of a parked lease will be started again.
struct UnitAsk {
    std::uint64_t op = 0;  ///< of the question under way; 0: none
    model::Micros at{0};   ///< boot clock; when to ask again

    bool operator==(const UnitAsk&) const = default;
};

/// What a user's leases that are over have used, and when the user was served.
struct Usage {
    double node_seconds = 0;  ///< as of `at`; it decays
    model::Micros at{0};      ///< boot clock
    model::Micros served{0};  ///< boot clock; when a request of theirs last got its lease

    bool operator==(const Usage&) const = default;
};

/// Everything the daemon knows. A value: `step` returns the next one.
struct State {
    Leases leases;
    Ledger ledger;
    std::vector<model::LeaseId> queue;  ///< as they came; who is served first: order_of()
    model::LeaseId first;               ///< who had the reservation: keeps its turn
    std::map<unsigned, Usage> usage;    ///< by uid
    std::uint64_t next_id = 1;
    std::uint64_t next_op = 1;  ///< not journalled: operations do not survive a restart
    // Not journalled: operations do not survive a restart.
    std::map<std::uint64_t, model::LeaseId> lease_ops;  ///< in flight for a lease: page cache, confinement
    std::map<std::uint64_t, model::Process> joins;      ///< of those: who joins
    std::set<std::uint64_t> unconfines;                 ///< of those: which put a unit back
    std::map<model::LeaseId, UnitRetry> unit_retries;   ///< of endings that wait for their unit
    std::map<model::LeaseId, UnitAsk> unit_asks;        ///< of parked leases whose holder is a unit
    std::optional<model::Micros> last_drop;             ///< boot clock; dropping and reclaiming caches is rate-limited
    std::optional<model::Micros> queue_retry_at;        ///< boot clock; set while the head waits for what no lease ends
    bool stopping = false;

    bool operator==(const State&) const = default;
};

// ── Inputs ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// A validated, authorised request. A lease that this caller held and that is parked is taken up again.
struct Acquire {
    model::Request request;
    model::Caller caller;
};
/// Another process of the owner enters an active lease.
struct Join {
    model::LeaseId lease;
    model::Process process;
    std::vector<model::Process> dead;  ///< holders that have ended: dropped, so that the list does not grow for ever
};
/// Of each the holder's processes (or its cgroup) are gone: one process may have held hundreds.
struct HoldersGone {
    std::vector<model::LeaseId> leases;
};
/// Memory ran out in the lease's cgroup: `events` as read now.
struct OutOfMemory {
    model::LeaseId lease;
    model::MemoryEvents events;
};
/// The owner gives the lease back although `alive` says whether processes live.
struct Release {
    model::LeaseId lease;
    bool alive = false;
};
/// SIGTERM now, SIGKILL after `grace`.
struct Stop {
    model::LeaseId lease;
    model::Micros grace{0};
    std::string by;  ///< for the reason: "alice", "time is up"
};
/// The lease's end is put off.
struct Extend {
    model::LeaseId lease;
    model::Micros by{0};
    bool may_pass_limits = false;  ///< an administrator: past the site's limits, and past what others have been told
};
/// An effect has been performed.
struct Done {
    std::uint64_t op = 0;
    model::KnobKey key;  ///< of a knob write or pool resize
    std::optional<model::Error> error;
    KnobReading reading;             ///< read back after a write or resize
    model::Confinement confinement;  ///< of inspect and confine: as it is in force
    model::Bytes unit_memory = 0;    ///< of inspect: what the unit uses already
    std::string note;                ///< for people: bytes freed, steps taken
    bool unit_is_over = false;       ///< of AskUnit: it has ended and nothing will start it again
};
/// Where the memory of an active lease is, as read now, for its engine is ready.
struct Verified {
    model::LeaseId lease;
    model::ChargedByNode charged;
    std::string unknown;  ///< why that could not be read
};
/// What the partition of a lease's shield reads now: nothing where it holds.
struct ShieldChanged {
    model::LeaseId lease;
    std::string problem;
};
/// Time passes: deadlines and retries are looked at.
struct Tick {};
/// After replay: leases whose holder is alive stay, the others end. Leases that never became active end too.
struct Recover {
    std::set<model::LeaseId> alive;
};
/// Everything is put back and no workload is touched; nothing new is granted.
struct Shutdown {
    bool keeps_leases = false;  ///< the next daemon takes the active ones over; only what has not begun ends
};

using Input = std::variant<Acquire, Join, HoldersGone, OutOfMemory, Release, Stop, Extend, Done, Verified,
                           ShieldChanged, Tick, Recover, Shutdown>;

// ── Effects ──────────────────────────────────────────────────────────────────────────────────────────────────────

/// Write `value`, read back. Performed only after this step's records are durable; so are all effects.
struct WriteKnob {
    std::uint64_t op = 0;
    model::KnobKey key;
    std::string value;
};
/// Bring the persistent count of a pool to `target`, read back.
struct ResizePool {
    std::uint64_t op = 0;
    model::KnobKey key;
    std::uint64_t target = 0;      ///< persistent pages to write
    std::uint64_t to_surplus = 0;  ///< shrinking: so many pages in use become surplus again, as they were before us
    bool compact = false;          ///< growing: compact the node where the kernel gives too few
};
/// The growth in flight is no longer wanted; it stops at its next chunk and completes as usual.
struct CancelResize {
    model::KnobKey key;
};
struct DropPageCache {
    std::uint64_t op = 0;
    model::LeaseId lease;
};
struct ReclaimNode {
    std::uint64_t op = 0;
    model::LeaseId lease;
    unsigned node = 0;
    model::Bytes bytes = 0;
};
/// Read the unit's own AllowedCPUs= and AllowedMemoryNodes= before they are changed.
struct InspectUnit {
    std::uint64_t op = 0;
    model::LeaseId lease;
};
/// Put the lease's confinement in force, then read it back.
struct Confine {
    std::uint64_t op = 0;
    model::LeaseId lease;
    model::Process process;  ///< whom: the holder, or who joins
};
/// Take a shield down and put a unit's properties back (a scope ends by itself).
struct Unconfine {
    std::uint64_t op = 0;
    model::LeaseId lease;
};
/// Will systemd start the unit of this parked lease again?
struct AskUnit {
    std::uint64_t op = 0;
    model::LeaseId lease;
};
/// Tell whoever uses the lease that its time is nearly up.
struct Warn {
    model::LeaseId lease;
    model::Micros left{0};
};
/// Signal every process of the lease.
struct Kill {
    model::LeaseId lease;
    int signal = 0;
};

using Effect = std::variant<WriteKnob, ResizePool, CancelResize, DropPageCache, ReclaimNode, InspectUnit, Confine,
                            Unconfine, AskUnit, Warn, Kill>;

// ── The step ─────────────────────────────────────────────────────────────────────────────────────────────────────

/// Something an operator should read: a foreign value, a knob that refuses, pages that stay pinned.
struct Report {
    model::KnobKey key;
    std::string text;

    bool operator==(const Report&) const = default;
};

/// What follows from one input. The caller makes `records` durable, then performs `effects`, then forgets the old
/// state. `refusal` answers an input that changed nothing (an unknown lease, an Acquire that cannot be).
struct Step {
    State next;
    std::vector<model::Record> records;
    std::vector<Effect> effects;
    std::vector<Report> reports;
    std::optional<model::Error> refusal;
    model::LeaseId lease;  ///< of an Acquire that was not refused
};

/// Pure. Never fails: what goes wrong is in the leases and rows of `next`.
Step step(const State& state, const Input& input, const Observed& observed, model::Instant now);

/// Knobs whose readings `step` needs for this input: those in the ledger and those the input names.
std::vector<model::KnobKey> watched(const State& state, const Input& input, const model::Topology& topology);

/// The moment at which a Tick is due; empty: never. No timer runs while nothing waits.
std::optional<model::Micros> next_deadline(const State& state);

/// The state a journal describes: the last record of each entity wins.
/// Records that do not parse are skipped and named in `ignored`.
State replay(const std::vector<model::Record>& records, std::vector<std::string>& ignored);

/// The journal of a state from nothing: `replay(snapshot(s))` is `s` without what is not journalled.
std::vector<model::Record> snapshot(const State& state);

/// Broken invariants, one line each; empty for a sound state. Looked at after every step in tests.
std::vector<std::string> violations(const State& state, const Observed& observed);

/// What `place` would answer now; changes nothing.
std::expected<model::Placement, NoPlace> plan(const State& state, const Observed& observed,
                                              const model::Request& request, const model::Caller& caller,
                                              model::Instant now);

/// The CPUs of all leases whose shield is this cgroup, but for those that are ending.
model::CpuSet shielded_cpus(const State& state, const std::string& cgroup);

/// The CPUs of all shields, those that are coming down included.
model::CpuSet shielded_cpus(const State& state);

/// Below Linux 6.2 a shield that rises or comes down takes every thread's own affinity, and while it stands nobody has
/// a mask with its CPUs. What a thread is to have after it: as recorded before it; but what somebody has chosen since,
/// where that is not just the rest of what was recorded.
std::vector<model::ThreadMask> masks_behind_shields(std::vector<model::ThreadMask> recorded,
                                                    const std::vector<model::ThreadMask>& now,
                                                    const model::CpuSet& shielded);

/// True for an ending whose unit has refused so often that nobody is kept waiting for it; it is tried on.
bool is_stuck(const State& state, const model::LeaseId& id);

/// True where the daemon has nothing to hold and nothing to put back.
bool idle(const State& state);

}  // namespace numalease::core
