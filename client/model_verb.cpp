#include <numa.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "client/app.hpp"
#include "engines/sizing.hpp"
#include "launch/enter.hpp"
#include "launch/page_cache.hpp"
#include "text/output.hpp"

namespace numalease::client {

using model::Bytes;
using model::bytes_text;
using model::Dict;
using model::Errc;
using model::fail;
using model::Result;

namespace {

struct NodeRoom {
    unsigned node = 0;
    Bytes total = 0;
    Bytes free = 0;
};

/// Nodes with memory. Free is what nothing uses, not even as a cache.
std::vector<NodeRoom> rooms() {
    std::vector<NodeRoom> out;
    if (numa_available() < 0) return out;
    for (int node = 0; node <= numa_max_node(); ++node) {
        long long free = 0;
        const auto total = numa_node_size64(node, &free);
        if (total > 0)
            out.push_back(
                {static_cast<unsigned>(node), static_cast<Bytes>(total), static_cast<Bytes>(std::max(0LL, free))});
    }
    return out;
}

/// The fewest nodes whose memory together is enough; 0 where all are not.
std::size_t nodes_for(Bytes need, std::vector<NodeRoom> nodes) {
    std::ranges::sort(nodes, std::greater(), &NodeRoom::total);
    Bytes have = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        have += nodes[i].total;
        if (have >= need) return i + 1;
    }
    return 0;
}

Dict as_dict(const weights::Need& need) {
    return {{"weights", need.weights}, {"kv_cache", need.cache},  {"compute_allowance", need.allowance},
            {"on_gpu", need.on_gpu},   {"context", need.context}, {"total", need.total()}};
}

std::string range(Bytes least, Bytes most) {
    return least == most ? bytes_text(most) : bytes_text(least) + " to " + bytes_text(most);
}

std::string nodes_text(const Sizing& sizing, const std::vector<NodeRoom>& nodes) {
    const auto need = nodes_for(sizing.most(), nodes);
    std::string each;
    for (const auto& it : nodes)
        each += (each.empty() ? "" : ", ") + ("node " + std::to_string(it.node)) + " has " + bytes_text(it.total) +
                " (" + bytes_text(it.free) + " free)";
    if (need == 0) return "more than this machine has: " + each;
    return std::to_string(need) + (need == 1 ? " node" : " nodes") + " of this machine's " +
           std::to_string(nodes.size()) + ": " + each;
}

/// What of it is cached. Only where a daemon runs already: none is started just for this.
std::optional<ModelCache> cached(const Globals& globals, const Sizing& sizing) {
    auto daemon = find_daemon(globals.endpoint, Wake::no);
    if (!daemon) return std::nullopt;
    return read_model_cache(*daemon, sizing.model.file, sizing.model.files);
}

std::string cached_text(const ModelCache& cache) {
    if (!cache.problem.empty()) return "not known: " + cache.problem;
    const auto who = mappers_text(cache);
    return where_text(cache) + (who.empty() ? "" : ", mapped by " + who);
}

Table table_of(const Sizing& sizing, const std::vector<NodeRoom>& nodes, const std::optional<ModelCache>& cache) {
    const auto& most = sizing.need;
    const auto& least = sizing.at_least;
    const auto count = sizing.model.files.size();
    Table rows{{"model", sizing.model.file}};
    rows.push_back({"is", sizing.layers.architecture + ", " + std::to_string(sizing.layers.layers.size()) +
                              " layers, " + bytes_text(sizing.model.stored) + " in " + std::to_string(count) +
                              (count == 1 ? " file" : " files")});
    rows.push_back({"weights", range(least.weights, most.weights)});
    if (most.on_gpu != 0) rows.push_back({"on a GPU", bytes_text(most.on_gpu)});
    rows.push_back({"KV cache", range(least.cache, most.cache) + " for " + std::to_string(most.context) + " tokens"});
    rows.push_back(
        {"compute", range(least.allowance, most.allowance) + ", an allowance that is not read from the file"});
    if (sizing.beside != 0) rows.push_back({"beside it", bytes_text(sizing.beside)});
    rows.push_back({"total", range(sizing.least(), sizing.most())});
    rows.push_back({"takes", nodes_text(sizing, nodes)});
    if (cache) rows.push_back({"cached", cached_text(*cache)});
    for (const auto& note : sizing.notes) rows.push_back({"note", note});
    return rows;
}

Dict json_of(const Sizing& sizing, const std::vector<NodeRoom>& nodes) {
    model::Value::Dicts list;
    for (const auto& it : nodes) list.push_back({{"node", it.node}, {"total", it.total}, {"free", it.free}});
    return {{"model", sizing.model.file},
            {"architecture", sizing.layers.architecture},
            {"layers", sizing.layers.layers.size()},
            {"tensors", sizing.model.header.tensors.size()},
            {"files", sizing.model.files},
            {"stored", sizing.model.stored},
            {"need", as_dict(sizing.need)},
            {"at_least", as_dict(sizing.at_least)},
            {"beside", sizing.beside},
            {"total", sizing.most()},
            {"nodes_needed", nodes_for(sizing.most(), nodes)},
            {"nodes", list},
            {"notes", sizing.notes}};
}

/// The one that the command names, where none was typed.
Result<std::string> model_of(const policies::Library& library, const std::string& typed, const Argv& command) {
    const auto* engine = command.empty() ? nullptr : recognise(library, command, nullptr);
    if (engine == nullptr && !typed.empty()) return typed;
    const auto env = current_environment();
    const auto named = !typed.empty() || engine == nullptr ? typed : model_file(*engine, command, env).value_or("");
    if (named.empty())
        return fail(Errc::invalid_request, "model: no file is named; say FILE, or a command that names one behind --");
    if (auto local = local_model(*engine, named, env)) return *std::move(local);
    return fail(Errc::unreadable, "model " + printable(named) + " was not downloaded to here; name its folder");
}

int show_model(const Globals& globals, const std::string& typed) {
    const auto library = load_library();
    const auto named = model_of(library, typed, globals.command);
    if (!named) return say_failure(named.error());
    const auto& file = *named;
    const auto sizing = size_model(library, file, globals.command, current_environment(), has_compute_device());
    if (!sizing) return say_failure(sizing.error());
    const auto nodes = rooms();
    const auto cache = cached(globals, *sizing);
    if (!globals.json) return print(table_text(table_of(*sizing, nodes, cache), 0));
    auto out = json_of(*sizing, nodes);
    if (cache) out["page_cache"] = to_dict(*cache);
    return print(json_text(out));
}

}  // namespace

void add_model(CLI::App& verb, Globals& globals) {
    const auto file = std::make_shared<std::string>();
    verb.add_option("FILE", *file,
                    "a GGUF file, any part of a split one, or a folder with safetensors; without it the one "
                    "that the COMMAND names");
    verb.callback([&globals, file] { globals.go = [&globals, file] { return show_model(globals, *file); }; });
}

}  // namespace numalease::client
