#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <chrono>
#include <memory>

#include "client/app.hpp"
#include "text/output.hpp"
#include "text/sharing.hpp"

// Leases that are over: who had what, how long they waited, ran, were busy, and how they ended.

namespace numalease::client {

namespace {

int history(const Globals& globals, unsigned last) {
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return say_failure(daemon.error());
    auto entries = daemon->history(last);
    if (!entries) return say_failure(entries.error());
    if (globals.json) return print(json_text(*entries));
    const auto now =
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch());
    return print(history_text(*entries, static_cast<std::uint64_t>(now.count()), terminal_width()));
}

}  // namespace

void add_history(CLI::App& verb, Globals& globals) {
    constexpr unsigned kUsual = 20;
    constexpr unsigned kMost = 1000;
    const auto last = std::make_shared<unsigned>(kUsual);
    verb.add_option("--last", *last, "how many, the newest first (default 20, at most 1000)")
        ->type_name("N")
        ->check(CLI::Range(1U, kMost));
    verb.callback([&globals, last] { globals.go = [&globals, last] { return history(globals, *last); }; });
}

}  // namespace numalease::client
