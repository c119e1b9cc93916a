#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace numalease::model {

/// A named preset of a request, from YAML.
struct Policy {
    std::string name;
    std::string why;
    std::string evidence;
    std::vector<std::pair<std::string, std::string>> fields;  ///< request fields as text, checked by the loader
    std::map<std::string, std::string> env;                   ///< for the command; ${cores} and kin are filled in
    std::string file;                                         ///< where it came from

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
    std::string only;                ///< "" always; "part" or "whole" of the machine leased; "node": one node of it

    bool operator==(const EngineOption&) const = default;
};

/// A known inference program and how it is told its threads and nodes.
struct Engine {
    std::string name;
    std::vector<std::string> programs;            ///< base names that recognise it; empty: the fallback (generic)
    std::vector<std::string> folders;             ///< one of them is in the program's path; empty: wherever it is
    std::map<std::string, EngineOption> options;  ///< "threads", "batch-threads", "http-threads", "numa", "model", …
    std::map<std::string, std::string> env;       ///< set unless the user has set it
    std::string ready;                            ///< "GET /health", empty: unknown
    std::vector<std::string> facts;               ///< shown by `policy show`
    std::string file;

    bool operator==(const Engine&) const = default;
};

}  // namespace numalease::model
