#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "client/app.hpp"
#include "text/output.hpp"

namespace numalease::client {

using model::Dict;
using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::size_t kMostText = 1U << 20U;

Dict as_dict(const std::vector<std::pair<std::string, std::string>>& fields) {
    Dict out;
    for (const auto& [name, text] : fields) out[name] = text;
    return out;
}

/// As in the file; empty where the command is just run.
Dict as_dict(const model::Supervision& run) {
    Dict out;
    if (run.per_node) out = {{"per", "node"}, {"on-failure", run.restart ? "restart" : "end"}};
    if (run.warm)
        out["warm"] = "until " + std::to_string(run.warm->still) + " rounds bring nothing, at most " +
                      model::duration_text(run.warm->most);
    return out;
}

Dict as_dict(const model::Policy& policy) {
    Dict env;
    for (const auto& [name, text] : policy.env) env[name] = text;
    return {{"name", policy.name},
            {"why", policy.why},
            {"evidence", policy.evidence},
            {"request", as_dict(policy.fields)},
            {"env", env},
            {"run", as_dict(policy.run)},
            {"file", policy.file}};
}

Dict as_dict(const model::Engine& engine) {
    Dict options;
    for (const auto& [name, option] : engine.options)
        options[name] = Dict{{"flags", option.flags}, {"env", option.env}, {"value", option.value}};
    Dict env;
    for (const auto& [name, text] : engine.env) env[name] = text;
    return {{"name", engine.name},
            {"programs", engine.programs},
            {"folders", engine.folders},
            {"options", options},
            {"env", env},
            {"servers", engine.servers},
            {"ready", engine.ready},
            {"warm", engine.warm},
            {"hugepages", engine.hugepages},
            {"facts", engine.facts},
            {"file", engine.file}};
}

/// Up to the first full stop: a table has one line for it.
std::string first_sentence(const std::string& text) {
    const auto stop = text.find(". ");
    return stop == std::string::npos ? text : text.substr(0, stop + 1);
}

std::string joined(const std::vector<std::string>& words) {
    std::string out;
    for (const auto& word : words) out += (out.empty() ? "" : " ") + word;
    return out;
}

std::string programs_text(const model::Engine& engine) {
    if (engine.programs.empty()) return "every other program";
    return joined(engine.programs) + (engine.folders.empty() ? "" : " (in a folder " + joined(engine.folders) + ')');
}

int list(const Globals& globals) {
    const auto library = load_library();
    for (const auto& problem : library.problems) say(problem.detail + "; left out");
    if (globals.json) {
        model::Value::Dicts policies;
        model::Value::Dicts engines;
        for (const auto& [name, policy] : library.policies) policies.push_back(as_dict(policy));
        for (const auto& [name, engine] : library.engines) engines.push_back(as_dict(engine));
        return print(json_text(Dict{{"policies", policies}, {"engines", engines}}));
    }
    Table rows{{"POLICY", "WHAT IT DOES"}};
    for (const auto& [name, policy] : library.policies) rows.push_back({name, first_sentence(policy.why)});
    Table engines{{"ENGINE", "PROGRAMS"}};
    for (const auto& [name, engine] : library.engines) engines.push_back({name, programs_text(engine)});
    return print(table_text(rows, terminal_width()) + '\n' + table_text(engines, terminal_width()));
}

void add_rows(Table& rows, const std::string& title, const Dict& dict) {
    for (const auto& [name, value] : dict) rows.push_back({title, name + '=' + model::get_text(dict, name)});
}

int show(const Globals& globals, const std::string& name) {
    const auto library = load_library();
    if (const auto policy = library.policies.find(name); policy != library.policies.end()) {
        const auto dict = as_dict(policy->second);
        if (globals.json) return print(json_text(dict));
        Table rows{{"policy", name}, {"why", policy->second.why}, {"evidence", policy->second.evidence}};
        add_rows(rows, "asks for", model::get_dict(dict, "request"));
        add_rows(rows, "sets", model::get_dict(dict, "env"));
        add_rows(rows, "runs", model::get_dict(dict, "run"));
        rows.push_back({"file", policy->second.file});
        return print(table_text(rows, 0));
    }
    if (const auto engine = library.engines.find(name); engine != library.engines.end()) {
        const auto dict = as_dict(engine->second);
        if (globals.json) return print(json_text(dict));
        Table rows{{"engine", name}, {"programs", programs_text(engine->second)}};
        for (const auto& [option, how] : engine->second.options)
            rows.push_back({option, joined(how.flags) + (how.env.empty() ? "" : ' ' + how.env) +
                                        (how.value.empty() ? "" : " := " + how.value)});
        add_rows(rows, "sets", model::get_dict(dict, "env"));
        for (const auto& fact : engine->second.facts) rows.push_back({"fact", fact});
        rows.push_back({"file", engine->second.file});
        return print(table_text(rows, 0));
    }
    return say_failure({Errc::unreadable, "no policy or engine '" + name + "'; see numa-leasectl policy list", 0});
}

Result<std::string> read_text(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) return fail(Errc::unreadable, file + ": " + std::strerror(errno), errno);
    std::string text(kMostText + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (in.bad()) return fail(Errc::unreadable, file + ": cannot be read");
    text.resize(static_cast<std::size_t>(in.gcount()));
    if (text.size() > kMostText) return fail(Errc::unreadable, file + ": larger than 1M");
    return text;
}

Dict as_dict(const std::map<std::string, model::Limits>& accounts) {
    Dict out;
    for (const auto& [name, limits] : accounts) out[name] = to_dict(limits);
    return out;
}

Dict as_dict(const policies::SiteConfig& config) {
    return {{"defaults", as_dict(config.defaults)},
            {"group", config.group},
            {"reserve", config.reserve},
            {"overcommit", config.overcommit ? "warn" : "refuse"},
            {"scheduling", to_dict(config.scheduling)},
            {"limits", to_dict(config.limits)},
            {"users", as_dict(config.users)},
            {"groups", as_dict(config.groups)}};
}

Dict as_dict(const policies::LeaseFile& lease) {
    return {{"request", as_dict(lease.fields)}, {"engine", lease.engine}, {"model", lease.model}};
}

/// One of the kinds of file, as what lies where they do is, or what has a key that only they have. The rest are
/// policies.
enum class Kind { policy, engine, lease, site };
Kind kind_of(const std::filesystem::path& file, const std::string& text) {
    const auto folder = file.parent_path().filename();
    const auto has_any = [&](std::initializer_list<std::string> keys) {
        return std::ranges::any_of(keys, [&](const std::string& key) {
            return text.starts_with(key) || text.find('\n' + key) != std::string::npos;
        });
    };
    if (file.filename() == "numa-lease.yaml") return Kind::site;
    if (folder == "engines") return Kind::engine;
    if (folder == "leases") return Kind::lease;
    if (folder == "policies") return Kind::policy;
    if (has_any({"programs:", "options:", "folders:", "facts:"})) return Kind::engine;
    if (has_any({"scheduling:", "classes:", "limits:", "users:", "groups:", "group:", "defaults:", "reserve:",
                 "overcommit:"}))
        return Kind::site;
    if (has_any({"policy:", "engine:", "model:"})) return Kind::lease;
    const auto is_there = [&](const model::RequestField& field) { return has_any({std::string(field.name) + ':'}); };
    return std::ranges::any_of(model::request_fields(), is_there) ? Kind::lease : Kind::policy;
}

template <class File>
int told(const Globals& globals, const Result<File>& file, const std::string& what) {
    if (!file) return say_failure(file.error());
    return print(globals.json ? json_text(as_dict(*file)) : printable(what) + ": ok\n");
}

int check(const Globals& globals, const std::string& file) {
    const auto text = read_text(file);
    if (!text) return say_failure(text.error());
    switch (kind_of(file, *text)) {
        case Kind::site: return told(globals, policies::parse_site_config(*text, file), "site configuration");
        case Kind::lease:
            return told(globals, policies::parse_lease(*text, file),
                        "lease " + std::filesystem::path(file).stem().string());
        case Kind::engine: {
            const auto engine = policies::parse_engine(*text, file);
            return told(globals, engine, engine ? "engine " + engine->name : "");
        }
        case Kind::policy: break;
    }
    const auto policy = policies::parse_policy(*text, file);
    return told(globals, policy, policy ? "policy " + policy->name : "");
}

}  // namespace

void add_policy(CLI::App& verb, Globals& globals) {
    const auto word = std::make_shared<std::string>();
    const auto add = [&](const char* name, const char* help) {
        auto* sub = verb.add_subcommand(name, help);
        sub->add_flag("--json", globals.json, "print JSON");
        return sub;
    };
    verb.require_subcommand(0, 1);
    verb.callback([&globals] {
        if (!globals.go) globals.go = [&globals] { return list(globals); };
    });
    add("list", "all policies and engines")->callback([&globals] {
        globals.go = [&globals] { return list(globals); };
    });
    auto* shown = add("show", "one policy or engine, with its reasons");
    shown->add_option("NAME", *word, "policy or engine")->required();
    shown->callback([&globals, word] { globals.go = [&globals, word] { return show(globals, *word); }; });
    auto* checked = add("check", "whether a file is a good policy, engine, lease or site configuration");
    checked->add_option("FILE", *word, "YAML file")->required();
    checked->callback([&globals, word] { globals.go = [&globals, word] { return check(globals, *word); }; });
}

}  // namespace numalease::client
