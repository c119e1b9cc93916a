#include "model/use.hpp"

#include <cmath>

namespace numalease::model {

namespace {

std::uint64_t number(Micros time) { return static_cast<std::uint64_t>(time.count()); }
Micros micros(const Dict& dict, std::string_view key) {
    return Micros(static_cast<std::int64_t>(get_number(dict, key)));
}

}  // namespace

Dict to_dict(const Use& use) {
    return {{"at_usec", number(use.at)},
            {"cpu_usec", number(use.cpu)},
            {"cpu_pressure_usec", number(use.cpu_pressure)},
            {"memory_pressure_usec", number(use.memory_pressure)}};
}

Use use_from_dict(const Dict& dict) {
    return {.at = micros(dict, "at_usec"),
            .cpu = micros(dict, "cpu_usec"),
            .cpu_pressure = micros(dict, "cpu_pressure_usec"),
            .memory_pressure = micros(dict, "memory_pressure_usec")};
}

Use since(const Use& before, const Use& now) {
    const auto risen = [](Micros from, Micros to) { return to < from ? to : to - from; };
    return {.at = now.at,
            .cpu = risen(before.cpu, now.cpu),
            .cpu_pressure = risen(before.cpu_pressure, now.cpu_pressure),
            .memory_pressure = risen(before.memory_pressure, now.memory_pressure)};
}

std::optional<std::uint64_t> busy_permille(Micros cpu, Micros elapsed, unsigned cpus) {
    constexpr double kPermille = 1000;
    if (elapsed.count() <= 0 || cpus == 0) return std::nullopt;
    const auto share = static_cast<double>(cpu.count()) / (static_cast<double>(elapsed.count()) * cpus);
    return static_cast<std::uint64_t>(std::llround(share * kPermille));
}

}  // namespace numalease::model
