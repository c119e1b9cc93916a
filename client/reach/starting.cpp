#include "reach/starting.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "text/output.hpp"

#ifndef NUMALEASE_DAEMON
#define NUMALEASE_DAEMON "/usr/libexec/numa-leased"
#endif

namespace numalease::client {

namespace fs = std::filesystem;
using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr auto kServiceTime = std::chrono::seconds(10);
constexpr auto kOtherStarterTime = std::chrono::seconds(2);
constexpr auto kLeavingTime = std::chrono::milliseconds(500);  ///< longer than a daemon takes to leave
constexpr auto kLookAgain = std::chrono::milliseconds(20);

using Words = std::vector<std::string>;

/// Never returns: between fork and exec in a child.
[[noreturn]] void become(const Words& words) {
    // Meant for the service that we may be part of: its manager would take the daemon's word for the service's.
    for (const auto* name : {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS"})
        unsetenv(name);
    std::vector<char*> argv;
    for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
}

/// Of all our descriptors the child keeps the standard ones and `fd`: not the pipes of whoever called us, which would
/// then never end.
void keep_only(int fd) {
    close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    fcntl(fd, F_SETFD, 0);
}

Result<Connection> wait_for_socket(const Endpoint& endpoint, std::chrono::milliseconds time) {
    Endpoint own = endpoint;
    own.bus = "none";
    const auto until = std::chrono::steady_clock::now() + time;
    while (true) {
        auto connection = find_daemon(own);
        if (connection || std::chrono::steady_clock::now() > until) return connection;
        std::this_thread::sleep_for(kLookAgain);
    }
}

Words daemon_words(const std::string& program, const Endpoint& endpoint) {
    Words words{program, "--exit-when-idle", "--bus", "none", "--runtime-dir", endpoint.runtime_directory};
    if (!endpoint.socket.empty()) words.insert(words.end(), {"--socket", endpoint.socket});
    return words;
}

// ── A session of its own ─────────────────────────────────────────────────────────────────────────────────────────

std::string log_path(const Endpoint& endpoint) { return endpoint.runtime_directory + "/log"; }

/// Last line of the daemon's log: why it did not start.
std::string last_words(const std::string& path) {
    std::array<char, 4096> tail{};
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return "";
    const auto size = lseek(fd, 0, SEEK_END);
    const auto from = std::max<off_t>(0, size - static_cast<off_t>(tail.size()));
    const auto got = pread(fd, tail.data(), tail.size(), from);
    close(fd);
    if (got <= 0) return "";
    const auto text = model::trim(std::string_view(tail.data(), static_cast<std::size_t>(got)));
    return std::string(text.substr(text.find_last_of('\n') + 1));
}

/// Appended to, and begun anew where it has become large. Nothing but a file of our own: what lies there may have been
/// put there for us.  Returns -1 where it cannot be had.
int open_log(const std::string& path) {
    constexpr off_t kLargest = 1 << 20;
    const int fd =
        open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);  // no FIFO waits
    struct stat facts{};
    if (fd < 0 || fstat(fd, &facts) < 0) return -1;
    if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid() || facts.st_nlink != 1) return -1;
    if (facts.st_size > kLargest && ftruncate(fd, 0) < 0) return -1;
    return fd;
}

/// The daemon outlives the one command that started it and serves others: where that runs, and how willingly, is no
/// setting of the daemon's. What may not be changed stays as it is.
void leave_the_callers_habits() {
    constexpr std::size_t kMostCpus = 8192;
    std::array<unsigned char, kMostCpus / 8> all{};
    all.fill(0xff);  // as far as the cgroup allows
    (void)syscall(SYS_sched_setaffinity, 0, all.size(), all.data());
    (void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0UL);
    const sched_param none{};
    (void)sched_setscheduler(0, SCHED_OTHER, &none);
    (void)setpriority(PRIO_PROCESS, 0, 0);
    // As the units have it: when memory runs out it is the daemon that can still put things back.
    const int oom = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    [[maybe_unused]] const auto written = write(oom, "-900", 4);
    if (oom >= 0) close(oom);
}

/// The daemon, two forks away: no child of the command that we become, no part of our session or process group.
[[noreturn]] void detach(const Words& words, const std::string& log, int ready) {
    setsid();
    if (fork() != 0) _exit(0);
    leave_the_callers_habits();
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    int out = open_log(log);
    if (out < 0) out = nothing;
    dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    if (chdir("/") < 0) _exit(127);
    keep_only(ready);
    become(words);
}

Result<void> start_session(const std::string& program, const Endpoint& endpoint) {
    std::array<int, 2> ready{};
    if (pipe2(ready.data(), O_CLOEXEC) < 0) return fail(Errc::no_daemon, "cannot make a pipe", errno);
    std::error_code ignored;
    const auto before = umask(022);  // nobody else may write where the journal will be
    fs::create_directories(endpoint.runtime_directory, ignored);
    umask(before);
    auto words = daemon_words(program, endpoint);
    words.insert(words.end(), {"--ready-fd", std::to_string(ready[1])});
    const auto log = log_path(endpoint);
    const pid_t child = fork();
    if (child == 0) detach(words, log, ready[1]);
    close(ready[1]);
    if (child > 0) waitpid(child, nullptr, 0);
    char byte = 0;
    ssize_t got = 0;
    do got = read(ready[0], &byte, 1);
    while (got < 0 && errno == EINTR);
    close(ready[0]);
    if (got == 1) return {};
    return fail(Errc::no_daemon, "numa-leased did not start: " + last_words(log) + " (log: " + log + ")");
}

// ── A transient service ──────────────────────────────────────────────────────────────────────────────────────────

int append_service(sd_bus_message* m, const Words& words) {
    int r = sd_bus_message_append(m, "ss", "numa-leased-on-demand.service", "fail");
    if (r >= 0) r = sd_bus_message_open_container(m, 'a', "(sv)");
    if (r >= 0)
        r = sd_bus_message_append(m, "(sv)(sv)(sv)(sv)(sv)", "Description", "s", "numa-lease daemon, started on demand",
                                  "Type", "s", "notify", "Restart", "s", "on-failure", "CollectMode", "s",
                                  "inactive-or-failed", "OOMScoreAdjust", "i", -900);
    if (r >= 0) r = sd_bus_message_open_container(m, 'r', "sv");
    if (r >= 0) r = sd_bus_message_append(m, "s", "ExecStart");
    if (r >= 0) r = sd_bus_message_open_container(m, 'v', "a(sasb)");
    if (r >= 0) r = sd_bus_message_open_container(m, 'a', "(sasb)");
    if (r >= 0) r = sd_bus_message_open_container(m, 'r', "sasb");
    if (r >= 0) r = sd_bus_message_append(m, "s", words[0].c_str());
    if (r >= 0) r = sd_bus_message_open_container(m, 'a', "s");
    for (const auto& word : words)
        if (r >= 0) r = sd_bus_message_append(m, "s", word.c_str());
    if (r >= 0) r = sd_bus_message_close_container(m);
    if (r >= 0) r = sd_bus_message_append(m, "b", 0);
    for (int i = 0; i < 5 && r >= 0; ++i) r = sd_bus_message_close_container(m);
    if (r >= 0) r = sd_bus_message_append(m, "a(sa(sv))", 0);
    return r;
}

/// Source: org.freedesktop.systemd1(5), StartTransientUnit.
Result<void> start_service(const Words& words) {
    const auto bus = bus::open_bus("system");
    if (!bus) return std::unexpected(bus.error());
    sd_bus_message* raw = nullptr;
    int r = sd_bus_message_new_method_call(bus->get(), &raw, "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
                                           "org.freedesktop.systemd1.Manager", "StartTransientUnit");
    const bus::Message call(raw);
    if (r >= 0) r = append_service(raw, words);
    bus::BusError error;
    if (r >= 0) r = sd_bus_call(bus->get(), raw, 0, error.get(), nullptr);
    // It is there already: systemd is starting it again after it died, or it is just leaving.
    if (sd_bus_error_has_name(error.get(), "org.freedesktop.systemd1.UnitExists") != 0) return {};
    if (r < 0)
        return fail(Errc::no_daemon, "systemd does not start numa-leased: " + bus::from_bus(*error, r).detail, -r);
    return {};
}

}  // namespace

Result<std::string> daemon_path() {
    std::error_code error;
    const auto here = fs::read_symlink("/proc/self/exe", error).parent_path();
    for (const auto& candidate : {here / "numa-leased", here / "../libexec/numa-leased", fs::path(NUMALEASE_DAEMON)})
        // Without /proc, `here` is empty, and "numa-leased" would be looked for in the working directory.
        if (candidate.is_absolute() && access(candidate.c_str(), X_OK) == 0)
            return candidate.lexically_normal().string();
    return fail(Errc::no_daemon, std::string("the program numa-leased is neither beside numa-leasectl nor at ") +
                                     NUMALEASE_DAEMON + "; install the package again");
}

Result<Connection> start_reader(const Endpoint& endpoint) {
    const auto program = daemon_path();
    if (!program) return std::unexpected(program.error());
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) < 0)
        return fail(Errc::no_daemon, "cannot make a socket", errno);
    const pid_t child = fork();
    if (child == 0) {
        keep_only(ends[1]);
        become({*program, "--read-only", "--log-level", "error", "--runtime-dir", endpoint.runtime_directory,
                "--serve-fd", std::to_string(ends[1])});
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return fail(Errc::no_daemon, "cannot start " + *program, errno);
    }
    auto opened = bus::open_fd(ends[0]);
    if (!opened) return std::unexpected(opened.error());
    Connection connection(std::move(*opened), nullptr, child);
    if (auto answers = connection.ping(); !answers)
        return fail(Errc::no_daemon, *program + " --read-only does not answer: " + answers.error().detail);
    return connection;
}

Result<Connection> start_daemon(const Endpoint& endpoint, std::string& how) {
    const auto program = daemon_path();
    if (!program) return std::unexpected(program.error());
    const auto words = daemon_words(*program, endpoint);
    const bool systemd = sd_booted() > 0;
    const auto begun = std::chrono::steady_clock::now();
    while (true) {
        auto started = systemd ? start_service(words) : fail(Errc::unsupported, "no systemd here");
        const bool service = started.has_value();
        if (!service) started = start_session(*program, endpoint);
        how = service ? "as the transient service numa-leased-on-demand.service"
                      : "in a session of its own; log: " + log_path(endpoint);
        // Where it did not start, another client may have been quicker, and that one's daemon answers in a moment; or
        // the last one was just leaving, and then it is to be started again.
        auto connection = wait_for_socket(endpoint, kLeavingTime);
        if (connection || std::chrono::steady_clock::now() > begun + (service ? kServiceTime : kOtherStarterTime))
            return connection || started ? std::move(connection) : std::unexpected(started.error());
    }
}

/// A daemon that died has left work: a line of the journal that is about a lease or a knob. One that left in order
/// keeps only the counter of ids there, so that they never repeat within a boot.
bool left_behind(Connection& reader) {
    const auto leases = reader.current_leases(1);
    const auto knobs = reader.knobs();
    return (leases && !leases->empty()) ||
           (knobs && std::ranges::any_of(*knobs, [](const model::Dict& knob) { return knob.contains("prior"); }));
}

namespace {

Result<Connection> start_and_say(const Endpoint& endpoint) {
    std::string how;
    auto started = start_daemon(endpoint, how);
    if (started) say("no numa-leased was running; started one " + how + ". It ends when nothing is leased");
    return started;
}

}  // namespace

Result<Connection> reach(const Endpoint& endpoint, Need need) {
    auto connection = find_daemon(endpoint);
    // Whoever may not open the socket may still look at what the daemon keeps. That a stranger serves it has no errno.
    const bool own_eyes =
        !connection && connection.error().code == Errc::denied && connection.error().err != 0 && need == Need::looking;
    if (connection || (connection.error().code != Errc::no_daemon && !own_eyes)) return connection;
    const bool elsewhere = !endpoint.bus.empty() && endpoint.bus != "none";
    if (elsewhere) return connection;
    const bool root = geteuid() == 0;
    if (root && need == Need::leasing) return start_and_say(endpoint);
    auto reader = start_reader(endpoint);
    // What a dead daemon left is put back by whoever comes next and may.
    if (root && reader && left_behind(*reader)) return start_and_say(endpoint);
    return need == Need::looking ? std::move(reader) : std::move(connection);
}

}  // namespace numalease::client
