#include "host/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <limits>

#include "host/lines.hpp"

namespace numalease::host {

using model::Errc;
using model::fail;
using model::Result;

namespace {

std::string proc_path(int pid, std::string_view file) { return std::to_string(pid) + '/' + std::string(file); }

/// The fields of /proc/PID/stat behind the command name: [0] is field 3, the state.
/// Format: "1234 (any) name) S 1 1234 …". The name may hold blanks, brackets and newlines, so it ends at the last ')'.
/// The text is read as one and never by lines.
Result<std::vector<std::string>> read_stat(const Root& proc_root, int pid) {
    auto text = proc_root.read(proc_path(pid, "stat"));
    if (!text) return std::unexpected(text.error());
    const auto close = text->rfind(')');
    if (close == std::string::npos)
        return fail(Errc::io, "cannot understand " + proc_root.full_path(proc_path(pid, "stat")));
    std::vector<std::string> fields;
    for (const auto word : words_of(std::string_view(*text).substr(close + 1))) fields.emplace_back(word);
    return fields;
}

constexpr std::size_t kStateField = 0;
constexpr std::size_t kParentField = 1;
constexpr std::size_t kStartTimeField = 19;  ///< field 22 in proc(5)

/// For logs, the bus and terminals: a command may be called anything, escape sequences and broken UTF-8 included.
std::string printable(std::string_view text) {
    if (text.ends_with('\n')) text.remove_suffix(1);
    std::string out(text);
    for (auto& c : out)
        if (c < ' ' || c > '~') c = '?';
    return out;
}

/// Reads what read_caller wants from /proc/PID/status.
/// Format: "Uid:\t0\t0\t0\t0" (real, effective, saved, file system), "Cpus_allowed_list:\t0-1". "Name:" is written by
/// the process, but with its newlines escaped, so a line cannot be forged.
Result<void> read_status(const Root& proc_root, int pid, model::Caller& caller) {
    auto text = proc_root.read(proc_path(pid, "status"));
    if (!text) return std::unexpected(text.error());
    const auto effective = [](std::string_view value) -> Result<std::uint64_t> {
        const auto words = words_of(value);
        if (words.size() < 2) return fail(Errc::io, "no effective id in /proc/PID/status");
        return model::parse_unsigned(words[1], "id", std::numeric_limits<std::uint32_t>::max());
    };
    bool uid_seen = false;
    for (const auto line : lines_of(*text)) {
        const auto colon = line.find(':');
        if (colon == std::string_view::npos) continue;
        const auto name = line.substr(0, colon);
        const auto value = model::trim(line.substr(colon + 1));
        if (name == "Uid" || name == "Gid") {
            const auto id = effective(value);
            if (!id) return std::unexpected(id.error());
            (name == "Uid" ? caller.uid : caller.gid) = static_cast<unsigned>(*id);
            uid_seen = uid_seen || name == "Uid";
        } else if (name == "Cpus_allowed_list") {
            if (auto cpus = model::CpuSet::parse(value)) caller.allowed_cpus = *cpus;
        } else if (name == "Mems_allowed_list") {
            if (auto nodes = model::NodeSet::parse(value)) caller.allowed_nodes = *nodes;
        }
    }
    if (!uid_seen) return fail(Errc::io, "cannot understand " + proc_root.full_path(proc_path(pid, "status")));
    return {};
}

}  // namespace

Result<UniqueFd> open_pidfd(int pid) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // close-on-exec by itself
    if (!fd) {
        const int err = errno;
        return fail(Errc::io, "cannot watch process " + std::to_string(pid) + ": " + errno_text(err), err);
    }
    return fd;
}

int pid_of_pidfd(int pidfd) {
    // Our own descriptors, hence this machine's /proc whatever the root.
    const auto proc = Root::open("/proc");
    if (!proc) return -1;
    const auto text = proc->read("self/fdinfo/" + std::to_string(pidfd));
    if (!text) return -1;
    constexpr std::string_view kPid = "Pid:";
    for (const auto line : lines_of(*text)) {
        if (!line.starts_with(kPid)) continue;
        const auto pid = model::parse_unsigned(model::trim(line.substr(kPid.size())), "pid",
                                               static_cast<std::uint64_t>(std::numeric_limits<int>::max()));
        return pid ? static_cast<int>(*pid) : -1;  // "-1" once it has been reaped
    }
    return -1;
}

bool pidfd_alive(int pidfd) {
    pollfd poll{.fd = pidfd, .events = POLLIN, .revents = 0};
    int ready = -1;
    do {
        ready = ::poll(&poll, 1, 0);
    } while (ready < 0 && errno == EINTR);
    return ready == 0;
}

Result<std::uint64_t> read_start_time(const Root& proc_root, int pid) {
    const auto fields = read_stat(proc_root, pid);
    if (!fields) return std::unexpected(fields.error());
    const auto unknown = [&] {
        return fail(Errc::io, "no start time in " + proc_root.full_path(proc_path(pid, "stat")));
    };
    if (fields->size() <= kStartTimeField) return unknown();
    const auto ticks = model::parse_unsigned(fields->at(kStartTimeField), "start time", ~std::uint64_t{0});
    if (!ticks) return unknown();
    return *ticks;
}

bool is_alive(const Root& proc_root, const model::Process& process) {
    const auto fields = read_stat(proc_root, process.pid);
    if (!fields || fields->size() <= kStartTimeField) return false;
    const auto& state = fields->at(kStateField);
    if (state == "Z" || state == "X") return false;  // dead, its parent only has not asked yet
    return fields->at(kStartTimeField) == std::to_string(process.start_time);
}

Result<model::Caller> read_caller(const Root& proc_root, int pid, int pidfd, unsigned uid) {
    const auto name = "process " + std::to_string(pid);
    const auto denied = [&](const std::string& why) { return fail(Errc::denied, name + ": " + why); };
    if (pid <= 1 || pid == ::getpid()) return denied("cannot hold a lease");
    if (pid_of_pidfd(pidfd) != pid) return denied("is gone, or is not the one that asked");
    model::Caller caller;
    caller.process.pid = pid;
    if (auto done = read_status(proc_root, pid, caller); !done) return std::unexpected(done.error());
    if (caller.uid != uid)
        return denied("runs as uid " + std::to_string(caller.uid) + ", but the request came from uid " +
                      std::to_string(uid));
    const auto start = read_start_time(proc_root, pid);
    if (!start) return std::unexpected(start.error());
    caller.process.start_time = *start;
    caller.command = read_command(proc_root, pid);
    const auto cgroup = read_cgroup(proc_root, pid);
    if (cgroup) caller.cgroup = *cgroup;
    if (!cgroup && cgroup.error().code == Errc::io) return std::unexpected(cgroup.error());
    // Last: had the process died on the way, its number could have been somebody else's in between.
    if (!pidfd_alive(pidfd)) return denied("is gone");
    return caller;
}

std::string read_command(const Root& proc_root, int pid) {
    const auto comm = proc_root.read(proc_path(pid, "comm"));
    return comm ? printable(*comm) : std::string();
}

int read_parent(const Root& proc_root, int pid) {
    const auto fields = read_stat(proc_root, pid);
    if (!fields || fields->size() <= kParentField) return 0;
    const auto parent = model::parse_unsigned(fields->at(kParentField), "pid",
                                              static_cast<std::uint64_t>(std::numeric_limits<int>::max()));
    return parent ? static_cast<int>(*parent) : 0;
}

std::vector<model::Process> read_ancestry(const Root& proc_root, int pid) {
    constexpr std::size_t kMaxAncestors = 64;
    std::vector<model::Process> out;
    while (pid > 1 && out.size() < kMaxAncestors) {
        const auto start = read_start_time(proc_root, pid);
        if (!start) break;
        out.push_back({.pid = pid, .start_time = *start});
        pid = read_parent(proc_root, pid);
    }
    return out;
}

}  // namespace numalease::host
