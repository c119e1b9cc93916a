#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "host/lines.hpp"
#include "host/process.hpp"

namespace numalease::host {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr int kMostLevels = 32;  ///< deeper trees than anybody builds; bounds the recursion

/// Undoes the octal escapes of mountinfo: "\040" is a blank.
std::string unescape(std::string_view text) {
    const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size() && is_octal(text[i + 1]) && is_octal(text[i + 2]) &&
            is_octal(text[i + 3])) {
            out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

/// Names of the cgroups right below one.
std::vector<std::string> children(const Root& root, const std::string& path) {
    std::vector<std::string> out;
    for (const auto& name : root.list(path))
        if (root.exists(path + '/' + name + "/cgroup.procs")) out.push_back(name);
    return out;
}

void collect_pids(const Root& root, const std::string& path, int level, std::vector<int>& pids) {
    // A threaded cgroup refuses to list processes; those above it do list them.
    if (const auto text = root.read(path + "/cgroup.procs"))
        for (const auto line : lines_of(*text))
            if (const auto pid = model::parse_unsigned(line, "pid", 1U << 30U)) pids.push_back(static_cast<int>(*pid));
    if (level >= kMostLevels) return;
    for (const auto& name : children(root, path)) collect_pids(root, path + '/' + name, level + 1, pids);
}

/// Nothing in the root cgroup, which has no such file.
std::optional<bool> populated_of(const Root& root, const std::string& path) {
    const auto text = root.read(path + "/cgroup.events");
    if (!text) return std::nullopt;
    for (const auto line : lines_of(*text))
        if (line.starts_with("populated ")) return line.ends_with('1');
    return std::nullopt;
}

std::string cgroup_path(const std::string& cgroup2, const std::string& cgroup) {
    std::string path = cgroup2 + (cgroup.starts_with('/') ? "" : "/") + cgroup;
    while (path.ends_with('/')) path.pop_back();
    return path;
}

Result<void> remove_tree(const Root& root, const std::string& path, int level) {
    if (level < kMostLevels)
        for (const auto& name : children(root, path))
            if (auto done = remove_tree(root, path + '/' + name, level + 1); !done) return done;
    const auto slash = path.rfind('/');
    const auto parent = root.open_below(path.substr(0, slash), O_RDONLY | O_DIRECTORY);
    if (!parent) return {};
    if (::unlinkat(parent->get(), path.substr(slash + 1).c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
    const int err = errno;
    return fail(Errc::io, "cannot remove " + root.full_path(path) + ": " + errno_text(err), err);
}

}  // namespace

std::string find_cgroup2(const Root& root, const Root& proc_root) {
    const auto text = proc_root.read("self/mountinfo");
    if (!text) return {};
    std::string found;
    // Format: "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw"; the fields before the
    // dash vary in number, the mount point is the fifth.
    for (const auto line : lines_of(*text)) {
        constexpr std::size_t kMountPoint = 4;
        const auto dash = line.find(" - ");
        if (dash == std::string_view::npos || !line.substr(dash + 3).starts_with("cgroup2 ")) continue;
        const auto words = words_of(line.substr(0, dash));
        if (words.size() <= kMountPoint) continue;
        auto path = unescape(words[kMountPoint]);
        path.erase(0, path.find_first_not_of('/'));
        if (root.exists(path) && (found.empty() || path == "sys/fs/cgroup")) found = path;
    }
    return found;
}

Result<std::string> read_cgroup(const Root& proc_root, int pid) {
    const auto path = std::to_string(pid) + "/cgroup";
    const auto text = proc_root.read(path);
    if (!text) return std::unexpected(text.error());
    constexpr std::string_view kUnified = "0::/";
    for (const auto line : lines_of(*text))
        if (line.starts_with(kUnified)) return std::string(line.substr(kUnified.size() - 1));
    return fail(Errc::unsupported, "no cgroup v2 in " + proc_root.full_path(path));
}

bool is_inside(std::string_view cgroup, std::string_view other) {
    return !other.empty() && cgroup.starts_with(other) &&
           (cgroup.size() == other.size() || cgroup[other.size()] == '/');
}

Result<CgroupFacts> read_cgroup_facts(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    const auto path = cgroup_path(cgroup2, cgroup);
    if (cgroup2.empty() || !root.exists(path + "/cgroup.procs"))
        return fail(Errc::unsupported, "no cgroup " + cgroup, ENOENT);
    CgroupFacts facts;
    if (const auto text = root.read(path + "/cpuset.cpus.effective"))
        if (auto cpus = model::CpuSet::parse(model::trim(*text))) facts.effective_cpus = *cpus;
    if (const auto text = root.read(path + "/cpuset.mems.effective"))
        if (auto nodes = model::NodeSet::parse(model::trim(*text))) facts.effective_nodes = *nodes;
    if (const auto text = root.read(path + "/memory.current"))
        if (const auto bytes = model::parse_unsigned(model::trim(*text), "memory", ~std::uint64_t{0}))
            facts.memory_current = *bytes;
    if (const auto text = root.read(path + "/memory.max"))
        if (const auto bytes = model::parse_unsigned(model::trim(*text), "memory", ~std::uint64_t{0}))
            facts.memory_max = *bytes;
    collect_pids(root, path, 0, facts.pids);
    facts.populated = populated_of(root, path).value_or(!facts.pids.empty());
    return facts;
}

Result<bool> read_populated(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    if (!cgroup2.empty())
        if (const auto said = populated_of(root, cgroup_path(cgroup2, cgroup))) return *said;
    const auto facts = read_cgroup_facts(root, cgroup2, cgroup);
    if (!facts) return std::unexpected(facts.error());
    return facts->populated;
}

Result<std::string> make_tracking_cgroup(const Root& root, const std::string& cgroup2, const std::string& parent,
                                         const std::string& name, int pid) {
    if (cgroup2.empty()) return fail(Errc::unsupported, "no cgroup v2 is mounted here");
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
        return fail(Errc::internal, "no name for a cgroup: '" + name + "'");
    const auto above = cgroup_path(cgroup2, parent);
    const auto directory = root.open_below(above, O_RDONLY | O_DIRECTORY);
    if (!directory) return std::unexpected(directory.error());
    constexpr mode_t kMode = 0755;
    if (::mkdirat(directory->get(), name.c_str(), kMode) != 0 && errno != EEXIST) {
        const int err = errno;
        const bool cannot = err == EROFS || err == EACCES || err == EPERM;
        return fail(cannot ? Errc::unsupported : Errc::io,
                    "cannot create a cgroup in " + root.full_path(above) + ": " + errno_text(err), err);
    }
    if (auto done = root.write(above + '/' + name + "/cgroup.procs", std::to_string(pid)); !done) {
        ::unlinkat(directory->get(), name.c_str(), AT_REMOVEDIR);
        return std::unexpected(done.error());
    }
    return (parent == "/" ? std::string{} : parent) + '/' + name;
}

Result<void> remove_tracking_cgroup(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    const auto path = cgroup_path(cgroup2, cgroup);
    if (cgroup2.empty() || path == cgroup2) return fail(Errc::internal, "no tracking cgroup: '" + cgroup + "'");
    if (!root.exists(path)) return {};
    return remove_tree(root, path, 0);
}

Result<model::MemoryEvents> read_memory_events(const Root& root, const std::string& cgroup2,
                                               const std::string& cgroup) {
    const auto text = root.read(cgroup_path(cgroup2, cgroup) + "/memory.events");
    if (!text) return std::unexpected(text.error());
    model::MemoryEvents out;
    bool counted = false;
    // Format: "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n…"
    for (const auto line : lines_of(*text)) {
        const auto words = words_of(line);
        if (words.size() != 2) continue;
        const auto count = model::parse_unsigned(words[1], "count", ~std::uint64_t{0});
        if (count && words[0] == "oom") out.oom = *count;
        if (count && words[0] == "oom_kill") out.oom_kill = *count;
        counted = counted || (count && words[0] == "oom_kill");
    }
    if (!counted) return fail(Errc::unsupported, "no oom_kill in memory.events of " + cgroup);
    return out;
}

std::string read_invocation(const Root& root, const std::string& cgroup) {
    const auto unit = cgroup.substr(cgroup.rfind('/') + 1);
    if (!unit.ends_with(".service")) return {};
    std::array<char, 128> target{};
    const auto size =
        ::readlinkat(root.fd(), ("run/systemd/units/invocation:" + unit).c_str(), target.data(), target.size());
    return size <= 0 ? std::string() : std::string(target.data(), static_cast<std::size_t>(size));
}

Result<model::ChargedByNode> read_charged(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    const auto text = root.read(cgroup_path(cgroup2, cgroup) + "/memory.numa_stat");
    if (!text && text.error().err == ENOENT)
        return fail(Errc::unsupported, "its cgroup " + cgroup + " has no memory.numa_stat", ENOENT);
    if (!text) return std::unexpected(text.error());
    // Format: "anon N0=1048576 N1=0\nfile N0=…\nfile_mapped N0=…\nshmem N0=…". Source: admin-guide/cgroup-v2.rst.
    std::map<std::string_view, std::map<unsigned, model::Bytes>> rows;
    for (const auto line : lines_of(*text)) {
        const auto words = words_of(line);
        if (words.empty()) continue;
        for (const auto word : words) {
            const auto equals = word.find('=');
            if (!word.starts_with('N') || equals == std::string_view::npos) continue;
            const auto node = model::parse_unsigned(word.substr(1, equals - 1), "node", model::kNodeLimit - 1);
            const auto bytes = model::parse_unsigned(word.substr(equals + 1), "bytes", ~std::uint64_t{0});
            if (node && bytes) rows[words[0]][static_cast<unsigned>(*node)] += *bytes;
        }
    }
    model::ChargedByNode out;
    for (const auto& [node, bytes] : rows["anon"]) out[node].anonymous += bytes;
    // Shared memory is counted among files, and where it is mapped among what is mapped of them.
    for (const auto& [node, bytes] : rows["file"]) {
        const auto shared = std::min(bytes, rows["shmem"][node]);
        auto& it = out[node];
        it.anonymous += shared;
        it.file = bytes - shared;
        const auto mapped = rows["file_mapped"][node];
        it.mapped = std::min(it.file, mapped - std::min(mapped, shared));
    }
    return out;
}

Result<std::map<unsigned, model::Bytes>> read_memory_by_node(const Root& root, const std::string& cgroup2,
                                                             const std::string& cgroup) {
    const auto charged = read_charged(root, cgroup2, cgroup);
    if (!charged) return std::unexpected(charged.error());
    std::map<unsigned, model::Bytes> used;
    for (const auto& [node, it] : *charged) used[node] = it.total();
    return used;
}

}  // namespace numalease::host
