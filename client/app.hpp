#pragma once

#include <functional>
#include <string>

#include "engines/engine.hpp"
#include "reach/starting.hpp"

namespace CLI {
class App;
}

namespace numalease::client {

/// What every verb knows.
struct Globals {
    Endpoint endpoint;
    bool json = false;
    Argv command;             ///< what stands behind our own words
    std::function<int()> go;  ///< the verb that was chosen
};

/// One verb: its subcommand, made by an `add_…` below; `go` runs it.
struct VerbRow {
    const char* name;
    void (*add)(CLI::App& verb, Globals& globals);
    const char* help;
    const char* example;
    bool has_command;         ///< a command follows
    std::size_t positionals;  ///< words of ours before it
};

void add_run(CLI::App& verb, Globals& globals);
void add_exec(CLI::App& verb, Globals& globals);
void add_hold(CLI::App& verb, Globals& globals);
void add_plan(CLI::App& verb, Globals& globals);
void add_status(CLI::App& verb, Globals& globals);
void add_list(CLI::App& verb, Globals& globals);
void add_show(CLI::App& verb, Globals& globals);
void add_top(CLI::App& verb, Globals& globals);
void add_history(CLI::App& verb, Globals& globals);
void add_ask(CLI::App& verb, Globals& globals);
void add_wait(CLI::App& verb, Globals& globals);
void add_release(CLI::App& verb, Globals& globals);
void add_stop(CLI::App& verb, Globals& globals);
void add_extend(CLI::App& verb, Globals& globals);
void add_topology(CLI::App& verb, Globals& globals);
void add_knobs(CLI::App& verb, Globals& globals);
void add_doctor(CLI::App& verb, Globals& globals);
void add_where(CLI::App& verb, Globals& globals);
void add_policy(CLI::App& verb, Globals& globals);
void add_model(CLI::App& verb, Globals& globals);

/// The shipped, the site's and the user's policies and engines.
policies::Library load_library();

/// numa-leasectl: parses, does, and returns the exit status.
int run_client(int argc, char** argv);

}  // namespace numalease::client
