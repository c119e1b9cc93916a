#include "engines/engine_words.hpp"

#include <algorithm>
#include <charconv>

namespace numalease::client {

using model::Engine;
using model::EngineOption;

namespace {

/// llama.cpp and vLLM take --threads_batch for --threads-batch.
std::string normal(std::string_view word) {
    std::string out(word);
    if (out.starts_with("--")) std::ranges::replace(out, '_', '-');
    return out;
}

std::uint64_t number_at_front(std::string_view text) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    // A number too large to read is surely larger than the lease.
    return error == std::errc::result_out_of_range ? UINT64_MAX : number;
}

/// The path as it was typed: where PATH finds the program, no folder shows.
bool is_in_folder(const Engine& engine, std::string_view path) {
    if (engine.folders.empty()) return true;
    for (auto slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/')) {
        if (std::ranges::find(engine.folders, path.substr(0, slash)) != engine.folders.end()) return true;
        path.remove_prefix(slash + 1);
    }
    return false;
}

}  // namespace

std::string Given::shown() const {
    if (end != 0 && !equals_form) return value.empty() ? name : name + ' ' + value;
    return name + '=' + value;
}

std::vector<Given> given_by(const EngineOption& option, const Argv& argv, std::size_t from, const Env& env) {
    std::vector<Given> out;
    const auto is_flag = [&](std::string_view word) {
        return std::ranges::find(option.flags, normal(word), normal) != option.flags.end();
    };
    for (auto i = from; i < argv.size(); ++i) {
        const auto equals = argv[i].starts_with('-') ? argv[i].find('=') : std::string::npos;
        if (equals != std::string::npos && is_flag(argv[i].substr(0, equals)))
            out.push_back({argv[i].substr(0, equals), argv[i].substr(equals + 1), i + 1, true});
        if (!is_flag(argv[i])) continue;
        const bool has_value = i + 1 < argv.size();
        out.push_back({argv[i], has_value ? argv[i + 1] : "", i + (has_value ? 2 : 1)});
    }
    if (const auto variable = env.find(option.env); out.empty() && !option.env.empty() && variable != env.end())
        out.push_back({option.env, variable->second});
    return out;
}

bool says_threads(const EngineOption& option) { return option.value.find("${threads}") != std::string::npos; }
bool says_cpus(const EngineOption& option) { return option.value.find("${core_cpus}") != std::string::npos; }

std::size_t after_program(const Engine& engine, const Argv& argv, std::size_t program) {
    if (program >= argv.size() || !is_in_folder(engine, argv[program])) return program;
    const auto name = base_name(argv[program]);
    for (const auto& known : engine.programs) {
        const auto space = known.find(' ');
        if (name != std::string_view(known).substr(0, space)) continue;
        if (space == std::string::npos) return program + 1;
        if (program + 1 < argv.size() && argv[program + 1] == known.substr(space + 1)) return program + 2;
    }
    return program;
}

std::vector<Said> options_of(const policies::Library& library, const Engine& engine) {
    std::vector<Said> out;
    for (const auto& [name, option] : engine.options) out.push_back({name.substr(0, name.find('/')), name, option});
    if (!engine.programs.empty()) return out;
    for (const auto& [other_name, other] : library.engines) {
        for (const auto& [name, option] : other.options) {
            const bool known = std::ranges::any_of(out, [&](const Said& s) { return s.option.env == option.env; });
            if (option.env.empty() || !(says_threads(option) || says_cpus(option)) || known) continue;
            EngineOption variable = option;
            if (says_cpus(option)) variable.only = "node";
            // Flags of an unknown program are not ours to read.
            variable.flags.clear();
            variable.insert = false;
            out.push_back({option.env, name, std::move(variable)});
        }
    }
    return out;
}

bool reads_weights(const std::vector<Said>& options, const Argv& argv, std::size_t from, const Env& env) {
    std::size_t last = 0;
    bool reads = false;
    for (const auto& [group, name, option] : options) {
        if (group != "load") continue;
        const auto unmaps = [&](std::string_view word) {
            return std::ranges::find(option.unmaps, word, normal) != option.unmaps.end() ||
                   std::ranges::find(option.unmaps, "*") != option.unmaps.end();
        };
        for (const auto& given : given_by(option, argv, from, env)) {
            const bool answer = unmaps(normal(given.name)) || unmaps(given.value);
            if (given.end > last) reads = answer;
            if (given.end == 0 && last == 0) reads = reads || answer;
            last = std::max(last, given.end);
        }
    }
    return reads;
}

std::string with_huge_pages(const std::string& tunables) {
    constexpr std::string_view kTunable = "glibc.malloc.hugetlb=";
    if ((':' + tunables).find(':' + std::string(kTunable)) != std::string::npos) return {};
    return tunables + (tunables.empty() ? "" : ":") + std::string(kTunable) + '2';
}

std::uint64_t largest_number(std::string_view text, bool list) {
    if (!list) return number_at_front(text);
    std::uint64_t largest = 0;
    while (!text.empty()) {
        const auto item = text.substr(0, text.find(','));
        text.remove_prefix(std::min(text.size(), item.size() + 1));
        largest = std::max(largest, number_at_front(item));
        if (const auto dash = item.find('-'); dash != std::string_view::npos)
            largest = std::max(largest, number_at_front(item.substr(dash + 1)));
    }
    return largest;
}

std::string cpus_warning(const LeaseFacts& facts, const Given& given) {
    auto text = given.value;
    std::ranges::replace(text, '|', ',');
    const auto named = model::CpuSet::parse(text);
    if (!named || facts.cpus.covers(*named)) return {};  // words like "auto" are no list
    return given.shown() + " names CPUs that the lease does not have (" + (*named - facts.cpus).text() +
           "): " + (given.end == 0 ? "unset it, or set it to " : "drop it, or name ") + facts.core_cpus.text();
}

std::string numa_cannot_work(const LeaseFacts& facts) {
    if (facts.machine_nodes > 8)
        return "the machine has " + std::to_string(facts.machine_nodes) + " NUMA nodes and it knows 8";
    if (facts.machine_cpus > 512)
        return "the machine has " + std::to_string(facts.machine_cpus) + " CPUs and it knows 512";
    if (facts.node_numbers_have_gaps) return "the machine's node numbers have gaps and it counts to the first one";
    return {};
}

std::string numa_warning(const Engine& engine, const LeaseFacts& facts, const std::optional<Given>& given) {
    if (facts.machine_nodes < 2) return {};
    if (const auto why = numa_cannot_work(facts); !why.empty()) {
        const std::string end = "; the lease places threads and memory without it";
        if (!given) return engine.name + "'s --numa is not set, it cannot work here: " + why + end;
        return given->shown() + " cannot work here: " + why + "; drop it" + end;
    }
    if (!given) return {};
    const auto shown = given->shown();
    // A word that cannot be another flag's is all that is told apart: llama.cpp takes "" for distribute.
    if (given->value == "isolate")
        return shown + " keeps all threads on one node and binds no memory, which the lease has done already; drop it";
    if (facts.whole_machine) return {};
    if (!facts.contained)
        return shown + " lets threads leave the lease: " + engine.name +
               " sets their affinity itself, and no cgroup holds this lease; drop it";
    if (given->value == "distribute" || given->value.empty())
        return shown + " pins threads over all " + std::to_string(facts.machine_nodes) +
               " nodes of the machine; the lease's cgroup holds them, and those meant for elsewhere stay unpinned; "
               "drop it, or say numactl";
    return {};
}

}  // namespace numalease::client
