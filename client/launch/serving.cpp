#include "launch/serving.hpp"

#include <algorithm>

#include "engines/engine_words.hpp"

namespace numalease::client {

namespace {

/// The command's engine and its words, seen through wrappers.
struct Seen {
    const model::Engine* engine = nullptr;
    std::size_t program = 0;
    Env env;

    /// The last answer that was given; nothing where the engine has no such option.
    [[nodiscard]] std::optional<Given> given(const std::string& name, const Argv& argv) const {
        const auto option = engine->options.find(name);
        if (option == engine->options.end()) return std::nullopt;
        const auto all = given_by(option->second, argv, after_program(*engine, argv, program), env);
        if (!all.empty()) return all.back();
        return Given{.name = {}, .value = option->second.fallback};
    }
};

std::optional<Seen> see(const policies::Library& library, const Argv& argv, const Env& env) {
    Seen out;
    out.engine = recognise(library, argv, &out.program);
    if (out.engine == nullptr || !is_server(*out.engine, argv, out.program)) return std::nullopt;
    const auto words = unwrap(argv);
    if (words.drops_env.empty()) out.env = env;
    for (const auto& [name, value] : words.env) out.env[name] = value;
    return out;
}

}  // namespace

bool Serving::is_here() const {
    return host.empty() || host == "127.0.0.1" || host == "localhost" || host == "0.0.0.0" || host == "::";
}

std::optional<Serving> serving_of(const policies::Library& library, const Argv& argv, const Env& env) {
    const auto seen = see(library, argv, env);
    if (!seen || seen->engine->ready.empty()) return std::nullopt;
    const auto port = seen->given("port", argv);
    constexpr std::uint64_t kMostPort = 65535;
    const auto number = model::parse_unsigned(port ? port->value : "", "port", kMostPort);
    if (!number || *number == 0) return std::nullopt;
    const auto host = seen->given("host", argv);
    return Serving{.host = host ? host->value : "",
                   .port = static_cast<std::uint16_t>(*number),
                   .ready = seen->engine->ready,
                   .warm = seen->engine->warm};
}

std::optional<std::string> port_refusal(const policies::Library& library, const Argv& argv, const Env& env,
                                        bool expand) {
    const auto seen = see(library, argv, env);
    const auto port = seen ? seen->given("port", argv) : std::nullopt;
    if (!port || port->name.empty()) return std::nullopt;
    const bool differs = port->value.find("+index}") != std::string::npos ||
                         port->value.find("${index}") != std::string::npos ||
                         port->value.find("${node}") != std::string::npos;
    if (expand && differs && port->end != 0) return std::nullopt;
    const auto flag = seen->engine->options.at("port").flags.front();
    const auto base = model::parse_unsigned(port->value, "port", 65535) ? port->value : "port";
    return port->shown() + ": every instance would listen on one port; say --expand before the command, and " + flag +
           " '${" + base + "+index}' in it";
}

Warmth::State Warmth::add(WarmSample sample) {
    // Other files, and pages that the kernel took back, come and go all the time.
    constexpr Bytes kNoise = model::kMiB;
    constexpr std::uint64_t kNoiseFaults = 16;
    ++rounds_;
    step_ = {.seconds = sample.seconds - last_.seconds,
             .major_faults = sample.major_faults - std::min(sample.major_faults, last_.major_faults),
             .resident = sample.resident - std::min(sample.resident, last_.resident)};
    last_ = sample;
    still_ = step_.major_faults <= kNoiseFaults && step_.resident <= kNoise ? still_ + 1 : 0;
    if (still_ >= rule_.still) return State::warm;
    const auto most = std::chrono::duration<double>(rule_.most).count();
    return sample.seconds - start_.seconds >= most ? State::out_of_time : State::going;
}

std::string Warmth::text() const {
    const auto rate = step_.seconds > 0 ? static_cast<double>(step_.resident) / step_.seconds : 0;
    return "round " + std::to_string(rounds_) + ": " + model::bytes_text(last_.resident) + " of files resident, +" +
           model::bytes_text(static_cast<Bytes>(rate)) + "/s, " + std::to_string(step_.major_faults) + " major faults";
}

}  // namespace numalease::client
