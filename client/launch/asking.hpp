#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engines/engine.hpp"
#include "model/request.hpp"

namespace CLI {
class App;
}

/// From a command line to one request.
namespace numalease::client {

/// What was typed about a lease, as text and unchecked.
struct Typed {
    std::map<std::string, std::string> fields;  ///< request fields by name
    std::string interleave;                     ///< --interleave on|off
    bool exclusive = false;
    bool no_wait = false;
    std::string wait;     ///< "forever" or a time; empty: not typed
    std::string require;  ///< "all" or fields; empty: not typed
    bool best_effort = false;
    std::string model;  ///< --model FILE
};

/// A request ready to be sent, and where it came from.
struct Asked {
    model::Request request;
    model::Dict
        dict;  ///< what is sent: only what was typed or brought by the policy, so that site defaults still count
    std::optional<model::Policy> policy;
    std::string model;                     ///< the file that the command or --model names; empty: none
    std::vector<std::string> model_files;  ///< all that it consists of
    std::vector<std::string> notes;        ///< for people
};

/// Fields that name a lever: typed, it must be had.
bool is_lever(std::string_view field);

/// Adds an option for each request field, and the aliases, from the one table.
void add_request_options(CLI::App& app, Typed& typed);

/// Who waits where there is no room yet.
enum class Waiting {
    usual,        ///< ten minutes
    at_terminal,  ///< for ever: somebody sees the progress and can interrupt
    in_service,   ///< not at all: systemd would take the waiting for the service's run, or end it when the start times
                  ///< out
};

/// What a definition of a named lease says where nothing was typed.
void fill_from(Typed& typed, const policies::LeaseFile& definition);

/// The request: policy, then what was typed. `command` is what will run.
/// Errors: invalid_request (a contradiction, a malformed value), unreadable (policy, model).
model::Result<Asked> build_request(const Typed& typed, const Argv& command, const Env& user_env,
                                   const policies::Library& library, Waiting waiting);

}  // namespace numalease::client
