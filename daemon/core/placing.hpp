#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/place.hpp"

/// The parts of `place`, in the order in which they are used:
/// near → gpus → view (what is there and free) → scope (what may be chosen) → select (which units) → pick (which cores)
/// → text. For place*.cpp only.
namespace numalease::core::placing {

using model::Bytes;

// ── near ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/// The device of `--near`, found; or the leased GPUs.
struct Near {
    std::string label;           ///< "gpu:0 (0000:81:00.0)"; empty: no wish
    model::NodeSet nodes;        ///< empty: no wish, or the firmware does not say
    std::vector<unsigned> cost;  ///< distance to the device, by position in Topology::nodes
    bool balanced = false;       ///< a GPU of which the firmware does not say where it is: see HomedGpu
    bool drawn = false;          ///< by the GPUs of the request
    [[nodiscard]] bool decides() const { return !nodes.empty(); }
};

/// "pci:81:00.0" (with or without domain), "gpu:N" (in PCI order), "gpu:UUID", "netdev:NAME", "block:NAME".
/// Errors: invalid_request for another form, impossible for an unknown device, naming those there are.
model::Result<Near> find_near(const model::Topology& topology, const std::string& text);

/// All devices of a kind, in bus order: a driver's own numbers are not the bus order (CASES 35).
std::vector<const model::Device*> of_kind(const model::Topology& topology, const std::string& kind);
/// What there is of a kind: "this machine has gpu:0 (0000:81:00.0), …". Empty: all PCI devices.
std::string existing(const model::Topology& topology, const std::string& kind);

// ── gpus ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/// A GPU and where it counts as being. Where the firmware does not say, each goes in turn to the socket and node with
/// the fewest: several are never all near to node 0 (CASES 36).
struct HomedGpu {
    const model::Device* device = nullptr;
    model::NodeSet home;
    bool balanced = false;  ///< a guess of ours
};

/// In bus order, as "gpu:N" counts them.
std::vector<HomedGpu> homed_gpus(const model::Topology& topology);

/// Position in bus order of "0", "81:00.0" or "GPU-…"; nothing for one that does not exist.
std::optional<unsigned> find_gpu(const model::Topology& topology, const std::string& text);

/// Cores and memory only: what `place` does where no GPU is asked for.
std::expected<model::Placement, NoPlace> place_near(const Observed& observed, const Occupancy& occupancy,
                                                    const model::Request& request, const Near& near);

/// First the GPUs: those that are asked for, or any N: free ones before others, of one socket, nearest to the nodes or
/// the device that the request names. Then cores and memory, drawn to them where it names none; of sets of GPUs that
/// are as good the one with the nearest cores.
std::expected<model::Placement, NoPlace> place_with_gpus(const Observed& observed, const Occupancy& occupancy,
                                                         const model::Request& request, const Near& near);

// ── view ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/// How much of the present is wished away, to find out what is in the way.
enum class Level {
    now,
    leases_gone,  ///< without the other leases
    all_gone,     ///< an idle machine: what can ever be given
};

/// out: not for this caller or request. busy: another's. taken: may be used, but somebody is there. idle: free.
enum class CoreState : std::uint8_t { out, busy, taken, idle };

struct NodeView {
    unsigned id = 0;
    bool memory = false;  ///< has memory that the caller may use
    Bytes total = 0;
    Bytes avail = 0;  ///< what can be promised at this level
};

/// What one `place` looks up once, however often it then looks for room.
struct Facts {
    enum Flag : std::uint8_t { kWhole = 1, kPart = 2, kIsolated = 4, kForeign = 8, kExclusive = 16, kShared = 32 };
    std::vector<std::uint8_t> cores;  ///< flags by position in Topology::cores; 0: never leased
    std::vector<unsigned> distance;   ///< nodes × nodes, by position
};
Facts facts_of(const Observed& observed, const Occupancy& occupancy);

/// The machine as one request of one caller sees it.
struct View {
    const Observed& observed;
    const Occupancy& occupancy;
    const model::Request& request;
    const Near& near;
    const Facts& facts;
    Level level = Level::now;
    bool partial = false;                    ///< no whole core is allowed to the caller: parts of cores are leased
    bool hybrid = false;                     ///< cores of more than one efficiency
    unsigned fastest = 0;                    ///< the highest efficiency
    std::vector<CoreState> cores;            ///< by position in Topology::cores
    std::vector<NodeView> nodes;             ///< by position in Topology::nodes
    const model::Core* held_back = nullptr;  ///< with a shield: the core that everybody without a lease keeps

    [[nodiscard]] const model::Topology& topology() const { return observed.topology; }
    [[nodiscard]] unsigned between(std::size_t from, std::size_t to) const {
        return facts.distance[from * nodes.size() + to];
    }
};
View look_at(const Observed& observed, const Occupancy& occupancy, const model::Request& request, const Near& near,
             const Facts& facts, Level level);

/// True where this occupant keeps its CPUs from this request.
bool conflicts(const Occupant& occupant, const model::Request& request);

// ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// True where `nodes` (positions) can promise the request's memory: bind and local use their sum; interleave and
/// weighted take a fixed part from each, so that the fullest node decides.
bool memory_fits(const View& view, const std::vector<unsigned>& nodes);

/// What each of `nodes` promises; the sum is the request's memory. Call only where it fits.
std::vector<Bytes> memory_parts(const View& view, const std::vector<unsigned>& nodes);

/// Splits `amount` as evenly as `caps` allow. The sum is min(amount, sum of caps).
std::vector<Bytes> spread(Bytes amount, const std::vector<Bytes>& caps);

// ── scope ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// What is chosen as one: a node, or a socket where sockets were asked for.
struct Unit {
    unsigned id = 0;
    unsigned package = 0;
    std::vector<unsigned> nodes;   ///< positions: where its cores are, or a listed node without any
    std::vector<unsigned> memory;  ///< positions: which give memory
    std::vector<unsigned> cores;   ///< positions in Topology::cores, those that are not `out`
    unsigned usable = 0;           ///< cores taken or idle
    unsigned idle = 0;
    unsigned fast = 0;  ///< usable ones of the highest efficiency
    unsigned near = 0;  ///< distance to the device
};

/// Among what may be chosen.
struct Scope {
    bool sockets = false;
    bool listed = false;      ///< the user named the units: all of them, no others
    unsigned exactly = 0;     ///< this many; 0: as few as hold the request
    bool borrowed = false;    ///< no unit has memory: it comes from the nearest node that has some
    std::vector<Unit> units;  ///< ascending by id
};

/// Errors: impossible, naming what does exist.
model::Result<Scope> scope_of(const View& view);

/// "node", "nodes", "socket" or "sockets".
std::string noun(const Scope& scope, std::size_t count);
/// "node 2", "nodes 0-1", "sockets 0,1" of the given positions in `scope.units`.
std::string name_of(const Scope& scope, const std::vector<unsigned>& units);

// ── select ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// Smaller is better; compared from the top. This order is the policy of placement.
struct Score {
    std::uint64_t size = 0;       ///< units
    std::uint64_t occupied = 0;   ///< cores that others have too (share), or would have to leave
    std::uint64_t held_back = 0;  ///< whole units asked for, and one core of them is held back
    std::uint64_t starved = 0;    ///< nodes without any memory left, where no amount was asked
    std::uint64_t near = 0;       ///< distance to the device, summed
    std::uint64_t slow = 0;       ///< cores that are not of the fastest kind
    std::uint64_t apart = 0;      ///< distance among the units, summed
    std::uint64_t sockets = 0;
    std::uint64_t spare_cores = 0;   ///< best fit: free cores left over
    std::uint64_t spare_memory = 0;  ///< best fit; where no amount was asked, most room first (complement)

    auto operator<=>(const Score&) const = default;
};

struct Candidate {
    Score score;
    std::vector<unsigned> units;  ///< positions in Scope::units, ascending

    auto operator<=>(const Candidate&) const = default;
};

/// Sets of units that hold the request, best first, no set twice; empty where none was found. Grows a set from every
/// unit, once by nearness and once by what it adds: exact for one and two units, a heuristic from three on.
/// Cost: units² · size of the answer.
std::vector<Candidate> select(const View& view, const Scope& scope);

/// Nodes (positions) that give memory for these units.
std::vector<unsigned> memory_nodes(const Scope& scope, const std::vector<unsigned>& units);

// ── pick ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Positions of the cores to lease in `units`, ascending: evenly over the units; in each one idle before shared, fast
/// before slow, whole last-level-cache groups before parts, and of parts the one that leaves the largest hole.
std::vector<unsigned> pick_cores(const View& view, const Scope& scope, const std::vector<unsigned>& units);

// ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

std::vector<std::string> reasons(const View& view, const Scope& scope, const Candidate& chosen,
                                 const model::Placement& placement);
std::vector<std::string> runners_up(const View& view, const Scope& scope, const std::vector<Candidate>& found);
/// What is short in `scope` at the view's level, with the numbers per node.
std::string shortage(const View& view, const Scope& scope);

}  // namespace numalease::core::placing
