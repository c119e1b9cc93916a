#include "where/where_read.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <numaif.h>
#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <sstream>

#include "text/output.hpp"
#include "where/sampling.hpp"

namespace numalease::client {

using model::CpuSet;
using model::Errc;
using model::fail;
using model::NodeSet;
using model::Result;

namespace {

constexpr std::size_t kMostText = 1U << 20U;
constexpr std::size_t kMostSpans = 262144;
constexpr std::size_t kMostThreads = 65536;

class Descriptor {
public:
    explicit Descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd_ >= 0) close(fd_);
    }
    [[nodiscard]] int get() const { return fd_; }

private:
    int fd_;
};

/// The lines of a file, one by one; of one longer than the buffer the rest is lost. Returns an errno.
int each_line(const std::string& path, const std::function<void(std::string_view)>& take) {
    const Descriptor file(path);
    if (file.get() < 0) return errno;
    std::string buffer(1U << 16U, '\0');
    std::size_t held = 0;
    bool skipping = false;
    for (;;) {
        const auto got = read(file.get(), buffer.data() + held, buffer.size() - held);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) break;
        std::string_view text(buffer.data(), held + static_cast<std::size_t>(got));
        for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
            if (!skipping) take(text.substr(0, end));
            skipping = false;
            text.remove_prefix(end + 1);
        }
        held = text.size();
        if (held == buffer.size()) {
            if (!skipping) take(text);
            skipping = true;
            held = 0;
        }
        std::memmove(buffer.data(), text.data(), held);
    }
    if (held > 0 && !skipping) take(std::string_view(buffer.data(), held));
    return 0;
}

/// The first kMostText bytes; nothing where it cannot be read.
std::string read_text(const std::string& path, int* err = nullptr) {
    const Descriptor file(path);
    std::string out;
    std::array<char, 16384> part{};
    ssize_t got = file.get() < 0 ? -1 : 1;
    if (err != nullptr) *err = got < 0 ? errno : 0;
    while (got > 0 && out.size() < kMostText) {
        got = read(file.get(), part.data(), part.size());
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            out.append(part.data(), static_cast<std::size_t>(got));
    }
    if (err != nullptr && got < 0 && *err == 0) *err = errno;
    return out;
}

std::string of_process(int pid, const char* file) { return "/proc/" + std::to_string(pid) + '/' + file; }

/// Names of a directory that are numbers.
std::vector<int> numbers_in(const std::string& path, std::size_t most) {
    std::vector<int> out;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
    if (!directory) return out;
    while (const auto* entry = readdir(directory.get())) {
        if (out.size() >= most) break;
        if (const auto number = model::parse_unsigned(entry->d_name, "number", 1U << 30U))
            out.push_back(static_cast<int>(*number));
    }
    return out;
}

Result<void> cannot_look(int pid, const ProcessStatus& status, const char* what, int err) {
    const auto who = "process " + std::to_string(pid) + " (" + status.name + ')';
    if (err == EACCES || err == EPERM)
        return fail(Errc::denied,
                    who + " is " + user_name(status.uid) + "'s, and its memory is not yours to see (" + what + ": " +
                        std::strerror(err) + "); numa-leasectl where needs root for it",
                    err);
    if (err == ESRCH) return fail(Errc::io, who + " has no memory of its own: it has ended, or is the kernel's", err);
    if (err == ENOENT || err == ENOSYS)
        return fail(Errc::unsupported, std::string("this kernel has no ") + what + ": it was built without NUMA", err);
    return fail(Errc::io, who + ": " + what + ": " + std::strerror(err), err);
}

Result<void> read_exactly(int pid, const ProcessStatus& status, bool transparent_huge, Tally& tally, Found& found) {
    const int err = each_line(of_process(pid, "numa_maps"), [&](std::string_view line) {
        if (const auto mapping = parse_numa_maps_line(line)) tally.add(pid, *mapping);
    });
    // A process that has just ended has no file, either.
    if (err != 0) return cannot_look(pid, status, "numa_maps", err == ENOENT && !read_status(pid) ? ESRCH : err);
    if (!transparent_huge) return {};
    const auto huge = parse_transparent_huge(read_text(of_process(pid, "smaps_rollup")));
    found.transparent_huge = found.transparent_huge.value_or(0) + huge;
    return {};
}

Result<void> read_some(int pid, const ProcessStatus& status, std::size_t samples, const Machine& machine, Tally& tally,
                       Found& found) {
    std::vector<Span> spans;
    const int err = each_line(of_process(pid, "maps"), [&](std::string_view line) {
        auto span = parse_maps_line(line);
        if (span && spans.size() < kMostSpans) spans.push_back(std::move(*span));
    });
    if (err != 0) return cannot_look(pid, status, "maps", err == ENOENT ? ESRCH : err);
    if (spans.size() == kMostSpans)
        found.notes.push_back("of process " + std::to_string(pid) + " only the first " + std::to_string(kMostSpans) +
                              " mappings were sampled");
    const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
    const auto picks = pick_pages(spans, status.resident() + status.hugetlb, samples, page);
    std::vector<void*> addresses;
    for (const auto& pick : picks)
        addresses.push_back(reinterpret_cast<void*>(pick.address));  // NOLINT(performance-no-int-to-ptr): not ours
    std::vector<int> nodes(picks.size(), -ENOENT);
    // Without target nodes it moves nothing and tells where each page is.
    if (!picks.empty() && move_pages(pid, picks.size(), addresses.data(), nullptr, nodes.data(), 0) < 0) {
        const int failed = errno;
        if (failed == EPERM && geteuid() == 0)
            return fail(Errc::denied, "move_pages: a seccomp filter forbids it; say --exact, or add CAP_SYS_NICE",
                        failed);
        return cannot_look(pid, status, "move_pages", failed);
    }
    for (const auto& mapping : estimate(spans, picks, nodes, status, machine.hugetlb_devices)) tally.add(pid, mapping);
    found.effort.sampled += picks.size();
    return {};
}

}  // namespace

Machine read_machine() {
    const std::string nodes = "/sys/devices/system/node/";
    Machine out;
    const auto list = [&](const char* file) {
        return NodeSet::parse(model::trim(read_text(nodes + file))).value_or(NodeSet{});
    };
    out.memory = list("has_memory");
    if (out.memory.empty()) out.memory = NodeSet{0};  // a kernel without NUMA
    for (const auto node : list("online").items())
        out.cpus.emplace_back(node,
                              CpuSet::parse(model::trim(read_text(nodes + "node" + std::to_string(node) + "/cpulist")))
                                  .value_or(CpuSet{}));
    for (const auto& mount : parse_mounts(read_text("/proc/self/mountinfo"))) {
        if (mount.type == "cgroup2" && (out.cgroup2.empty() || mount.point == "/sys/fs/cgroup"))
            out.cgroup2 = mount.point;
        if (mount.type == "hugetlbfs") out.hugetlb_devices.insert(mount.device);
    }
    return out;
}

Result<ProcessStatus> read_status(int pid) {
    const auto text = read_text(of_process(pid, "status"));
    if (text.empty()) return fail(Errc::invalid_request, "there is no process " + std::to_string(pid), ESRCH);
    return parse_status(text);
}

Result<void> read_memory(int pid, const ProcessStatus& status, const Look& look, const Machine& machine, Tally& tally,
                         Found& found) {
    auto done = look.samples == 0 ? read_exactly(pid, status, look.transparent_huge, tally, found)
                                  : read_some(pid, status, look.samples, machine, tally, found);
    if (!done) return done;
    found.processes.push_back({pid, status.name, status.resident() + status.hugetlb});
    found.swap += status.swap;
    return {};
}

void read_threads(int pid, const Machine& machine, const CpuSet& cpus, Found& found) {
    const auto tasks = of_process(pid, "task/");
    for (const auto thread : numbers_in(tasks, kMostThreads)) {
        const auto cpu = stat_field(read_text(tasks + std::to_string(thread) + "/stat"), kStatProcessor);
        if (!cpu || *cpu >= model::kCpuLimit) continue;
        ++found.threads;
        for (const auto& [node, its] : machine.cpus)
            if (its.contains(static_cast<unsigned>(*cpu))) ++found.nodes[node].threads;
        std::vector<std::uint8_t> mask(model::kCpuLimit / 8);
        if (cpus.empty() || sched_getaffinity(thread, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data())) != 0)
            continue;
        if (!cpus.covers(CpuSet::from_bytes(mask))) ++found.threads_astray;
    }
}

std::string read_cgroup(int pid) { return parse_cgroup(read_text(of_process(pid, "cgroup"))); }

std::uint64_t read_start_time(int pid) {
    return stat_field(read_text(of_process(pid, "stat")), kStatStartTime).value_or(0);
}

std::uint64_t read_major_faults(int pid) {
    return stat_field(read_text(of_process(pid, "stat")), kStatMajorFaults).value_or(0);
}

std::vector<int> read_children(int pid) {
    std::istringstream words(read_text(of_process(pid, "task/") + std::to_string(pid) + "/children"));
    return {std::istream_iterator<int>(words), {}};
}

bool is_in_cgroup(std::string_view cgroup, std::string_view other) {
    return !other.empty() && cgroup.starts_with(other) &&
           (cgroup.size() == other.size() || cgroup[other.size()] == '/');
}

std::vector<int> read_pids_in(const std::string& cgroup) {
    std::vector<int> out;
    for (const auto pid : numbers_in("/proc", ~std::size_t{0}))
        if (out.size() < kMostProcesses && is_in_cgroup(read_cgroup(pid), cgroup)) out.push_back(pid);
    std::ranges::sort(out);
    return out;
}

std::map<std::string, PerNode> read_charged(const Machine& machine, const std::string& cgroup) {
    if (machine.cgroup2.empty() || cgroup.empty()) return {};
    return parse_numa_stat(read_text(machine.cgroup2 + cgroup + "/memory.numa_stat"));
}

Argv read_argv(int pid) {
    const auto text = read_text(of_process(pid, "cmdline"));
    Argv out;
    for (std::size_t at = 0; at < text.size();) {
        const auto end = std::min(text.find('\0', at), text.size());
        out.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return out;
}

Env read_environment(int pid) {
    const auto text = read_text(of_process(pid, "environ"));
    Env out;
    for (std::size_t at = 0; at < text.size();) {
        const auto end = std::min(text.find('\0', at), text.size());
        const auto entry = std::string_view(text).substr(at, end - at);
        if (const auto equals = entry.find('='); equals != std::string_view::npos)
            out.emplace(entry.substr(0, equals), entry.substr(equals + 1));
        at = end + 1;
    }
    return out;
}

}  // namespace numalease::client
