#pragma once

#include <string>
#include <utility>

#include "engines/engine.hpp"

/// The shipped engines and the leases that they are told of, for tests.
namespace numalease::test {

using client::Adapted;
using client::Argv;
using client::Env;
using client::LeaseFacts;

inline const policies::Library& shipped() {
    // The build tree's copy of the shipped files: the engines are tested as they are.
    static const auto library = policies::load({policies::search_path("").front()});
    return library;
}

/// One socket of a two-socket machine with two threads per core: 8 cores, 16 threads of 32.
inline LeaseFacts half() {
    LeaseFacts facts;
    facts.id = "c1";
    facts.cpus = model::CpuSet(model::IndexSet::range(0, 15));
    facts.core_cpus = model::CpuSet(model::IndexSet::range(0, 7));
    facts.nodes = model::NodeSet{0};
    facts.cores = 8;
    facts.threads = 8;
    facts.machine_nodes = 2;
    facts.machine_cpus = 32;
    facts.contained = true;
    return facts;
}

inline LeaseFacts whole() {
    auto facts = half();
    facts.cpus = model::CpuSet(model::IndexSet::range(0, 31));
    facts.nodes = model::NodeSet{0, 1};
    facts.cores = facts.threads = 16;
    facts.whole_machine = true;
    return facts;
}

inline LeaseFacts one_core_of_one_node() {
    auto facts = half();
    facts.cpus = model::CpuSet{1};
    facts.cores = facts.threads = 1;
    facts.machine_nodes = 1;
    facts.machine_cpus = 2;
    return facts;
}

inline Adapted told(Argv argv, const LeaseFacts& facts = half(), const Env& env = {},
                    const model::Policy* policy = nullptr) {
    return client::adapt(shipped(), policy, std::move(argv), env, facts, false);
}

inline std::string engine_of(const Argv& argv) {
    const auto* engine = client::recognise(shipped(), argv, nullptr);
    return engine == nullptr ? "" : engine->name;
}

}  // namespace numalease::test
