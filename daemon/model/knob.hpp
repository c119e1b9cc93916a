#pragma once

#include <array>
#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "model/units.hpp"

namespace numalease::model {

/// A piece of kernel state the daemon owns.
enum class Knob {
    numa_balancing,
    thp_enabled,
    thp_defrag,
    zone_reclaim_mode,
    weight,       ///< weighted-interleave weight of one node
    weight_auto,  ///< whether the kernel keeps the weights itself; writing one weight clears it
    hugepages,    ///< persistent huge pages of one size on one node
    drop_caches,
    reclaim,  ///< per-node proactive reclaim
};

enum class KnobKind {
    shared,    ///< one value for all; holders must agree; the prior returns with the last one
    pool,      ///< each holder adds pages and gives back exactly its own
    one_shot,  ///< an action; nothing to restore
};

/// How the kernel writes the value.
enum class KnobFormat {
    integer,  ///< "1\n"
    choice,   ///< "always [madvise] never\n"; the value is the word in brackets
    boolean,  ///< "true\n"
    trigger,  ///< write only
};

/// One row of the table: everything that is particular to a knob.
struct KnobRow {
    Knob knob;
    std::string_view name;
    KnobKind kind;
    KnobFormat format;
    std::string_view path;      ///< below the root; {node} and {kib} are filled in
    std::string_view document;  ///< Source:
};

inline constexpr std::array kKnobTable{
    KnobRow{Knob::numa_balancing, "numa_balancing", KnobKind::shared, KnobFormat::integer,
            "proc/sys/kernel/numa_balancing", "admin-guide/sysctl/kernel.rst"},
    KnobRow{Knob::thp_enabled, "thp_enabled", KnobKind::shared, KnobFormat::choice,
            "sys/kernel/mm/transparent_hugepage/enabled", "admin-guide/mm/transhuge.rst"},
    KnobRow{Knob::thp_defrag, "thp_defrag", KnobKind::shared, KnobFormat::choice,
            "sys/kernel/mm/transparent_hugepage/defrag", "admin-guide/mm/transhuge.rst"},
    KnobRow{Knob::zone_reclaim_mode, "zone_reclaim_mode", KnobKind::shared, KnobFormat::integer,
            "proc/sys/vm/zone_reclaim_mode", "admin-guide/sysctl/vm.rst"},
    KnobRow{Knob::weight, "weight", KnobKind::shared, KnobFormat::integer,
            "sys/kernel/mm/mempolicy/weighted_interleave/node{node}",
            "ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave"},
    KnobRow{Knob::weight_auto, "weight_auto", KnobKind::shared, KnobFormat::boolean,
            "sys/kernel/mm/mempolicy/weighted_interleave/auto",
            "ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave"},
    KnobRow{Knob::hugepages, "hugepages", KnobKind::pool, KnobFormat::integer,
            "sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages",
            "admin-guide/mm/hugetlbpage.rst"},
    KnobRow{Knob::drop_caches, "drop_caches", KnobKind::one_shot, KnobFormat::trigger, "proc/sys/vm/drop_caches",
            "admin-guide/sysctl/vm.rst"},
    KnobRow{Knob::reclaim, "reclaim", KnobKind::one_shot, KnobFormat::trigger,
            "sys/devices/system/node/node{node}/reclaim", "ABI/stable/sysfs-devices-node"},
};

constexpr const KnobRow& row_of(Knob knob) { return kKnobTable.at(static_cast<std::size_t>(knob)); }

/// One knob of this machine: the row, and for a per-node or per-size knob which one.
/// Order is the order of the table, which is also the order of restoring (weights before weight_auto).
struct KnobKey {
    Knob knob = Knob::numa_balancing;
    unsigned node = 0;    ///< where the path has {node}
    Bytes page_size = 0;  ///< where the path has {kib}

    [[nodiscard]] const KnobRow& row() const { return row_of(knob); }
    /// "numa_balancing", "weight/node2", "hugepages/2M/node0".
    [[nodiscard]] std::string text() const;
    static Result<KnobKey> parse(std::string_view text);
    /// The file below the root.
    [[nodiscard]] std::string path() const;

    auto operator<=>(const KnobKey&) const = default;
};

/// A pool as the kernel shows it.  Units: pages.
/// Source: admin-guide/mm/hugetlbpage.rst. `nr_hugepages` reads persistent + surplus and writes persistent.
struct PoolReading {
    std::uint64_t total = 0;    ///< nr_hugepages as read
    std::uint64_t surplus = 0;  ///< surplus_hugepages
    std::uint64_t free = 0;     ///< free_hugepages of the node
    std::uint64_t global_free = 0;
    std::uint64_t global_reserved = 0;  ///< resv_hugepages: promised to mappings, not yet touched

    [[nodiscard]] std::uint64_t persistent() const { return total - std::min(total, surplus); }
    bool operator==(const PoolReading&) const = default;
};

}  // namespace numalease::model
