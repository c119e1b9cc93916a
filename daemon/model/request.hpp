#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/index_set.hpp"
#include "model/units.hpp"
#include "model/value.hpp"

namespace numalease::model {

/// Sockets or nodes by number, any N of them, or all there are.
struct Choice {
    enum class Kind { none, list, any, all } kind = Kind::none;
    IndexSet items;      ///< kind list
    unsigned count = 0;  ///< kind any

    bool operator==(const Choice&) const = default;
};

/// GPUs by name, or any N of them. Neither: none.
struct GpuChoice {
    std::vector<std::string> items;  ///< "0" (in bus order), "0000:81:00.0" or "81:00.0", "GPU-…"
    unsigned any = 0;

    [[nodiscard]] bool none() const { return items.empty() && any == 0; }
    bool operator==(const GpuChoice&) const = default;
};
inline constexpr unsigned kGpuLimit = 64;  ///< of one lease

enum class Mode { physical, all };
enum class Mempolicy { automatic, bind, interleave, weighted, local };
enum class Balancing { automatic, keep, off, on };
enum class PageCache { keep, evict, reclaim, drop };

/// One `--hugepages` item: 2M=8G, 2M=4G..8G@0-1.
struct HugepageRequest {
    Bytes page_size = 0;
    Bytes at_least = 0;  ///< fewer than this refuses the lease; equal to `amount` unless a range was given
    Bytes amount = 0;    ///< over all `nodes`, spread evenly
    NodeSet nodes;       ///< empty: the leased nodes

    bool operator==(const HugepageRequest&) const = default;
};

/// How long to wait for room. Neither `forever` nor a time: not at all.
struct Wait {
    bool forever = false;
    Micros time{600'000'000};

    bool operator==(const Wait&) const = default;
};

/// Of the end of a lease's time. A program that does not know it goes on.
struct Warning {
    Micros before{300'000'000};  ///< but at most a tenth of the lease's time
    std::string signal;          ///< sent to every process of the lease: "USR1"; empty: none

    bool operator==(const Warning&) const = default;
};

/// What a client asks for: the same names on the command line, in YAML and on the bus.
struct Request {
    std::string policy;
    std::string name;  ///< a lease that units and containers join: numalease-NAME.slice. Empty: the caller's own
    Choice sockets;
    Choice nodes;
    std::optional<unsigned> cores;
    Mode mode = Mode::physical;
    std::string near;  ///< "pci:ADDR", "gpu:N", "gpu:UUID", "netdev:NAME", "block:NAME"; empty: no wish
    GpuChoice gpus;
    unsigned gpu_share = 1;  ///< how many leases that say so may have one of its GPUs together; 1: nobody else
    std::optional<Bytes> memory;
    bool memory_is_estimate = false;  ///< derived from a model file; places, but never caps
    std::optional<Bytes> memory_max;  ///< the most the lease may use, where its nodes could give more
    Mempolicy mempolicy = Mempolicy::automatic;
    std::map<unsigned, unsigned> weights;  ///< node → 1..255, with mempolicy weighted
    Balancing numa_balancing = Balancing::automatic;
    std::string thp = "keep";
    std::string thp_defrag = "keep";
    std::string zone_reclaim = "keep";  ///< or an integer
    std::vector<HugepageRequest> hugepages;
    PageCache page_cache = PageCache::keep;
    bool share = false;                ///< CPUs may be leased to others who share too
    bool shield = false;               ///< nobody else runs on the CPUs while the lease lasts
    bool isolated = false;             ///< CPUs in the kernel's isolcpus= list may be leased
    std::string job_class = "normal";  ///< of work: a name from the site configuration, or batch, normal, service
    Wait wait;
    std::optional<Micros> time;  ///< ends by itself after this
    Warning warn;
    Micros grace{
        30'000'000};  ///< how long it is kept for a holder that comes back: a named lease, a unit that restarts
    std::string reason;
    std::string command;             ///< for people: what will run
    std::set<std::string> required;  ///< fields whose lever must be had or the lease is refused

    bool operator==(const Request&) const = default;
};

/// One field of a request: its name and its text form both ways.
struct RequestField {
    std::string_view name;
    std::string_view values;  ///< for messages and help: "LIST|any:N"
    Result<void> (*parse)(Request&, std::string_view text);
    std::string (*format)(const Request&);
};

/// All fields, in the order in which they are shown. The command line, YAML and the bus use nothing else.
std::span<const RequestField> request_fields();

/// Sets one field from text. Errors: invalid_request, naming the field.
Result<void> set_field(Request& request, std::string_view name, std::string_view text);

/// What cannot be seen one field at a time: --socket with --node, weights without weighted, …
Result<void> validate(const Request& request);

/// Text by field name, defaults left out.
Dict to_dict(const Request& request);
/// Errors: invalid_request for an unknown key, another type than text, a NUL or control character, an overlong value.
Result<Request> request_from_dict(const Dict& dict);

/// True where `field` is in `required`: its lever must be had.
bool is_required(const Request& request, std::string_view field);

/// "USR1" → its number; 0 for a name that is not sent as a warning.
int warning_signal(std::string_view name);

std::string_view text_of(Mempolicy policy);
std::string_view text_of(Balancing balancing);
std::string_view text_of(PageCache action);

}  // namespace numalease::model
