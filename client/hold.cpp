#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "client/app.hpp"
#include "engines/joining.hpp"
#include "launch/enter.hpp"
#include "launch/page_cache.hpp"
#include "reach/obtain.hpp"
#include "text/output.hpp"
#include "text/render.hpp"

// hold: takes a named lease and does nothing else, so that units and containers can join it.

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Result;

namespace {

/// runc waits 30 s for the scope of its container, and that for its slice, which may be waiting for us.
constexpr const char* kDefaultWait = "20s";

constexpr std::uint64_t kLookAgain = 500'000;

struct HoldOptions {
    Typed typed;
    std::string name;
    std::string engine;
    bool quiet = false;
};

/// The definition and what was typed. What the file says counts as typed: it must be had.
Result<void> read_definition(HoldOptions& options) {
    model::Request named;
    if (auto set = model::set_field(named, "name", options.name); !set) return set;
    const bool says_nothing = options.typed.fields.empty() && options.typed.model.empty();
    const auto definition = policies::load_lease(policies::kLeaseDirectory, options.name);
    if (!definition && (definition.error().err != ENOENT || says_nothing))
        return fail(
            definition.error().code,
            definition.error().detail + (definition.error().err != ENOENT
                                             ? std::string()
                                             : "; write it, such as `node: any:1`, or say what to lease, such as "
                                               "numa-leasectl hold " +
                                                   options.name + " --node any:1"),
            definition.error().err);
    if (definition) fill_from(options.typed, *definition);
    if (definition && options.engine.empty()) options.engine = definition->engine;
    if (options.typed.wait.empty() && !options.typed.no_wait) options.typed.wait = kDefaultWait;
    options.typed.fields["name"] = options.name;
    options.typed.fields["command"] = "hold " + options.name;
    return {};
}

/// Whole or not at all: whoever reads it may start at any moment.
Result<void> write_environment(const std::string& path, const std::string& text) {
    const auto directory = path.substr(0, path.rfind('/'));
    const auto failed = [&](int err) {
        return fail(Errc::io,
                    path + " cannot be written: " + std::strerror(err) + "; EnvironmentFile= will not find it", err);
    };
    if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) return failed(errno);
    const auto temporary = path + ".new";
    unlink(temporary.c_str());
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return failed(errno);
    const auto written = write(fd, text.data(), text.size());
    const int err = written < 0 ? errno : ENOSPC;
    close(fd);
    if (written != static_cast<ssize_t>(text.size())) return failed(err);
    if (rename(temporary.c_str(), path.c_str()) != 0) return failed(errno);
    return {};
}

using Event = std::unique_ptr<sd_event, bus::Deleter<sd_event_unref>>;

/// The default loop, which SIGTERM and its like end.  Errors: io.
Result<Event> until_told_to_end() {
    sigset_t ends;
    sigemptyset(&ends);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ends, signal);
    sigprocmask(SIG_BLOCK, &ends, nullptr);
    sd_event* loop = nullptr;
    int r = sd_event_default(&loop);
    Event event(loop);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP})
        if (r >= 0) r = sd_event_add_signal(loop, nullptr, signal, nullptr, nullptr);
    if (r < 0) return fail(Errc::io, std::string("cannot wait for signals: ") + std::strerror(-r), -r);
    return event;
}

bool is_told_to_end(const Event& event) {
    int code = 0;
    return sd_event_get_exit_code(event.get(), &code) >= 0;
}

/// Returns once we are told to end. A daemon that restarts keeps the lease: it is asked again, and none is started for
/// that, which may have been stopped on purpose.  Errors: not_now where the lease is over, no_daemon.
Result<void> keep(const Event& event, const Endpoint& endpoint, Connection granted_by, const std::string& id) {
    using Clock = std::chrono::steady_clock;
    std::optional<Connection> daemon(std::move(granted_by));
    auto seen = Clock::now();
    while (true) {
        if (daemon) {
            const auto ended = daemon->wait(id, "ended", std::chrono::hours(24), {});
            if (is_told_to_end(event)) return {};
            if (ended) return fail(Errc::not_now, id + " is over: " + model::get_text(*ended, "reason"));
            if (ended.error().code == Errc::no_such_lease)
                return fail(Errc::not_now, id + " is over: it ended while numa-leased did not run");
            daemon.reset();
            seen = Clock::now();
        }
        if (Clock::now() > seen + kDaemonMayReturn)
            return fail(Errc::no_daemon, "no numa-leased has answered for " + model::duration_text(kDaemonMayReturn) +
                                             ", so that nobody keeps " + id + "; see systemctl status numa-leased");
        if (const int r = sd_event_run(event.get(), kLookAgain); r < 0)
            return fail(Errc::io, std::string("cannot wait: ") + std::strerror(-r), -r);
        if (is_told_to_end(event)) return {};
        if (auto found = find_daemon(endpoint, Wake::no)) daemon.emplace(std::move(*found));
    }
}

int hold(const Globals& globals, HoldOptions& options) {
    if (auto read = read_definition(options); !read) return say_failure(read.error());
    const auto library = load_library();
    for (const auto& problem : library.problems) say(problem.detail + "; left out");
    // An engine that does not exist is found before a lease is taken.
    if (auto checked = joining_environment(library, nullptr, options.engine, {}); !checked)
        return say_failure(checked.error());
    const auto asked = build_request(options.typed, {}, current_environment(), library, Waiting::usual);
    if (!asked) return say_failure(asked.error());
    auto daemon = reach(globals.endpoint, Need::leasing);
    if (!daemon) return say_failure(daemon.error());
    const auto topology = daemon->topology();
    if (!topology) return say_failure(topology.error());
    auto dict = obtain(*daemon, globals.endpoint, asked->dict, options.quiet);
    if (!dict) return say_failure(dict.error());
    // Nothing says how those that will join load the model.
    if (auto settled = settle_page_cache(*daemon, *asked, false, model::get_dicts(*topology, "nodes").size(),
                                         options.quiet || globals.json, *dict);
        !settled)
        return say_failure(settled.error());
    const auto lease = model::lease_from_dict(*dict);
    if (!lease) return say_failure(lease.error());
    if (globals.json) {
        if (const int failed = print(json_text(*dict)); failed != 0) return failed;
    } else if (!options.quiet) {
        for (const auto& line : grant_lines(*dict)) say(line);
    }
    const auto event = until_told_to_end();  // from here on there is a file to be removed
    if (!event) return say_failure(event.error());
    const auto path = environment_file(globals.endpoint.runtime_directory, options.name);
    const auto text = joining_environment(library, asked->policy ? &*asked->policy : nullptr, options.engine,
                                          facts_of(lease->id, lease->placement, lease->confinement, *topology));
    if (auto written = write_environment(path, *text); !written) say(written.error().detail);
    const auto grace = model::duration_text(lease->request.grace);
    sd_notify(0, ("READY=1\nSTATUS=holding numalease-" + options.name + ".slice").c_str());
    const auto kept = keep(*event, globals.endpoint, std::move(*daemon), lease->id);
    unlink(path.c_str());
    sd_notify(
        0,
        ("STOPPING=1\nSTATUS=" + (kept ? "the lease is kept for " + grace : printable(kept.error().detail))).c_str());
    if (!kept) return say_failure(kept.error());
    if (!options.quiet && isatty(STDERR_FILENO) != 0)
        say(lease->id + " is kept for " + grace + "; to give it back now: numa-leasectl release " + options.name);
    return 0;
}

}  // namespace

void add_hold(CLI::App& verb, Globals& globals) {
    const auto options = std::make_shared<HoldOptions>();
    verb.add_option("NAME", options->name, "its name; a definition is in /etc/numa-lease/leases/NAME.yaml")->required();
    add_request_options(verb, options->typed);
    verb.add_option("--engine", options->engine, "whose variables go to /run/numa-lease/env/NAME (default: all known)")
        ->type_name("NAME");
    verb.add_flag("-q,--quiet", options->quiet, "say nothing about the grant");
    verb.callback([&globals, options] { globals.go = [&globals, options] { return hold(globals, *options); }; });
}

}  // namespace numalease::client
