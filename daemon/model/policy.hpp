#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/units.hpp"

namespace numalease::model {

/// Generating before a server is announced, until that brings nothing more of its model into memory.
struct Warming {
    unsigned still = 3;        ///< rounds in a row that bring nothing
    Micros most{600'000'000};  ///< but no longer than this

    bool operator==(const Warming&) const = default;
};

/// What `run` makes of the command, where it does not just become it. A small supervisor then stays.
struct Supervision {
    bool per_node = false;        ///< one instance of it for each leased node
    bool restart = false;         ///< one that fails is started again; else it ends the others
    std::optional<Warming> warm;  ///< where it is a server

    bool operator==(const Supervision&) const = default;
};

/// A named preset of a request, from YAML.
struct Policy {
    std::string name;
    std::string why;
    std::string evidence;
    std::vector<std::pair<std::string, std::string>> fields;  ///< request fields as text, checked by the loader
    std::map<std::string, std::string> env;                   ///< for the command; ${cores} and kin are filled in
    Supervision run;
    std::string file;  ///< where it came from

    bool operator==(const Policy&) const = default;
};

/// One thing an engine can be told, and all the ways in which it can be told.
struct EngineOption {
    std::vector<std::string> flags;  ///< "-t", "--threads"; the first is the one we insert
    std::string env;                 ///< variable the engine reads; empty: none
    std::string value;               ///< what to tell it: "${threads}", "numactl"; empty: only recognised
    std::vector<std::string> unset;  ///< values that mean "not given": "-1"
    bool insert = false;             ///< may the flag be inserted where there is no variable
    bool list = false;               ///< the flag takes a comma-separated list (llama-bench)
    bool behind_program = false;     ///< the word right behind the program says it too, and wins (vllm serve MODEL)
    bool hub = false;                ///< its value may be a hub's name, "org/model", of something downloaded
    std::string only;                ///< "" always; "part" or "whole" of the machine leased; "node": one node of it;
                                     ///< "instance": one of several of the command
    std::string fallback;            ///< what the engine takes where it is told nothing (`default` in YAML)
    std::vector<std::string>
        unmaps;  ///< values, or flags, by which it reads its weights instead of mapping them; "*": any
    /// How many times it then keeps its weights in memory, by value or flag; "*": any. A fork's `--numa mirror`.
    std::map<std::string, unsigned> copies;

    bool operator==(const EngineOption&) const = default;
};

/// A known inference program and how it is told its threads and nodes.
struct Engine {
    std::string name;
    std::vector<std::string> programs;            ///< base names that recognise it; empty: the fallback (generic)
    std::vector<std::string> folders;             ///< one of them is in the program's path; empty: wherever it is
    std::map<std::string, EngineOption> options;  ///< "threads", "batch-threads", "http-threads", "numa", "model", …
    std::map<std::string, std::string> env;       ///< set unless the user has set it
    std::vector<std::string> servers;             ///< of `programs`, those that serve; empty: all
    std::string ready;                            ///< "GET /health", empty: unknown
    std::string warm;                ///< "POST /completion BODY", a request that generates; ${round} counts
    std::string hugepages;           ///< what to say so that its weights come from malloc, which can take huge pages
    std::vector<std::string> facts;  ///< shown by `policy show`
    std::string file;

    bool operator==(const Engine&) const = default;
};

}  // namespace numalease::model
