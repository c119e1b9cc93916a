#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/index_set.hpp"
#include "model/knob.hpp"
#include "model/request.hpp"
#include "model/unit.hpp"
#include "model/use.hpp"
#include "model/value.hpp"
#include "model/verification.hpp"

namespace numalease::model {

/// "c1", "c2", …; never repeats within a boot.
using LeaseId = std::string;

/// A moment on both clocks. Decisions use `boot`, which neither jumps nor stops; `real` is for people.
struct Instant {
    Micros boot{0};  ///< CLOCK_BOOTTIME
    Micros real{0};  ///< CLOCK_REALTIME

    bool operator==(const Instant&) const = default;
};

/// A process that cannot be mistaken for a later one with the same number.
struct Process {
    int pid = 0;
    std::uint64_t start_time = 0;  ///< clock ticks since boot, field 22 of /proc/PID/stat

    bool operator==(const Process&) const = default;
};

/// Who asks, as the kernel says. Nothing here comes from the message.
struct Caller {
    unsigned uid = 0;
    unsigned gid = 0;
    Process process;
    std::string command;     ///< /proc/PID/comm
    std::string cgroup;      ///< path in the unified hierarchy, "/user.slice/…"; empty where there is none
    CpuSet allowed_cpus;     ///< Cpus_allowed_list: a lease never widens it
    NodeSet allowed_nodes;   ///< Mems_allowed_list
    LeaseId parent;          ///< the lease this process is in already, for a nested request
    std::string invocation;  ///< of the system service it is in: another one each time the unit is started

    bool operator==(const Caller&) const = default;
};

/// A leased GPU as it was when it was leased.
struct Gpu {
    std::string pci;
    std::string uuid;    ///< empty where its driver did not say
    std::string vendor;  ///< "nvidia", "amd" or empty
    std::string name;    ///< its model
    NodeSet nodes;       ///< where it counts as being

    bool operator==(const Gpu&) const = default;
};

/// What the solver chose and why.
struct Placement {
    CpuSet cpus;            ///< all online threads of the leased cores
    NodeSet nodes;          ///< memory nodes
    std::vector<Gpu> gpus;  ///< in bus order
    unsigned cores = 0;
    unsigned threads = 0;               ///< what the engine is told
    std::map<unsigned, Bytes> promise;  ///< bytes promised per node
    std::vector<std::string> why;       ///< the reasons, one line each
    std::vector<std::string> runners_up;

    bool operator==(const Placement&) const = default;
};

/// A thread's own affinity, narrower than its cpuset.
struct ThreadMask {
    int pid = 0;     ///< its process
    Process thread;  ///< its own number and start time
    CpuSet cpus;

    bool operator==(const ThreadMask&) const = default;
};

/// How often memory ran out in a cgroup.  Source: memory.events, admin-guide/cgroup-v2.rst.
struct MemoryEvents {
    std::uint64_t oom = 0;       ///< its own limit was reached and nothing could be reclaimed
    std::uint64_t oom_kill = 0;  ///< processes of it that were killed, whoever's limit it was

    bool operator==(const MemoryEvents&) const = default;
};

enum class ConfinementKind { none, scope, unit, affinity, slice };

/// How everybody else is kept off the leased CPUs: which cgroup is the cpuset partition.
/// Source: admin-guide/cgroup-v2.rst, "cpuset.cpus.partition".
enum class ShieldKind {
    none,
    slice,  ///< one top-level slice for all shielded leases (below Linux 6.7)
    path,   ///< the lease's own cgroup, as a remote partition: its ancestors hand the CPUs down
};

struct Shield {
    ShieldKind kind = ShieldKind::none;
    std::string cgroup;     ///< the partition: "/numaleaseshield.slice", or the lease's own
    bool in_force = false;  ///< it was read back as "root"
    std::string problem;    ///< what the kernel says instead: "root invalid (…)"

    bool operator==(const Shield&) const = default;
};

/// How the holder is kept inside, and what is in force as read back.
struct Confinement {
    ConfinementKind kind = ConfinementKind::none;
    std::string unit;    ///< "numalease-c1.scope", the caller's own service, or "numalease-NAME.slice"
    std::string slice;   ///< where the scope goes
    std::string cgroup;  ///< the cgroup whose emptiness ends the lease; empty: the processes do
    CpuSet effective_cpus;
    NodeSet effective_nodes;
    MemoryEvents memory_events;         ///< of `cgroup`, as last looked at
    Use use_before;                     ///< what is no doing of the lease: as counted when it was confined
    bool whole_unit = false;            ///< unit only: its main process asked, so the lease lives as long as the unit
    std::vector<UnitSetting> settings;  ///< of the unit, scope or slice
    std::vector<ThreadMask> masks;      ///< to be given back: on kernels that lose them
    bool prior_known = false;           ///< unit only: the priors of `settings` were read
    bool reload_was_due = false;        ///< unit only: systemd wanted a daemon-reload for it before us
    Shield shield;
    std::string why;

    bool operator==(const Confinement&) const = default;
};

/// What became of one lever.
struct KnobGrant {
    KnobKey key;
    std::string wanted;
    std::string prior;
    std::string got;   ///< as read back; for huge pages the pages really gained
    std::string note;  ///< why it was skipped, or fell short

    bool operator==(const KnobGrant&) const = default;
};

enum class LeaseState { queued, preparing, active, ending, ended, refused };

/// Where a preparing lease stands; each stage must be done before the next begins.
enum class Stage { knobs, page_cache, hugepages, inspect, confine, done };

/// A grant of cores, memory and kernel state to one holder.
struct Lease {
    LeaseId id;
    LeaseState state = LeaseState::queued;
    Stage stage = Stage::knobs;
    std::string reason;           ///< why it is in this state
    std::optional<Errc> failure;  ///< set on the way to `refused`
    Caller caller;
    Request request;
    Placement placement;
    CpuSet offline;  ///< of the placement's CPUs, those that went offline since: it is degraded
    Confinement confinement;
    std::vector<Process> holders;  ///< the caller, then whoever joined
    std::vector<KnobGrant> knobs;
    std::vector<std::string> notes;  ///< warnings and explanations, one line each
    Instant queued;
    Instant started;
    Instant ended;
    std::optional<Micros> expires;        ///< on the boot clock
    bool warned = false;                  ///< that it expires soon
    std::uint64_t oom_kills = 0;          ///< of its processes, for want of memory
    Verification verified;                ///< where its memory was, once its engine was ready
    std::optional<Instant> parked;        ///< since when nobody holds it; it ends after request.grace
    unsigned signals_sent = 0;            ///< of stop and expiry: 1 SIGTERM, 2 SIGKILL
    std::vector<std::string> in_the_way;  ///< while queued: what blocks it. Derived, not kept in the journal

    bool operator==(const Lease&) const = default;
};

/// True where the confinement is properties of a unit that is not the lease's own, and has a prior.
constexpr bool is_unit(ConfinementKind kind) { return kind == ConfinementKind::unit || kind == ConfinementKind::slice; }

/// For the bus and the client: everything but what is kept only to be put back.
Dict to_dict(const Lease& lease);
/// Everything, for the journal.
Dict journal_dict(const Lease& lease);
/// Of either.  Errors: invalid_request.
Result<Lease> lease_from_dict(const Dict& dict);
/// By PCI address.
std::set<std::string> gpu_addresses(const Placement& placement);
Dict to_dict(const Placement& placement);
Placement placement_from_dict(const Dict& dict);

std::string_view text_of(LeaseState state);
std::string_view text_of(ConfinementKind kind);
std::string_view text_of(ShieldKind kind);
std::string_view text_of(Stage stage);

/// What a lease lacks of its grant, for people; empty where it is whole.
std::string degraded_text(const Lease& lease);

/// True where the lease keeps its CPUs and memory from others.
constexpr bool occupies(LeaseState state) { return state == LeaseState::preparing || state == LeaseState::active; }
constexpr bool is_over(LeaseState state) { return state == LeaseState::ended || state == LeaseState::refused; }

}  // namespace numalease::model
