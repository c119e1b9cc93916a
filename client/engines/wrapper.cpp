#include "engines/wrapper.hpp"

#include <algorithm>
#include <array>
#include <optional>

namespace numalease::client {

namespace {

using Argv = std::vector<std::string>;

/// How one wrapper's own words are told from the command behind it.
struct Wrapper {
    std::string_view name;
    std::string_view values;       ///< short options that take a value
    std::string_view long_values;  ///< long options that take one, each with a space around it
    std::string_view opaque;       ///< short options after which no command follows, or none that we can read
    std::string_view opaque_long;  ///< the same for long ones
    unsigned positionals = 0;      ///< words before the command: the mask of taskset, the priority of chrt
    bool assigns = false;          ///< takes NAME=value
    std::string_view drops_env;    ///< short options that drop the environment; "*": always …
    std::string_view keeps_env;    ///< … but for these
    std::string_view names;        ///< short options whose value is the program
};

/// Source: the manual pages of coreutils 9, util-linux 2.38, numactl 2.0, sudo 1.9, opendoas 6, GNU time 1.9,
/// Python 3.13.
constexpr std::array kWrappers{
    Wrapper{.name = "env",
            .values = "uC",
            .long_values = " --unset --chdir ",
            .opaque = "S",
            .opaque_long = " --split-string ",
            .assigns = true,
            .drops_env = "i"},
    Wrapper{.name = "nice", .values = "n", .long_values = " --adjustment ", .opaque = ""},
    Wrapper{.name = "ionice", .values = "cn", .long_values = " --class --classdata ", .opaque = "pPu"},
    Wrapper{.name = "chrt",
            .values = "TPD",
            .long_values = " --sched-runtime --sched-period --sched-deadline ",
            .opaque = "pm",
            .positionals = 1},
    Wrapper{.name = "nohup", .values = "", .long_values = "", .opaque = ""},
    Wrapper{.name = "setsid", .values = "", .long_values = "", .opaque = ""},
    Wrapper{.name = "time", .values = "fo", .long_values = " --format --output ", .opaque = ""},
    Wrapper{
        .name = "timeout", .values = "ks", .long_values = " --kill-after --signal ", .opaque = "", .positionals = 1},
    Wrapper{.name = "stdbuf", .values = "ioe", .long_values = " --input --output --error ", .opaque = ""},
    Wrapper{
        .name = "taskset", .values = "", .long_values = "", .opaque = "p", .opaque_long = " --pid ", .positionals = 1},
    Wrapper{.name = "numactl",
            .values = "iwpPmNC",
            .long_values = " --interleave --weighted-interleave --preferred --preferred-many --membind --cpunodebind "
                           "--physcpubind ",
            .opaque = "sH",
            .opaque_long = " --show --hardware "},
    Wrapper{.name = "sudo",
            .values = "ugphCrtTDRU",
            .long_values = " --user --group --prompt --host --close-from --role --type --command-timeout --chdir "
                           "--chroot --other-user ",
            .opaque = "elvKVis",
            .opaque_long = " --edit --list --validate --login --shell ",
            .assigns = true,
            .drops_env = "*",
            .keeps_env = "E"},
    Wrapper{.name = "doas", .values = "uCa", .long_values = "", .opaque = "sL", .drops_env = "*"},
    // Its program is a script or, by -m, a module.
    Wrapper{.name = "python",
            .values = "WX",
            .long_values = " --check-hash-based-pycs ",
            .opaque = "-chV",
            .opaque_long = " --help --version ",
            .names = "m"},
};

bool lists(std::string_view words, std::string_view word) {
    return words.find(' ' + std::string(word) + ' ') != std::string_view::npos;
}

bool is_assignment(std::string_view word) {
    const auto equals = word.find('=');
    return equals != std::string_view::npos && equals > 0 && (word.front() < '0' || word.front() > '9') &&
           std::ranges::all_of(word.substr(0, equals), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
           });
}

/// The words of one wrapper while they are read.
struct Reading {
    const Wrapper& wrapper;
    const Argv& argv;
    std::size_t at;
    bool drops;

    /// Takes one option word with its value. False where what follows cannot be read.
    bool option() {
        const std::string_view word = argv[at++];
        if (word == "-" && wrapper.opaque.find('-') != std::string_view::npos) return false;
        if (word == "-") return drops = true;
        if (word.starts_with("--")) {
            const auto name = word.substr(0, word.find('='));
            if (lists(wrapper.opaque_long, name)) return false;
            if (name == "--ignore-environment") drops = true;
            if (name == "--preserve-env") drops = false;
            if (lists(wrapper.long_values, name) && name.size() == word.size()) ++at;
            return true;
        }
        for (std::size_t i = 1; i < word.size(); ++i) {
            if (wrapper.opaque.find(word[i]) != std::string_view::npos) return false;
            if (wrapper.names.find(word[i]) != std::string_view::npos) return i + 1 == word.size();
            if (wrapper.drops_env.find(word[i]) != std::string_view::npos) drops = true;
            if (wrapper.keeps_env.find(word[i]) != std::string_view::npos) drops = false;
            if (wrapper.values.find(word[i]) == std::string_view::npos) continue;
            if (i + 1 == word.size()) ++at;
            break;
        }
        return true;
    }
};

/// Goes from the wrapper at `out.program` to the word behind it. False where there is none to see.
bool pass(const Wrapper& wrapper, const Argv& argv, Unwrapped& out) {
    Reading reading{wrapper, argv, out.program + 1, wrapper.drops_env == "*"};
    auto positionals = wrapper.positionals;
    bool options = true;
    std::map<std::string, std::string> env;
    for (; reading.at < argv.size();) {
        const auto& word = argv[reading.at];
        if (options && word == "--") {
            options = false;
            ++reading.at;
        } else if (options && word.starts_with('-')) {
            if (!reading.option()) return false;
        } else if (wrapper.assigns && is_assignment(word)) {
            env[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
            ++reading.at;
        } else if (positionals > 0) {
            --positionals;
            ++reading.at;
        } else {
            if (reading.drops) out.drops_env = wrapper.name;
            for (auto& [name, value] : env) out.env[name] = value;
            out.program = reading.at;
            return true;
        }
    }
    return false;
}

/// "/usr/bin/python3.11" → "python".
std::string_view wrapper_name(std::string_view path) {
    const auto name = base_name(path);
    return name.substr(0, name.find_last_not_of("0123456789.") + 1) == "python" ? "python" : name;
}

}  // namespace

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

Unwrapped unwrap(const Argv& argv) {
    Unwrapped out;
    while (out.program < argv.size()) {
        const auto wrapper = std::ranges::find(kWrappers, wrapper_name(argv[out.program]), &Wrapper::name);
        if (wrapper == kWrappers.end() || !pass(*wrapper, argv, out)) break;
    }
    return out;
}

}  // namespace numalease::client
