#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>

#include "client/app.hpp"
#include "engines/joining.hpp"
#include "launch/enter.hpp"
#include "text/output.hpp"
#include "text/render.hpp"
#include "text/sharing.hpp"

// Verbs that only look: any daemon answers them, and where there is none, one that only reads.

namespace numalease::client {

namespace {

std::uint64_t now_real() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

/// Where no daemon answers, what is read from its journal may not be all there is.
void say_what_is_amiss(Connection& daemon) {
    if (daemon.is_daemon()) return;
    const auto state = daemon.status();
    if (!state) return;
    for (const auto& note : model::get_strings(*state, "degraded")) say(note);
}

/// Reaches a daemon, asks, and prints what came in one of two ways.
template <class Ask, class Render>
int look(const Globals& globals, Ask ask, Render render) {
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return say_failure(daemon.error());
    const auto answer = ask(*daemon);
    if (!answer) return say_failure(answer.error());
    return print(globals.json ? json_text(*answer) : render(*answer));
}

int status(const Globals& globals) {
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return say_failure(daemon.error());
    auto state = daemon->status();
    if (!state) return say_failure(state.error());
    const auto leases = daemon->current_leases(kWaitingShown);
    if (!leases) return say_failure(leases.error());
    const auto knobs = daemon->knobs();
    if (!knobs) return say_failure(knobs.error());
    const auto squatters = daemon->squatters().value_or(model::Value::Dicts{});  // an older daemon knows of none
    if (globals.json)
        return print(json_text(
            model::Dict{{"daemon", *state}, {"leases", *leases}, {"knobs", *knobs}, {"squatters", squatters}}));
    auto text = status_text(*state, *leases, *knobs, now_real(), terminal_width());
    for (const auto& line : squatter_lines(squatters)) text += printable(line) + '\n';
    return print(text + more_waiting_text(*state, *leases));
}

int list(const Globals& globals, bool all) {
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return say_failure(daemon.error());
    say_what_is_amiss(*daemon);
    const auto leases = all ? daemon->leases() : daemon->current_leases(kWaitingShown);
    if (!leases) return say_failure(leases.error());
    const auto state = daemon->status();
    if (!state) return say_failure(state.error());
    const auto more = all ? std::string() : more_waiting_text(*state, *leases);
    if (!globals.json) return print(leases_text(*leases, all, now_real(), terminal_width()) + more);
    if (!more.empty()) say(more.substr(0, more.size() - 1));
    return print(json_text(*leases));
}

/// What `hold` has written for those that join: it knows the policy and the engine.
std::string held_environment(const Globals& globals, const std::string& name) {
    if (name.empty()) return {};
    const std::ifstream file(environment_file(globals.endpoint.runtime_directory, name));
    std::ostringstream text;
    if (file) text << file.rdbuf();
    return text.str();
}

int show_as(const Globals& globals, const std::string& id, const std::string& as) {
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return say_failure(daemon.error());
    const auto dict = daemon->lease(id);
    if (!dict && dict.error().code == model::Errc::no_such_lease)
        return say_failure({dict.error().code,
                            dict.error().detail + "; a named one is there while it is held: numa-leasectl hold NAME",
                            dict.error().err});
    if (!dict) return say_failure(dict.error());
    const auto topology = daemon->topology();
    if (!topology) return say_failure(topology.error());
    const auto lease = model::lease_from_dict(*dict);
    if (!lease) return say_failure(lease.error());
    auto environment = joining_environment(load_library(), nullptr, "",
                                           facts_of(lease->id, lease->placement, lease->confinement, *topology));
    if (const auto held = held_environment(globals, lease->request.name); !held.empty()) environment = held;
    if (!environment) return say_failure(environment.error());
    const auto text = joining_text(*lease, as, globals.endpoint.runtime_directory, *environment);
    return text ? print(*text) : say_failure(text.error());
}

}  // namespace

void add_status(CLI::App& verb, Globals& globals) {
    verb.callback([&globals] { globals.go = [&globals] { return status(globals); }; });
}

void add_list(CLI::App& verb, Globals& globals) {
    const auto all = std::make_shared<bool>(false);
    verb.add_flag("-a,--all", *all, "also leases that are over, and all that wait");
    verb.callback([&globals, all] { globals.go = [&globals, all] { return list(globals, *all); }; });
}

void add_show(CLI::App& verb, Globals& globals) {
    const auto id = std::make_shared<std::string>();
    const auto as = std::make_shared<std::string>();
    verb.add_option("ID", *id, "the lease, by id or name")->required();
    verb.add_option("--as", *as, "print what a container or unit needs to join it")
        ->type_name("docker|compose|quadlet|env");
    verb.callback([&globals, id, as] {
        globals.go = [&globals, id, as] {
            if (!as->empty()) return show_as(globals, *id, *as);
            return look(
                globals, [&](Connection& daemon) { return daemon.lease(*id); },
                [](const auto& lease) { return lease_text(lease, now_real()); });
        };
    });
}

void add_topology(CLI::App& verb, Globals& globals) {
    verb.callback([&globals] {
        globals.go = [&globals] {
            return look(
                globals, [](Connection& daemon) { return daemon.topology(); },
                [](const auto& topology) { return topology_text(topology, terminal_width()); });
        };
    });
}

void add_knobs(CLI::App& verb, Globals& globals) {
    verb.callback([&globals] {
        globals.go = [&globals] {
            return look(
                globals, [](Connection& daemon) { return daemon.knobs(); },
                [](const auto& knobs) { return knobs_text(knobs, terminal_width()); });
        };
    });
}

}  // namespace numalease::client
