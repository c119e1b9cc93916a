#include "host/partition.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "host/lines.hpp"
#include "host/threads.hpp"

namespace numalease::host {

using model::CpuSet;
using model::Errc;
using model::fail;
using model::Result;
using model::ShieldKind;

namespace {

constexpr std::size_t kNamed = 6;  ///< of threads and interrupts, in a line for people

std::string file_of(const std::string& cgroup2, const std::string& cgroup, std::string_view name) {
    return cgroup2 + (cgroup == "/" ? "" : cgroup) + '/' + std::string(name);
}

std::string parent_of(const std::string& cgroup) { return cgroup.substr(0, cgroup.rfind('/')); }

/// "/a/b/c" → "/a", "/a/b", "/a/b/c".
std::vector<std::string> levels_of(const std::string& cgroup) {
    std::vector<std::string> out;
    for (std::size_t end = cgroup.find('/', 1);; end = cgroup.find('/', end + 1)) {
        out.push_back(cgroup.substr(0, end));
        if (end == std::string::npos) return out;
    }
}

std::string read_line(const Root& root, const std::string& path) {
    const auto text = root.read(path);
    return text ? std::string(model::trim(*text)) : std::string();
}

/// Format: "0-3,8", "" or "\n".
CpuSet read_cpus(const Root& root, const std::string& path) {
    return CpuSet::parse(read_line(root, path)).value_or(CpuSet());
}

/// Format without a limit: "max", "max 100000" (cpu.max), "mlx4_0 hca_handle=max hca_object=max" (rdma.max), or
/// nothing.
bool limits(std::string_view value) {
    if (value.starts_with("max ")) return false;
    return std::ranges::any_of(words_of(value), [](std::string_view word) {
        const auto number = word.substr(word.find('=') + 1);
        return !number.empty() && number.front() >= '0' && number.front() <= '9';
    });
}

/// The least number in a file of `cgroup` and of all above it.  Format: "max" or a number.
std::optional<std::uint64_t> least_of(const Root& root, const std::string& cgroup2, std::string cgroup,
                                      std::string_view file) {
    std::optional<std::uint64_t> least;
    for (; cgroup.size() > 1; cgroup = parent_of(cgroup)) {
        const auto value =
            model::parse_unsigned(read_line(root, file_of(cgroup2, cgroup, file)), file, ~std::uint64_t{0});
        if (value) least = least ? std::min(*least, *value) : *value;
    }
    return least;
}

Result<void> write_exclusive(const Root& root, const std::string& path, const CpuSet& cpus) {
    // An empty write is no write; a line end clears the set.
    if (auto written = root.write(path, cpus.empty() ? "\n" : cpus.text()); !written) return written;
    const auto got = read_cpus(root, path);
    if (got == cpus) return {};
    return fail(Errc::io, root.full_path(path) + " reads '" + got.text() + "' after '" + cpus.text() + "' was written");
}

}  // namespace

ShieldKind shields_of_kernel(const Root& root, const std::string& cgroup2) {
    if (cgroup2.empty()) return ShieldKind::none;
    if (root.exists(cgroup2 + "/cpuset.cpus.isolated")) return ShieldKind::path;
    const auto controllers = read_line(root, cgroup2 + "/cgroup.controllers");
    for (const auto word : words_of(controllers))
        if (word == "cpuset") return ShieldKind::slice;
    return ShieldKind::none;
}

std::string limits_of(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    std::vector<std::string> names{"memory.max", "memory.high", "memory.swap.max", "cpu.max",
                                   "io.max",     "misc.max",    "rdma.max",        "cpuset.cpus"};
    for (auto& name : root.list(file_of(cgroup2, cgroup, "")))  // "hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"
        if (name.starts_with("hugetlb.") && name.ends_with(".max")) names.push_back(std::move(name));
    std::string out;
    for (const auto& name : names) {
        auto value = read_line(root, file_of(cgroup2, cgroup, name));
        std::ranges::replace(value, '\n', ' ');  // a line for each device or resource
        if (limits(value)) out += (out.empty() ? "" : ", ") + name + '=' + value;
    }
    return out;
}

std::string user_slice_of(const std::string& cgroup) {
    constexpr std::string_view kUsers = "/user.slice/";
    return cgroup.starts_with(kUsers) ? cgroup.substr(0, cgroup.find('/', kUsers.size())) : std::string();
}

std::string limits_of_user(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    const auto slice = user_slice_of(cgroup);
    if (slice.empty()) return {};
    auto limits = limits_of(root, cgroup2, slice);
    return limits.empty() ? limits_of(root, cgroup2, "/user.slice") : limits;
}

std::optional<std::uint64_t> tasks_limit_of(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    return least_of(root, cgroup2, cgroup, "pids.max");
}

std::optional<model::Bytes> memory_limit_of(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    return least_of(root, cgroup2, cgroup, "memory.max");
}

Result<std::string> read_partition(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    const auto text = root.read(file_of(cgroup2, cgroup, "cpuset.cpus.partition"));
    if (!text) return std::unexpected(text.error());
    return std::string(model::trim(*text));
}

CpuSet read_own_cpus(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    return read_cpus(root, file_of(cgroup2, cgroup, "cpuset.cpus"));
}

std::string in_the_way_of_partition(const Root& root, const std::string& cgroup2, const model::Shield& shield,
                                    const CpuSet& cpus) {
    const bool own = shield.kind == ShieldKind::path;  // the slice of all shields may stand already
    const auto now = own ? read_line(root, file_of(cgroup2, shield.cgroup, "cpuset.cpus.partition")) : std::string();
    if (!now.empty() && now != "member") return shield.cgroup + " is a partition already (" + now + ')';
    for (const auto& level : levels_of(shield.cgroup)) {
        const auto held = own ? read_cpus(root, file_of(cgroup2, level, "cpuset.cpus.exclusive")) & cpus : CpuSet();
        if (!held.empty()) return level + " has CPUs " + held.text() + " for itself (cpuset.cpus.exclusive)";
        const auto above = parent_of(level);
        for (const auto& name : root.list(cgroup2 + above)) {
            const auto sibling = above + '/' + name;
            if (sibling == level) continue;
            const auto exclusive = file_of(cgroup2, sibling, "cpuset.cpus.exclusive");
            const auto taken = read_cpus(root, exclusive) & cpus;
            if (!taken.empty()) return sibling + " has CPUs " + taken.text() + " for itself (cpuset.cpus.exclusive)";
            // With exclusive CPUs the kernel asks only that no sibling is left without any; before, that none has them.
            const auto set = read_own_cpus(root, cgroup2, sibling);
            if (root.exists(exclusive) ? !set.empty() && cpus.covers(set) : set.intersects(cpus))
                return sibling + " has CPUs " + (set & cpus).text() + " in its own cpuset.cpus (AllowedCPUs=)";
        }
    }
    return {};
}

Result<std::string> begin_partition(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    if (auto written = root.write(file_of(cgroup2, cgroup, "cpuset.cpus.partition"), "root"); !written)
        return std::unexpected(written.error());
    return read_partition(root, cgroup2, cgroup);
}

Result<void> end_partition(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    const auto now = read_partition(root, cgroup2, cgroup);
    if (!now || !now->starts_with("root")) return {};
    const auto path = file_of(cgroup2, cgroup, "cpuset.cpus.partition");
    if (auto written = root.write(path, "member"); !written) return root.exists(path) ? written : Result<void>();
    const auto after = read_partition(root, cgroup2, cgroup);
    if (!after || *after == "member") return {};
    return fail(Errc::io, root.full_path(path) + " reads '" + *after + "' after 'member' was written");
}

bool is_released(const Root& root, const std::string& cgroup2, const CpuSet& cpus) {
    return read_cpus(root, cgroup2 + "/cpuset.cpus.effective").covers(cpus);
}

void await_cpusets(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    const auto top = levels_of(cgroup).front();
    const auto now = read_partition(root, cgroup2, top);
    // The kernel takes the lock of all cpusets before it sees that there is nothing to do.
    if (now && *now == "member") (void)root.write(file_of(cgroup2, top, "cpuset.cpus.partition"), "member");
}

Result<void> hand_down(const Root& root, const std::string& cgroup2, const std::string& cgroup, const CpuSet& cpus) {
    for (const auto& level : levels_of(cgroup)) {
        const auto path = file_of(cgroup2, level, "cpuset.cpus.exclusive");
        const auto now = read_cpus(root, path);
        if (now.covers(cpus)) continue;
        if (auto written = write_exclusive(root, path, now | cpus); !written) return written;
    }
    return {};
}

Result<void> take_back(const Root& root, const std::string& cgroup2, const std::string& cgroup, const CpuSet& cpus) {
    Result<void> out;
    auto levels = levels_of(cgroup);
    std::ranges::reverse(levels);
    for (const auto& level : levels) {
        const auto path = file_of(cgroup2, level, "cpuset.cpus.exclusive");
        const auto now = read_cpus(root, path);
        if (!now.intersects(cpus)) continue;
        if (auto written = write_exclusive(root, path, now - cpus); !written && root.exists(path)) out = written;
    }
    return out;
}

// ── What still runs ──────────────────────────────────────────────────────────────────────────────────────────────

namespace {

/// Names with how often each was there; the first few, then a count.
std::string listed(const std::map<std::string, unsigned>& names) {
    std::string out;
    std::size_t shown = 0;
    for (const auto& [name, count] : names) {
        if (shown++ == kNamed) return out + ", and " + std::to_string(names.size() - kNamed) + " more kinds";
        out += (out.empty() ? "" : ", ") + name + (count > 1 ? " ×" + std::to_string(count) : "");
    }
    return out;
}

std::map<std::string, unsigned> interrupts_on(const Root& proc, const CpuSet& cpus) {
    std::map<std::string, unsigned> out;
    for (const auto& irq : proc.list("irq")) {
        const auto path = "irq/" + irq;
        if (!read_cpus(proc, path + "/effective_affinity_list").intersects(cpus)) continue;
        // A folder in it is named after the device that asked for it; without one nothing is served.
        for (const auto& name : proc.list(path))
            if (!proc.list(path + '/' + name).empty() || name.find('.') != std::string::npos) {
                ++out[irq + " (" + name + ')'];
                break;
            }
    }
    return out;
}

}  // namespace

std::string what_still_runs_on(const Root& proc, const CpuSet& cpus) {
    const auto threads = kernel_threads_on(proc, cpus);
    const auto interrupts = interrupts_on(proc, cpus);
    std::string out;
    if (!threads.empty()) out = "kernel threads bound to them (" + listed(threads) + ')';
    if (!interrupts.empty()) out += (out.empty() ? "" : "; ") + ("interrupts " + listed(interrupts));
    return out.empty() ? out : "still run on CPUs " + cpus.text() + ": " + out;
}

}  // namespace numalease::host
