#include "client/app.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>

#include "client/help.hpp"
#include "client/words.hpp"
#include "text/output.hpp"

#ifndef NUMALEASE_VERSION
#define NUMALEASE_VERSION "0.1.0"
#endif

namespace numalease::client {

namespace {

constexpr int kUsage = 64;

constexpr std::array kVerbs{
    VerbRow{"status", add_status, "leases, knobs off their prior, and what is odd (the default)",
            "numa-leasectl status", false, 0},
    VerbRow{"run", add_run, "run a command inside a lease of its own",
            "numa-leasectl run --node any:1 -- llama-server -m model.gguf", true, 0},
    VerbRow{"exec", add_exec, "run a command inside an existing lease", "numa-leasectl exec c1 -- llama-bench", true,
            1},
    VerbRow{"hold", add_hold, "hold a named lease that units and containers join",
            "numa-leasectl hold llama --node any:1", false, 1},
    VerbRow{"plan", add_plan, "what run would get now, and why; changes nothing",
            "numa-leasectl plan --cores 8 -- llama-server -m model.gguf", true, 0},
    VerbRow{"list", add_list, "the leases", "numa-leasectl list", false, 1},
    VerbRow{"show", add_show, "all about one lease, or the lines to join it with",
            "numa-leasectl show llama --as docker", false, 1},
    VerbRow{"top", add_top, "leases, nodes, who waits and who is in the way, as it changes", "numa-leasectl top --once",
            false, 0},
    VerbRow{"history", add_history, "leases that are over: who, how long, how busy, how they ended",
            "numa-leasectl history --last 50", false, 0},
    VerbRow{"ask", add_ask, "a line to who holds a lease: into the journal, and to their terminal",
            "numa-leasectl ask c1 'are you done with this? I need node 1 at noon'", false, 2},
    VerbRow{"wait", add_wait, "wait until a lease is active, or has ended", "numa-leasectl wait c1 --until ended",
            false, 1},
    VerbRow{"release", add_release, "give a lease back; refused while its processes live", "numa-leasectl release c1",
            false, 1},
    VerbRow{"stop", add_stop, "end a lease's processes: SIGTERM, a grace time, SIGKILL",
            "numa-leasectl stop c1 --grace 30s", false, 1},
    VerbRow{"extend", add_extend, "put off the end of a lease that has one", "numa-leasectl extend c1 2h", false, 2},
    VerbRow{"topology", add_topology, "nodes, cores, distances and devices", "numa-leasectl topology", false, 0},
    VerbRow{"knobs", add_knobs, "kernel state that leases change: now, before, and for whom", "numa-leasectl knobs",
            false, 0},
    VerbRow{"doctor", add_doctor, "what of this machine stands in the way, and the way out; 1 where anything does",
            "numa-leasectl doctor", false, 0},
    VerbRow{"model", add_model, "what a model needs in memory, and how many nodes that takes",
            "numa-leasectl model m.gguf -- llama-server -c 16384 -ctk q8_0", true, 1},
    VerbRow{"where", add_where, "where the memory and threads of a process or a lease are, node by node",
            "numa-leasectl where c1", false, 1},
    VerbRow{"policy", add_policy, "list, show and check policies and engines", "numa-leasectl policy show single-node",
            false, 2},
};

void add_common(CLI::App& app, Globals& globals) {
    auto& endpoint = globals.endpoint;
    const std::string group = "Which daemon";
    app.add_flag("--json", globals.json, "print JSON (run, exec: the grant, on standard error)");
    app.add_option("--bus", endpoint.bus, "a message bus")->type_name("system|session|none|ADDRESS")->group(group);
    app.add_option("--daemon-socket", endpoint.socket, "a daemon's own socket")->type_name("PATH")->group(group);
    app.add_option_function<std::string>(
           "--runtime-dir",
           [&endpoint](const std::string& directory) {
               endpoint.runtime_directory = directory;
               endpoint.runtime_directory_typed = true;
           },
           "the daemon's runtime directory (default /run/numa-lease)")
        ->type_name("DIR")
        ->group(group);
}

void add_verbs(CLI::App& app, Globals& globals) {
    for (const auto& row : kVerbs) {
        auto* verb = app.add_subcommand(row.name, row.help);
        add_common(*verb, globals);
        const std::string usage =
            "Then the command: numa-leasectl " + std::string(row.name) +
            (row.positionals > 0 ? " [" + std::string(row.name == std::string_view("model") ? "FILE" : "ID") + "]"
                                 : "") +
            " [OPTIONS] [--] COMMAND [ARGUMENTS…]\n";
        verb->footer((row.has_command ? usage : "") + "Example: " + row.example);
        row.add(*verb, globals);
    }
}

/// CLI11's own words for the command line, in the order in which it wants them.
Argv words_for(CLI::App& app, Globals& globals, const Argv& words) {
    auto split = split_words(app, words, 0);
    auto ours = std::move(split.ours);
    if (split.command.empty()) {
        const auto asks = [](const std::string& word) {
            return word == "-h" || word == "--help" || word == "--version";
        };
        if (std::ranges::none_of(ours, asks)) ours.emplace_back("status");
        std::ranges::reverse(ours);
        return ours;
    }
    const auto verb = split.command.front();
    ours.push_back(verb);
    Argv rest(split.command.begin() + 1, split.command.end());
    const auto row = std::ranges::find_if(kVerbs, [&](const VerbRow& it) { return verb == it.name; });
    if (row == kVerbs.end()) throw CLI::ParseError("unknown verb '" + verb + "'", kUsage);
    if (row->has_command) {
        auto inner = split_words(*app.get_subcommand(verb), rest, row->positionals);
        globals.command = std::move(inner.command);
        rest = std::move(inner.ours);
    }
    ours.insert(ours.end(), rest.begin(), rest.end());
    std::ranges::reverse(ours);
    return ours;
}

std::string one_line(std::string text) {
    std::ranges::replace(text, '\n', ' ');
    return std::string(model::trim(text));
}

int dispatch(const Argv& words) {
    Globals globals;
    CLI::App app("Leases CPUs, NUMA memory and kernel state to inference jobs, and puts them back.", "numa-leasectl");
    app.set_version_flag("--version", "numa-leasectl " NUMALEASE_VERSION);
    app.formatter(help_formatter());  // before there are verbs, which take it over
    app.require_subcommand(1);
    app.footer("Example: numa-leasectl run -- llama-server -m model.gguf");
    add_common(app, globals);
    add_verbs(app, globals);
    try {
        app.parse(words_for(app, globals, words));
    } catch (const CLI::Success& asked) {  // --help, --version
        return app.exit(asked) == 0 ? 0 : kUsage;
    } catch (const CLI::ParseError& error) {
        say(one_line(error.what()) + "; see numa-leasectl --help");
        return kUsage;
    }
    return globals.go();
}

}  // namespace

policies::Library load_library() {
    const char* home = std::getenv("HOME");
    struct stat facts{};
    // Only a home of one's own: under sudo or su it may still be somebody else's. Root reads none.
    const bool own = home != nullptr && geteuid() != 0 && stat(home, &facts) == 0 && facts.st_uid == geteuid();
    return policies::load(policies::search_path(own ? home : ""));
}

int run_client(int argc, char** argv) {
    try {
        return dispatch(Argv(argv + std::min(argc, 1), argv + argc));
    } catch (const std::exception& error) {
        return say_failure({model::Errc::internal, std::string("unexpected: ") + error.what(), 0});
    }
}

}  // namespace numalease::client
