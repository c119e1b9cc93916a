#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engines/engine.hpp"
#include "engines/wrapper.hpp"

/// The parts of `adapt` that look at words only. For engine*.cpp.
namespace numalease::client {

/// One place where the user gave an option.
struct Given {
    std::string name;  ///< the flag or the variable
    std::string value;
    std::size_t end = 0;  ///< index of the word behind it; 0 for a variable

    /// "-t 16", "--threads=16" or "LLAMA_ARG_THREADS=16".
    [[nodiscard]] std::string shown() const;
    bool equals_form = false;
};

/// Where `option` is given: all its flags from word `from` on, in order; its variable only where there is no flag,
/// since a flag wins.
std::vector<Given> given_by(const model::EngineOption& option, const Argv& argv, std::size_t from, const Env& env);

/// Index of the first word behind the engine's program; `program` itself where it is none of the engine's.
std::size_t after_program(const model::Engine& engine, const Argv& argv, std::size_t program);

/// An option and what it is a way of saying: "numa" for "numa/part" and "numa/whole".
struct Said {
    std::string group;
    std::string name;
    model::EngineOption option;
};

/// Does its value say how many threads there shall be, or on which CPUs?
bool says_threads(const model::EngineOption& option);
bool says_cpus(const model::EngineOption& option);

/// The options of an engine. The fallback has its own, and the thread variables of all others; those that are lists of
/// CPUs on one node only: on several the engine splits its list in a way that an unknown command line does not show.
std::vector<Said> options_of(const policies::Library& library, const model::Engine& engine);

/// Whether the engine, told this, reads its weights into memory of its own. Of several flags the last counts, and a
/// flag before a variable.
bool reads_weights(const std::vector<Said>& options, const Argv& argv, std::size_t from, const Env& env);

/// GLIBC_TUNABLES with huge pages for malloc; empty where `tunables` has an answer to that already.
/// Source: glibc's manual, "Memory Allocation Tunables" (glibc 2.35).
std::string with_huge_pages(const std::string& tunables);

/// The largest number in "16", or in a list with ranges "4,8-16+4"; 0 where it is none.
std::uint64_t largest_number(std::string_view text, bool list);

/// What is to be said about a list of CPUs, "0-7" or "0-7|8-15", that the user gave; empty for nothing.
std::string cpus_warning(const LeaseFacts& facts, const Given& given);

/// Why llama.cpp's --numa cannot work on this machine; empty where it can.
/// Source: ggml-cpu.c, GGML_NUMA_MAX_NODES 8, GGML_NUMA_MAX_CPUS 512; nodes are counted up to the first gap.
std::string numa_cannot_work(const LeaseFacts& facts);

/// What is to be said about the --numa that the user gave, or about its absence; empty for nothing.
std::string numa_warning(const model::Engine& engine, const LeaseFacts& facts, const std::optional<Given>& given);

}  // namespace numalease::client
