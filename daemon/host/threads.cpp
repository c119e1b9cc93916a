#include "host/threads.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "host/lines.hpp"
#include "host/process.hpp"
#include "model/value.hpp"

namespace numalease::host {

namespace {

// A mask is four leaves of its lease's record, which has others too: its processes, knobs and notes.
constexpr std::size_t kLeavesOfAMask = 4;
static_assert(kMostThreadMasks * kLeavesOfAMask <= model::kFlatMaxLeaves / 2);

std::string task_path(int pid, int tid, std::string_view file) {
    return std::to_string(pid) + "/task/" + std::to_string(tid) + '/' + std::string(file);
}

/// The value of one line of /proc/PID/status.
std::string_view status_field(std::string_view text, std::string_view name) {
    for (const auto line : lines_of(text))
        if (line.starts_with(name)) return model::trim(line.substr(name.size()));
    return {};
}

model::CpuSet mask_of(std::string_view status) {
    return model::CpuSet::parse(status_field(status, "Cpus_allowed_list:")).value_or(model::CpuSet());
}

model::CpuSet read_mask(const Root& proc_root, int pid, int tid) {
    const auto text = proc_root.read(task_path(pid, tid, "status"));
    return text ? mask_of(*text) : model::CpuSet();
}

/// The CPUs that a cgroup may use: its own file, or that of the nearest one above which has the controller.
class Cpusets {
public:
    Cpusets(const Root& root, std::string cgroup2) : root_(root), cgroup2_(std::move(cgroup2)) {}

    const model::CpuSet& of(const std::string& cgroup) {
        const auto [found, is_new] = known_.try_emplace(cgroup);
        if (!is_new) return found->second;
        const auto text = root_.read(cgroup2_ + cgroup + "/cpuset.cpus.effective");
        if (text)
            found->second = model::CpuSet::parse(model::trim(*text)).value_or(model::CpuSet());
        else if (!cgroup.empty())
            found->second = of(cgroup.substr(0, cgroup.rfind('/')));
        return found->second;  // references into a map stay good
    }

private:
    const Root& root_;
    std::string cgroup2_;
    std::map<std::string, model::CpuSet> known_;
};

// Source: include/linux/sched.h, PF_KTHREAD and PF_NO_SETAFFINITY.
constexpr std::uint64_t kKernelThread = 0x00200000;
constexpr std::uint64_t kBound = 0x04000000;

/// Field 9 of /proc/PID/stat, after a name that may hold anything. Source: proc(5).
std::uint64_t read_flags(const Root& proc_root, int pid) {
    constexpr std::size_t kFlags = 6;  // counted from the state, which is field 3
    const auto text = proc_root.read(std::to_string(pid) + "/stat");
    const auto end = text ? text->rfind(')') : std::string::npos;
    if (end == std::string::npos) return 0;
    const auto words = words_of(std::string_view(*text).substr(end + 1));
    if (words.size() <= kFlags) return 0;
    return model::parse_unsigned(words[kFlags], "flags", ~std::uint32_t{0}).value_or(0);
}

/// "ksoftirqd/3" → "ksoftirqd": there is one for each CPU.
std::string kind_of_thread(std::string_view name) { return std::string(name.substr(0, name.find('/'))); }

bool set_mask(int tid, const model::CpuSet& cpus) {
    std::array<cpu_set_t, model::kCpuLimit / CPU_SETSIZE> mask{};
    for (const auto cpu : cpus.items()) CPU_SET_S(cpu, sizeof mask, mask.data());
    return sched_setaffinity(tid, sizeof mask, mask.data()) == 0;
}

}  // namespace

bool loses_thread_masks(const Root& root) {
    const auto text = root.read("proc/sys/kernel/osrelease");
    if (!text) return false;
    constexpr std::pair kKeeps{6U, 2U};
    std::pair version{0U, 0U};
    const auto* end = text->data() + text->size();
    const auto major = std::from_chars(text->data(), end, version.first);
    if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return false;
    std::from_chars(major.ptr + 1, end, version.second);
    return version < kKeeps;
}

std::vector<model::ThreadMask> still_own(const Root& root, const Root& proc_root, const std::string& cgroup2,
                                         std::vector<model::ThreadMask> masks) {
    Cpusets cpusets(root, cgroup2);
    std::erase_if(masks, [&](const model::ThreadMask& it) {
        const auto cgroup = read_cgroup(proc_root, it.pid);
        if (!cgroup) return true;
        const auto& all = cpusets.of(*cgroup == "/" ? "" : *cgroup);
        return it.cpus == all || !all.covers(it.cpus) || read_mask(proc_root, it.pid, it.thread.pid) != it.cpus;
    });
    return masks;
}

ThreadMasks read_thread_masks(const Root& root, const Root& proc_root, const std::string& cgroup2) {
    ThreadMasks out;
    Cpusets cpusets(root, cgroup2);
    const auto& everything = cpusets.of("");
    for (const int pid : proc_root.numbers("")) {
        const auto status = proc_root.read(task_path(pid, pid, "status"));
        const bool alone = status && status_field(*status, "Threads:") == "1";
        if (alone && !everything.empty() && mask_of(*status).covers(everything))
            continue;  // most are so, and one file says it
        const auto cgroup = read_cgroup(proc_root, pid);
        if (!cgroup || *cgroup == "/") continue;  // kernel threads, and what no controller moves
        const auto& all = cpusets.of(*cgroup);
        for (const int tid : alone ? std::vector{pid} : proc_root.numbers(std::to_string(pid) + "/task")) {
            auto cpus = alone ? mask_of(*status) : read_mask(proc_root, pid, tid);
            if (cpus.empty() || cpus == all || !all.covers(cpus)) continue;
            const auto start = read_start_time(proc_root, tid);
            if (!start) continue;
            if (out.kept.size() < kMostThreadMasks)
                out.kept.push_back({.pid = pid, .thread = {.pid = tid, .start_time = *start}, .cpus = std::move(cpus)});
            else
                ++out.left_out;
        }
    }
    out.kept = still_own(root, proc_root, cgroup2, std::move(out.kept));
    return out;
}

std::vector<model::ThreadMask> read_kernel_thread_masks(const Root& root, const Root& proc_root,
                                                        const std::string& cgroup2) {
    std::vector<model::ThreadMask> out;
    const auto all = Cpusets(root, cgroup2).of("");
    for (const int pid : proc_root.numbers("")) {
        const auto flags = read_flags(proc_root, pid);
        if ((flags & kKernelThread) == 0 || (flags & kBound) != 0) continue;
        auto cpus = read_mask(proc_root, pid, pid);
        const auto start = read_start_time(proc_root, pid);
        if (start && !cpus.empty() && cpus != all && all.covers(cpus))
            out.push_back({.pid = pid, .thread = {.pid = pid, .start_time = *start}, .cpus = std::move(cpus)});
    }
    return still_own(root, proc_root, cgroup2, std::move(out));
}

ThreadMasks living_masks(const Root& proc_root, std::vector<model::ThreadMask> masks) {
    std::erase_if(masks, [&](const model::ThreadMask& it) { return !is_alive(proc_root, it.thread); });
    const auto left_out = masks.size() - std::min(masks.size(), kMostThreadMasks);
    masks.resize(masks.size() - left_out);
    return {.kept = std::move(masks), .left_out = left_out};
}

std::vector<model::ThreadMask> restore_thread_masks(const Root& root, const Root& proc_root, const std::string& cgroup2,
                                                    const std::vector<model::ThreadMask>& masks,
                                                    const std::string& spared) {
    std::vector<model::ThreadMask> left;
    Cpusets cpusets(root, cgroup2);
    for (const auto& it : masks) {
        const auto cgroup = read_cgroup(proc_root, it.thread.pid);
        if (!cgroup || !is_alive(proc_root, it.thread)) continue;
        if (is_inside(*cgroup, spared)) {
            left.push_back(it);
            continue;
        }
        const auto now = read_mask(proc_root, it.pid, it.thread.pid);
        if (now != it.cpus && now == cpusets.of(*cgroup)) set_mask(it.thread.pid, it.cpus);
    }
    return left;
}

std::map<std::string, unsigned> kernel_threads_on(const Root& proc_root, const model::CpuSet& cpus) {
    std::map<std::string, unsigned> out;
    for (const int pid : proc_root.numbers("")) {
        if ((read_flags(proc_root, pid) & kKernelThread) == 0 || !read_mask(proc_root, pid, pid).intersects(cpus))
            continue;
        const auto comm = proc_root.read(std::to_string(pid) + "/comm");
        if (comm) ++out[kind_of_thread(model::trim(*comm))];
    }
    return out;
}

}  // namespace numalease::host
