#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engines/engine.hpp"
#include "weights/need.hpp"

namespace numalease::client {

/// What a command's engine will need for a model, as far as its files and the command say.
struct Sizing {
    weights::Model model;
    weights::Layers layers;
    weights::Settings settings;
    weights::Need need;        ///< at most: what is to have room
    weights::Need at_least;    ///< less than `need` where the engine decides itself
    bool may_use_gpu = false;  ///< the engine decides how much of it is in main memory
    model::Bytes beside = 0;   ///< other models that the command names: a draft model, a projector
    std::vector<std::string> notes;

    [[nodiscard]] model::Bytes most() const { return weights::Need::sum(need.total(), beside); }
    [[nodiscard]] model::Bytes least() const { return weights::Need::sum(at_least.total(), beside); }
};

/// The files that a command's model is in, or nothing where it is a name of which nothing was downloaded.
std::optional<std::string> local_model(const model::Engine& engine, const std::string& model, const Env& env);

/// `command` may be empty: then the engine's own defaults count. `has_gpu`: an engine that decides itself may use one.
/// Errors: unreadable, naming the file; invalid_request for an argument that cannot be understood.
model::Result<Sizing> size_model(const policies::Library& library, const std::string& file, const Argv& command,
                                 const Env& user_env, bool has_gpu);

/// What a request is to ask for: the most that the engine may take; the least where it may use a GPU, or where this
/// machine has not that much and the engine will see it.
model::Bytes memory_to_ask(const Sizing& sizing, model::Bytes machine);

/// One line for people: "m.gguf: 4.4G weights, 512M KV cache for 4096 tokens, 128M allowance". `name`: the model's, for
/// people.
std::string sizing_text(std::string_view name, const Sizing& sizing);

/// All memory of this machine.
model::Bytes machine_memory();

/// A device that engines compute on: /dev/nvidiactl, /dev/kfd or a render node.
bool has_compute_device();

}  // namespace numalease::client
