#include <time.h>

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <chrono>
#include <memory>

#include "client/app.hpp"
#include "text/output.hpp"
#include "text/render.hpp"

// wait, release, stop, ask: a lease that somebody else holds, or that outlived its launcher.

namespace numalease::client {

using model::Errc;
using model::Result;

namespace {

/// Prints the lease as it is now, or as little as that it was done.
int done(const Globals& globals, const std::string& id, const Result<model::Dict>& lease, const char* what) {
    if (globals.json) return print(json_text(lease ? *lease : model::Dict{{"id", id}}));
    return print(printable(id) + ' ' + what + '\n');
}

int wait(const Globals& globals, const std::string& id, const std::string& until) {
    if (until != "active" && until != "ended")
        return say_failure({Errc::invalid_request, "--until: '" + until + "' is none of active, ended", 0});
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return say_failure(daemon.error());
    const auto lease = daemon->wait(id, until.c_str(), std::chrono::minutes(1), [&] {
        if (const auto now = daemon->lease(id)) say(progress_line(*now));
    });
    if (!lease) return say_failure(lease.error());
    return done(globals, id, lease, until == "active" ? "is active" : "has ended");
}

int release(const Globals& globals, const std::string& id) {
    auto daemon = reach(globals.endpoint, Need::changing);
    if (!daemon) return say_failure(daemon.error());
    if (auto released = daemon->release(id); !released) return say_failure(released.error());
    return done(globals, id, daemon->lease(id), "is released");
}

int ask(const Globals& globals, const std::string& id, const std::vector<std::string>& words) {
    std::string text;
    for (const auto& word : words) text += (text.empty() ? "" : " ") + word;
    auto daemon = reach(globals.endpoint, Need::changing);
    if (!daemon) return say_failure(daemon.error());
    const auto said = daemon->ask_holder(id, text);
    if (!said) return say_failure(said.error());
    if (globals.json) return print(json_text(*said));
    std::string through;
    for (const auto& way : model::get_strings(*said, "through")) through += (through.empty() ? "" : ", ") + way;
    const auto why = model::get_text(*said, "no_terminal");
    return print(printable("told who holds " + model::get_text(*said, "lease") + " through: " + through +
                           (why.empty() ? "" : " (" + why + ')')) +
                 '\n');
}

int stop(const Globals& globals, const std::string& id, const std::string& grace) {
    const auto time = model::parse_duration(grace);
    if (!time) return say_failure({Errc::invalid_request, "--grace: " + time.error().detail, 0});
    auto daemon = reach(globals.endpoint, Need::changing);
    if (!daemon) return say_failure(daemon.error());
    if (auto stopped = daemon->stop(id, *time); !stopped) return say_failure(stopped.error());
    const auto lease = daemon->wait(id, "ended", std::chrono::minutes(1), [&] { say(id + " is still ending"); });
    if (!lease && lease.error().code != Errc::no_such_lease) return say_failure(lease.error());
    return done(globals, id, lease, "has ended");
}

model::Micros boot_time() {
    timespec now{};
    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return std::chrono::duration_cast<model::Micros>(std::chrono::seconds(now.tv_sec) +
                                                     std::chrono::nanoseconds(now.tv_nsec));
}

int extend(const Globals& globals, const std::string& id, const std::string& text) {
    const auto time = model::parse_duration(text);
    if (!time) return say_failure({Errc::invalid_request, "TIME: " + time.error().detail, 0});
    auto daemon = reach(globals.endpoint, Need::changing);
    if (!daemon) return say_failure(daemon.error());
    const auto lease = daemon->extend(id, *time);
    if (!lease) return say_failure(lease.error());
    const auto left = model::Micros(static_cast<std::int64_t>(model::get_number(*lease, "expires"))) - boot_time();
    const auto rounded = std::chrono::duration_cast<std::chrono::seconds>(left);
    return done(globals, id, lease, ("ends in " + model::duration_text(rounded)).c_str());
}

}  // namespace

void add_wait(CLI::App& verb, Globals& globals) {
    const auto id = std::make_shared<std::string>();
    const auto until = std::make_shared<std::string>("ended");
    verb.add_option("ID", *id, "the lease, by id or name")->required();
    verb.add_option("--until", *until, "what to wait for (default ended)")->type_name("active|ended");
    verb.callback([&globals, id, until] { globals.go = [&globals, id, until] { return wait(globals, *id, *until); }; });
}

void add_release(CLI::App& verb, Globals& globals) {
    const auto id = std::make_shared<std::string>();
    verb.add_option("ID", *id, "the lease, by id or name")->required();
    verb.callback([&globals, id] { globals.go = [&globals, id] { return release(globals, *id); }; });
}

void add_extend(CLI::App& verb, Globals& globals) {
    const auto id = std::make_shared<std::string>();
    const auto time = std::make_shared<std::string>();
    verb.add_option("ID", *id, "the lease, by id or name")->required();
    verb.add_option("TIME", *time, "so much more: 90s, 2h")->required();
    verb.callback([&globals, id, time] { globals.go = [&globals, id, time] { return extend(globals, *id, *time); }; });
}

void add_ask(CLI::App& verb, Globals& globals) {
    const auto id = std::make_shared<std::string>();
    const auto words = std::make_shared<std::vector<std::string>>();
    verb.add_option("ID", *id, "the lease, by id or name")->required();
    verb.add_option("TEXT", *words, "one line, at most 500 characters; one in 10 s")->required();
    verb.callback([&globals, id, words] { globals.go = [&globals, id, words] { return ask(globals, *id, *words); }; });
}

void add_stop(CLI::App& verb, Globals& globals) {
    const auto id = std::make_shared<std::string>();
    const auto grace = std::make_shared<std::string>("10s");
    verb.add_option("ID", *id, "the lease, by id or name")->required();
    verb.add_option("--grace", *grace, "time between SIGTERM and SIGKILL (default 10s)")->type_name("TIME");
    verb.callback([&globals, id, grace] { globals.go = [&globals, id, grace] { return stop(globals, *id, *grace); }; });
}

}  // namespace numalease::client
