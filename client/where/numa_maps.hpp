#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/index_set.hpp"
#include "model/units.hpp"

/// What the kernel writes about the memory and threads of processes, as plain values. Pure: text in, values out; what
/// is not understood is left out.
namespace numalease::client {

using model::Bytes;
using PerNode = std::map<unsigned, Bytes>;

Bytes sum_of(const PerNode& nodes);

enum class Kind {
    anonymous,
    shared,  ///< shared memory: no file behind it that could be read again
    file,
    hugetlb
};

/// One mapping of a process, and where its pages are.
struct Mapping {
    std::uint64_t start = 0;
    std::string policy;  ///< "bind:1", "weighted interleave:0-1"; empty: not known
    std::string file;    ///< "/m.gguf"; empty: none
    bool hugetlb = false;
    PerNode nodes;    ///< resident bytes
    Bytes owned = 0;  ///< of them, copies of the process's own

    bool operator==(const Mapping&) const = default;
};

/// A line of /proc/PID/numa_maps.
std::optional<Mapping> parse_numa_maps_line(std::string_view line);

/// Of a mapping by its file.
Kind kind_of(const Mapping& mapping);

/// Addresses of a process that may hold pages.
struct Span {
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    std::string device;  ///< "254:0", as in mountinfo
    std::string file;    ///< empty: none

    bool operator==(const Span&) const = default;
};

/// A line of /proc/PID/maps. Nothing for what never has pages of the process: no access, or the kernel's own.
std::optional<Span> parse_maps_line(std::string_view line);

/// Of /proc/PID/status.
struct ProcessStatus {
    std::string name;
    unsigned uid = 0;
    Bytes anonymous = 0;
    Bytes file = 0;
    Bytes shared = 0;
    Bytes hugetlb = 0;
    Bytes swap = 0;
    model::NodeSet nodes;  ///< Mems_allowed_list

    [[nodiscard]] Bytes resident() const { return anonymous + file + shared; }
    bool operator==(const ProcessStatus&) const = default;
};
ProcessStatus parse_status(std::string_view text);

/// A field of /proc/PID/stat by its number in proc(5), from 3 on.
std::optional<std::uint64_t> stat_field(std::string_view text, std::size_t number);
inline constexpr std::size_t kStatMajorFaults = 12;
inline constexpr std::size_t kStatStartTime = 22;
inline constexpr std::size_t kStatProcessor = 39;  ///< the CPU that it last ran on

/// Rows of memory.numa_stat by name.
std::map<std::string, PerNode> parse_numa_stat(std::string_view text);

/// AnonHugePages of /proc/PID/smaps_rollup.
Bytes parse_transparent_huge(std::string_view text);

/// "0::/user.slice/…" of /proc/PID/cgroup → "/user.slice/…"; empty where there is no cgroup v2.
std::string parse_cgroup(std::string_view text);

struct Mount {
    std::string device;  ///< "0:38"
    std::string point;
    std::string type;

    bool operator==(const Mount&) const = default;
};
/// Of /proc/PID/mountinfo.
std::vector<Mount> parse_mounts(std::string_view text);

}  // namespace numalease::client
