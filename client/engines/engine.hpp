#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/index_set.hpp"
#include "model/lease.hpp"
#include "model/policy.hpp"
#include "policies/loader.hpp"

/// Telling an engine its threads and nodes. Pure: a command line and an environment in, the same with additions out.
namespace numalease::client {

using Argv = std::vector<std::string>;
using Env = std::map<std::string, std::string>;

/// What an engine may be told about the lease and its machine.
struct LeaseFacts {
    std::string id;
    model::CpuSet cpus;
    model::CpuSet core_cpus;  ///< those for the engine's threads: one of each core, or all of `cpus`
    model::NodeSet nodes;
    std::vector<model::Gpu> gpus;
    unsigned cores = 0;
    unsigned threads = 0;        ///< what the engine is told
    bool whole_machine = false;  ///< the lease is all of it
    unsigned machine_nodes = 0;
    unsigned machine_cpus = 0;
    bool contained = false;  ///< a cgroup's cpuset holds it, not only an affinity that it may change itself
    bool node_numbers_have_gaps = false;
    bool huge_pages = false;  ///< the lease has some of the size that malloc can be told to take
    unsigned index = 0;       ///< which instance of the command this is
    unsigned instances = 1;
};

/// The command as it will be run.
struct Adapted {
    Argv argv;                          ///< the user's words all there, unchanged and in order
    Env env;                            ///< to set; none of them is the user's own, except NUMA_LEASE_* and
                                        ///< GLIBC_TUNABLES, which is added to
    std::vector<std::string> warnings;  ///< one line each
    std::string engine;                 ///< name; empty where the library has no fallback
    std::string told;                   ///< one line: "llama.cpp: LLAMA_ARG_THREADS=8"
};

/// Says the lease to the command's engine: what the user gave stays, what is missing is added, as a variable where the
/// engine reads one and as a flag else. A flag whose value means "not given" (-t -1) is followed by ours, which wins.
/// `user_env` is the environment the command would have had. `expand`: `${cores}` and kin in argv too.
Adapted adapt(const policies::Library& library, const model::Policy* policy, Argv argv, const Env& user_env,
              const LeaseFacts& facts, bool expand);

/// The engine that `argv` runs, seen through wrappers (env, nice, sudo, taskset, python, …), one that names the
/// program's folder before one that does not; else the fallback, which is the engine without programs; nullptr where
/// the library has none. `program_index`: where the program's word is.
const model::Engine* recognise(const policies::Library& library, const Argv& argv, std::size_t* program_index);

/// Whether the engine's program there, which `argv` runs, is one that serves.
bool is_server(const model::Engine& engine, const Argv& argv, std::size_t program);

/// The model file a command names, behind its program, by flag or else by variable; where the engine's option says
/// `hub` it may be a name. A URL is none.
std::optional<std::string> model_file(const model::Engine& engine, const Argv& argv, const Env& user_env);

/// Does the command map its model's files? By its own words, the user's and the policy's variables and what its engine
/// does by itself; false where that is not known. `policy` may be null.
bool maps_model(const policies::Library& library, const model::Policy* policy, const Argv& argv, Env env);

/// Where a command would start its work outside of our cgroup, so that a lease would hold only its client: why, and
/// what to use instead, on one line. Nothing for any other command.
std::optional<std::string> container_refusal(const Argv& argv);

}  // namespace numalease::client
