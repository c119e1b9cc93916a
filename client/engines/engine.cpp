#include "engines/engine.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "engines/engine_words.hpp"
#include "engines/gpus.hpp"
#include "policies/variables.hpp"

namespace numalease::client {

using model::Engine;
using model::EngineOption;

namespace {

/// The environment as the user meant it: inside a lease, thread variables that have the lease's number, or as many of
/// its CPUs, are what we said to the command that now runs another lease, or what it would say again.
Env without_ours(const policies::Library& library, Env env) {
    const auto threads = env.find("NUMA_LEASE_THREADS");
    if (threads == env.end() || !env.contains("NUMA_LEASE_ID")) return env;
    const auto number = threads->second;
    const auto lease_cpus = model::CpuSet::parse(env.contains("NUMA_LEASE_CPUS") ? env.at("NUMA_LEASE_CPUS") : "");
    const auto is_ours = [&](const EngineOption& option, const std::string& value) {
        if (says_threads(option)) return value == number;
        if (!says_cpus(option) || !lease_cpus) return false;
        const auto cpus = model::CpuSet::parse(value);
        return cpus && lease_cpus->covers(*cpus) && std::to_string(cpus->size()) == number;
    };
    for (const auto& [engine_name, engine] : library.engines) {
        for (const auto& [name, option] : engine.options) {
            const auto found = env.find(option.env);
            if (found != env.end() && is_ours(option, found->second)) env.erase(found);
        }
    }
    return env;
}

/// Everything about one command while it is adapted.
class Telling {
public:
    Telling(const policies::Library& library, Adapted& out, const Env& user_env, const LeaseFacts& facts)
        : library_(library), out_(out), facts_(facts), words_(unwrap(out.argv)) {
        if (words_.drops_env.empty()) env_ = without_ours(library, user_env);
        for (const auto& [name, value] : words_.env) env_[name] = value;
        engine_ = recognise(library, out.argv, &program_);
    }

    void tell(const model::Policy* policy) {
        set_lease_variables();
        tell_gpus();
        if (engine_ != nullptr) {
            out_.engine = engine_->name;
            options_ = options_of(library_, *engine_);
            for (const auto& option : options_)
                if (!given(option.option).empty()) given_groups_.insert(option.group);
        }
        if (policy != nullptr) set_unless_given(policy->env);
        for (const auto& option : options_) tell(option);
        if (engine_ != nullptr) {
            set_unless_given(engine_->env);
            check_numa();
            tell_huge_pages();
        }
        insert_flags();
        if (!unheard_.empty())
            warn(words_.drops_env + " drops the variables " + unheard_ +
                 " on the way to the command; put it before numa-leasectl instead");
        if (engine_ != nullptr) out_.told = engine_->name + ": " + (told_.empty() ? "nothing to tell" : told_);
    }

    std::string expanded(std::string_view text) const {
        return policies::expand(text, [this](std::string_view name) -> std::optional<std::string> {
            if (name == "cores") return std::to_string(facts_.cores);
            if (name == "threads") return std::to_string(facts_.threads);
            if (name == "nodes") return facts_.nodes.text();
            if (name == "cpus") return facts_.cpus.text();
            if (name == "core_cpus") return facts_.core_cpus.text();
            if (name == "node_count") return std::to_string(facts_.nodes.size());
            if (name == "index") return std::to_string(facts_.index);
            if (name == "node" && !facts_.nodes.empty()) return std::to_string(facts_.nodes.first());
            const auto port = policies::port_before_index(name == "port+index" ? own_port() + "+index" : name);
            return port ? std::optional(std::to_string(*port + facts_.index)) : std::nullopt;
        });
    }

private:
    /// That of the engine, where it is told none.
    [[nodiscard]] std::string own_port() const {
        if (engine_ == nullptr) return {};
        const auto port = engine_->options.find("port");
        return port == engine_->options.end() ? std::string() : port->second.fallback;
    }

    [[nodiscard]] std::vector<Given> given(const EngineOption& option) const {
        return given_by(option, out_.argv, engine_ == nullptr ? program_ : after_program(*engine_, out_.argv, program_),
                        env_);
    }

    void warn(std::string text) { out_.warnings.push_back(std::move(text)); }
    void say(const std::string& what) { told_ += (told_.empty() ? "" : ", ") + what; }

    void set_lease_variables() {
        out_.env["NUMA_LEASE_ID"] = facts_.id;
        out_.env["NUMA_LEASE_CPUS"] = facts_.cpus.text();
        out_.env["NUMA_LEASE_NODES"] = facts_.nodes.text();
        out_.env["NUMA_LEASE_CORES"] = std::to_string(facts_.cores);
        out_.env["NUMA_LEASE_THREADS"] = std::to_string(facts_.threads);
    }

    void tell_gpus() {
        const auto words = gpu_words(facts_.gpus, env_);
        for (const auto& [name, value] : words.env)
            name.starts_with("NUMA_LEASE_") ? void(out_.env[name] = value) : set(name, value);
        for (const auto& warning : words.warnings) warn(warning);
    }

    void set(const std::string& name, const std::string& value) {
        out_.env[name] = value;
        say(name + '=' + value);
        if (!words_.drops_env.empty()) unheard_ += (unheard_.empty() ? "" : ", ") + name;
    }

    /// A policy's or engine's own variables. Where the user has said the same thing in another way (--mmap against
    /// LLAMA_ARG_NO_MMAP), theirs stands.
    void set_unless_given(const Env& variables) {
        for (const auto& [name, value] : variables) {
            const auto says_it = [&](const Said& said) {
                return said.option.env == name && given_groups_.contains(said.group);
            };
            if (env_.contains(name) || out_.env.contains(name) || std::ranges::any_of(options_, says_it)) continue;
            set(name, expanded(value));
        }
    }

    [[nodiscard]] bool applies(const Said& said) const {
        if (said.option.value.empty()) return false;
        if (said.option.only == "part" && facts_.whole_machine) return false;
        if (said.option.only == "whole" && !facts_.whole_machine) return false;
        if (said.option.only == "node" && facts_.nodes.size() != 1) return false;
        if (said.option.only == "instance" && (facts_.instances < 2 || !is_server(*engine_, out_.argv, program_)))
            return false;
        if (said.group != "numa") return true;
        // Under any --numa the engine widens its main thread to all CPUs; without a cgroup that leaves the lease.
        return facts_.machine_nodes > 1 && numa_cannot_work(facts_).empty() &&
               (facts_.contained || facts_.whole_machine);
    }

    void tell(const Said& said) {
        const auto& option = said.option;
        const auto from_user = given(option);
        if (!from_user.empty()) return answer(said, from_user);
        if (!applies(said) || given_groups_.contains(said.group) || out_.env.contains(option.env)) return;
        const auto value = expanded(option.value);
        const bool heard = !option.env.empty() && words_.drops_env.empty();
        if (!heard && option.insert)
            insert(after_program(*engine_, out_.argv, program_), option.flags.front(), value);
        else if (!option.env.empty())
            set(option.env, value);
    }

    /// The user has said it: it stays as it is. Only where it means "not given" ours follows, because a variable
    /// would not be heard beside it.
    void answer(const Said& said, const std::vector<Given>& from_user) {
        const auto& option = said.option;
        const auto& last = from_user.back();
        if (!says_threads(option)) {
            if ((said.group == "numa" && applies(said)) || says_cpus(option)) say(last.shown() + " (yours)");
            if (auto text = says_cpus(option) ? cpus_warning(facts_, last) : ""; !text.empty()) warn(std::move(text));
            return;
        }
        const auto value = expanded(option.value);
        if (std::ranges::find(option.unset, last.value) != option.unset.end()) {
            // A flag that the user gave is one that this program takes; in place of a variable only `insert` says so.
            const bool inserts = last.end != 0 || option.insert;
            warn(last.shown() + " makes " + engine_->name + " size itself by the whole machine; " +
                 (inserts ? "told it " + option.flags.front() + ' ' + value + " after it" : "drop it"));
            if (inserts)
                insert(last.end == 0 ? after_program(*engine_, out_.argv, program_) : last.end, option.flags.front(),
                       value);
            return;
        }
        say(last.shown() + " (yours)");
        if (said.name != "http-threads") check_threads(option, from_user);
    }

    void check_threads(const EngineOption& option, const std::vector<Given>& from_user) {
        // The engine takes the last of several, unless it takes a list of them all.
        for (const auto& one : option.list ? from_user : std::vector<Given>{from_user.back()}) {
            const auto asked = largest_number(one.value, option.list);
            if (asked <= facts_.threads) continue;
            const bool fits = asked <= facts_.cpus.size();
            const auto way_out =
                one.end == 0 ? "unset it, or set it to " : "drop it, or say " + option.flags.front() + ' ';
            warn(one.shown() + " asks for " + std::to_string(asked) + " threads, the lease has " +
                 std::to_string(facts_.cores) + (facts_.cores == 1 ? " core" : " cores") +
                 (fits ? " with " + std::to_string(facts_.cpus.size()) + " hardware threads (usually slower)" : "") +
                 ": " + way_out + std::to_string(facts_.threads));
        }
    }

    void check_numa() {
        for (const auto& said : options_) {
            if (said.group != "numa") continue;
            const auto from_user = given(said.option);
            auto text =
                numa_warning(*engine_, facts_, from_user.empty() ? std::nullopt : std::optional(from_user.back()));
            if (!text.empty()) warn(std::move(text));
            return;  // both forms of the option have the same flags
        }
    }

    /// Huge pages of the lease are used by an engine only where its malloc is told to, and by its weights only where
    /// they are read into memory from there.
    void tell_huge_pages() {
        if (!facts_.huge_pages || engine_->programs.empty()) return;
        if (engine_->hugepages.empty())
            return warn("huge pages: " + engine_->name + " is not known to use any that it is not told of");
        auto env = env_;
        for (const auto& [name, value] : out_.env) env[name] = value;
        if (!reads_weights(options_, out_.argv, after_program(*engine_, out_.argv, program_), env))
            return warn("huge pages: " + engine_->name +
                        " maps its model, and a mapped file never uses them; to read it instead, say " +
                        engine_->hugepages);
        const std::string name = "GLIBC_TUNABLES";
        const auto& theirs = env[name];
        const auto value = with_huge_pages(theirs);
        if (value.empty()) return say(name + '=' + theirs + " (yours)");
        if (words_.env.contains(name))
            return warn("huge pages: malloc is not told to use them, since the command sets " + name +
                        " itself; make that " + name + '=' + value);
        set(name, value);
    }

    void insert(std::size_t position, const std::string& flag, const std::string& value) {
        insertions_.emplace(position, Argv{flag, value});
        say(flag + ' ' + value);
    }

    void insert_flags() {
        // From the back, so that positions before stay good.
        for (auto it = insertions_.rbegin(); it != insertions_.rend(); ++it)
            out_.argv.insert(out_.argv.begin() + static_cast<std::ptrdiff_t>(it->first), it->second.begin(),
                             it->second.end());
    }

    const policies::Library& library_;
    Adapted& out_;
    const LeaseFacts& facts_;
    Unwrapped words_;
    Env env_;
    std::size_t program_ = 0;
    const Engine* engine_ = nullptr;
    std::vector<Said> options_;
    std::set<std::string> given_groups_;
    std::multimap<std::size_t, Argv> insertions_;
    std::string told_;
    std::string unheard_;
};

}  // namespace

const Engine* recognise(const policies::Library& library, const Argv& argv, std::size_t* program_index) {
    const auto program = unwrap(argv).program;
    if (program_index != nullptr) *program_index = program;
    const Engine* fallback = nullptr;
    const Engine* found = nullptr;
    for (const auto& [name, engine] : library.engines) {
        if (engine.programs.empty()) fallback = &engine;
        if (after_program(engine, argv, program) == program) continue;
        if (found == nullptr || (found->folders.empty() && !engine.folders.empty())) found = &engine;
    }
    return found == nullptr ? fallback : found;
}

bool is_server(const Engine& engine, const Argv& argv, std::size_t program) {
    const auto end = after_program(engine, argv, program);
    if (end == program) return false;
    auto name = std::string(base_name(argv[program]));
    if (end == program + 2) name += ' ' + argv[program + 1];
    return engine.servers.empty() || std::ranges::find(engine.servers, name) != engine.servers.end();
}

std::optional<std::string> model_file(const Engine& engine, const Argv& argv, const Env& user_env) {
    const auto option = engine.options.find("model");
    if (option == engine.options.end()) return std::nullopt;
    const auto words = unwrap(argv);
    auto env = user_env;
    for (const auto& [name, value] : words.env) env[name] = value;
    const auto from = after_program(engine, argv, words.program);
    if (option->second.behind_program && from < argv.size() && !argv[from].starts_with('-')) return argv[from];
    const auto from_user = given_by(option->second, argv, from, env);
    if (from_user.empty() || from_user.back().value.empty()) return std::nullopt;
    if (from_user.back().value.find("://") != std::string::npos) return std::nullopt;
    if (option->second.list) return from_user.front().value.substr(0, from_user.front().value.find(','));
    return from_user.back().value;
}

namespace {

enum class Loads { unsaid, mapped, copied };

/// What one word about loading says: --no-mmap, LLAMA_ARG_MMAP=0, -mmp 0, --direct-io, --load-mode mmap+mlock,
/// --usemmap.
Loads loads_by(const std::string& option, const Given& given) {
    auto name = given.name;
    std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
    const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
    const bool off = given.value == "0" || given.value == "off" || given.value == "false";
    if (option == "load/mode") return given.value.find("mmap") != std::string::npos ? Loads::mapped : Loads::copied;
    if (has("no-mmap") || has("no_mmap")) return Loads::copied;
    if (has("mmap") || has("mmp")) return off ? Loads::copied : Loads::mapped;
    if (has("ndio") || has("no-direct") || off) return Loads::unsaid;
    return has("dio") || has("direct-io") ? Loads::copied : Loads::unsaid;
}

}  // namespace

bool maps_model(const policies::Library& library, const model::Policy* policy, const Argv& argv, Env env) {
    const auto* engine = argv.empty() ? nullptr : recognise(library, argv, nullptr);
    if (engine == nullptr) return false;
    const auto words = unwrap(argv);
    if (policy != nullptr) env.insert(policy->env.begin(), policy->env.end());
    if (!words.drops_env.empty()) env.clear();
    for (const auto& [name, value] : words.env) env[name] = value;
    bool maps = false;
    for (const auto& [name, option] : engine->options) {
        if (!name.starts_with("load/")) continue;
        // An engine that has a word against it does it by itself.
        for (const auto& flag : option.flags) maps = maps || flag == "--no-mmap" || flag == "-mmp";
        for (const auto& given : given_by(option, argv, after_program(*engine, argv, words.program), env)) {
            const auto loads = loads_by(name, given);
            if (loads == Loads::copied) return false;
            maps = maps || loads == Loads::mapped;
        }
    }
    return maps;
}

Adapted adapt(const policies::Library& library, const model::Policy* policy, Argv argv, const Env& user_env,
              const LeaseFacts& facts, bool expand) {
    Adapted out;
    out.argv = std::move(argv);
    if (expand) {
        const Telling words(library, out, user_env, facts);
        Argv expanded;
        std::ranges::transform(out.argv, std::back_inserter(expanded),
                               [&](const std::string& word) { return words.expanded(word); });
        out.argv = std::move(expanded);
    }
    Telling(library, out, user_env, facts).tell(policy);
    return out;
}

}  // namespace numalease::client
