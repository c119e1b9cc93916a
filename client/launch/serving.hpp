#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engines/engine.hpp"
#include "where/numa_maps.hpp"

/// Servers: where one answers, whether several can, and when one is warm. Pure.
namespace numalease::client {

/// What is known of a command as a server.
struct Serving {
    std::string host;  ///< as it is told, or the engine's own
    std::uint16_t port = 0;
    std::string ready;  ///< "GET /health"
    std::string warm;   ///< "POST /completion {…${round}…}"; empty: none is known

    /// Whether it can be asked at 127.0.0.1.
    [[nodiscard]] bool is_here() const;
    bool operator==(const Serving&) const = default;
};

/// `argv` and `env` as the command will have them. Nothing where it is no server of a known engine, or does not say in
/// a way that is known when it is ready.
std::optional<Serving> serving_of(const policies::Library& library, const Argv& argv, const Env& env);

/// Why several instances of a command cannot run at a time, on one line with the way out: all would be told one port.
std::optional<std::string> port_refusal(const policies::Library& library, const Argv& argv, const Env& env,
                                        bool expand);

/// A look at a process that is being warmed.
struct WarmSample {
    double seconds = 0;              ///< since anything
    std::uint64_t major_faults = 0;  ///< of all its threads
    Bytes resident = 0;              ///< of files
};

/// Whether generating still brings something of the model into memory.
class Warmth {
public:
    enum class State { going, warm, out_of_time };

    Warmth(model::Warming rule, WarmSample start) : rule_(rule), start_(start), last_(start) {}

    /// One round later.
    State add(WarmSample sample);

    [[nodiscard]] unsigned rounds() const { return rounds_; }
    /// "round 3: 12G of files resident, +120M/s, 3012 major faults"
    [[nodiscard]] std::string text() const;

private:
    model::Warming rule_;
    WarmSample start_;
    WarmSample last_;
    WarmSample step_;  ///< what the last round brought
    unsigned rounds_ = 0;
    unsigned still_ = 0;
};

}  // namespace numalease::client
