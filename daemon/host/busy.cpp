#include "host/busy.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <optional>

#include "host/lines.hpp"
#include "host/process.hpp"

namespace numalease::host {

namespace {

constexpr std::uint64_t kKernelThread = 0x00200000;  // Source: include/linux/sched.h, PF_KTHREAD

struct Stat {
    std::uint64_t flags = 0;
    std::uint64_t ticks = 0;
    std::uint64_t start_time = 0;
    std::uint64_t cpu = 0;
};

/// Format: "1234 (any) name) R 1 …", where the name ends at the last ')'; what follows is field 3 and on. Source:
/// proc(5).
std::optional<Stat> read_stat(const Root& proc_root, int pid, int tid) {
    constexpr std::size_t kFirst = 3;
    constexpr std::size_t kFlags = 9 - kFirst;
    constexpr std::size_t kUser = 14 - kFirst;
    constexpr std::size_t kStart = 22 - kFirst;
    constexpr std::size_t kCpu = 39 - kFirst;
    const auto text = proc_root.read(std::to_string(pid) + "/task/" + std::to_string(tid) + "/stat");
    const auto end = text ? text->rfind(')') : std::string::npos;
    if (end == std::string::npos) return std::nullopt;
    const auto words = words_of(std::string_view(*text).substr(end + 1));
    if (words.size() <= kCpu) return std::nullopt;
    const auto number = [&](std::size_t at) {
        return model::parse_unsigned(words[at], "field", ~std::uint64_t{0}).value_or(0);
    };
    return Stat{.flags = number(kFlags),
                .ticks = number(kUser) + number(kUser + 1),
                .start_time = number(kStart),
                .cpu = number(kCpu)};
}

void describe(const Root& proc_root, BusyProcess& process) {
    const auto folder = std::to_string(process.pid);
    struct stat facts{};
    if (fstatat(proc_root.fd(), folder.c_str(), &facts, 0) == 0) process.uid = facts.st_uid;
    process.command = read_command(proc_root, process.pid);
    process.cgroup = read_cgroup(proc_root, process.pid).value_or("");
    process.ancestry = read_ancestry(proc_root, process.pid);
}

}  // namespace

ThreadTimes read_thread_times(const Root& proc_root) {
    ThreadTimes out;
    for (const int pid : proc_root.numbers("")) {
        if (pid == ::getpid()) continue;
        for (const int tid : proc_root.numbers(std::to_string(pid) + "/task")) {
            const auto stat = read_stat(proc_root, pid, tid);
            if (!stat) continue;
            if ((stat->flags & kKernelThread) != 0) break;
            if (out.size() == kMostBusyThreads) return out;
            out[tid] = {.pid = pid, .start_time = stat->start_time, .ticks = stat->ticks};
        }
    }
    return out;
}

std::vector<BusyProcess> read_busy(const Root& proc_root, const ThreadTimes& before, model::Micros since,
                                   const model::CpuSet& cpus) {
    constexpr double kPercent = 100;
    constexpr double kSecond = 1'000'000;
    const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK)) * static_cast<double>(since.count()) / kSecond;
    std::map<int, BusyProcess> found;
    for (const auto& [tid, was] : before) {
        const auto now = read_stat(proc_root, was.pid, tid);
        if (!now || now->start_time != was.start_time || now->ticks <= was.ticks || now->cpu >= model::kCpuLimit)
            continue;
        const auto cpu = static_cast<unsigned>(now->cpu);
        const auto percent = static_cast<unsigned>(kPercent * static_cast<double>(now->ticks - was.ticks) / ticks);
        if (percent <= kBusyPercent || !cpus.contains(cpu)) continue;
        found[was.pid].pid = was.pid;
        found[was.pid].threads.push_back({.pid = was.pid, .cpu = cpu, .percent = percent});
    }
    std::vector<BusyProcess> out;
    for (auto& [pid, process] : found) {
        describe(proc_root, process);
        out.push_back(std::move(process));
    }
    return out;
}

}  // namespace numalease::host
