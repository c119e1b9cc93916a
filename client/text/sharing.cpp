#include "text/sharing.hpp"

#include <algorithm>

#include "model/units.hpp"
#include "text/output.hpp"

namespace numalease::client {

using model::Dict;
using model::get_dict;
using model::get_flag;
using model::get_number;
using model::get_text;

namespace {

constexpr std::uint64_t kSecond = 1'000'000;

/// Whole seconds.
std::string duration(std::uint64_t usec) {
    constexpr std::uint64_t kMost = 1ULL << 62U;  // whoever wrote it
    return model::duration_text(model::Micros(static_cast<std::int64_t>(std::min(usec, kMost) / kSecond * kSecond)));
}

std::string percent(const Dict& use) {
    const auto found = use.find("busy_permille");
    if (found == use.end()) return "-";
    constexpr std::uint64_t kTenth = 10;
    return (get_flag(use, "at_least") ? ">" : "") +
           std::to_string((get_number(use, "busy_permille") + kTenth / 2) / kTenth) + '%';
}

std::string or_dash(std::string text) { return text.empty() ? "-" : std::move(text); }

}  // namespace

std::string busy_text(const Dict& lease) { return percent(get_dict(lease, "use")); }

std::string use_text(const Dict& lease) {
    const auto use = get_dict(lease, "use");
    if (use.empty()) return {};
    std::string waited;
    for (const auto& [key, what] :
         {std::pair("cpu_pressure_usec", "CPUs"), std::pair("memory_pressure_usec", "memory")})
        if (const auto time = get_number(use, key); time >= kSecond)
            waited += (waited.empty() ? "; waited " : ", ") + duration(time) + " for " + what;
    return percent(use) + " busy" + waited;
}

std::string left_text(const Dict& lease) {
    return lease.contains("left_usec") ? duration(get_number(lease, "left_usec")) : "-";
}

std::string line_text(const Dict& lease) {
    const auto position = get_number(lease, "position");
    const auto estimate = get_text(lease, "estimate");
    if (position == 0) return estimate;
    return "number " + std::to_string(position) + " in line" + (estimate.empty() ? "" : ", " + estimate);
}

std::string class_text(const Dict& lease) {
    const auto name = get_text(get_dict(lease, "request"), "class", "normal");
    return name == "normal" ? "" : name;
}

std::vector<std::string> squatter_lines(const model::Value::Dicts& squatters) {
    constexpr std::size_t kMost = 5;
    std::vector<std::string> out;
    for (const auto& it : squatters) {
        if (out.size() == kMost) {
            out.push_back("and " + std::to_string(squatters.size() - kMost) + " more without a lease on leased CPUs");
            break;
        }
        out.push_back(get_text(it, "command") + " (pid " + std::to_string(get_number(it, "pid")) + ", " +
                      user_name(get_number(it, "uid")) + ") without a lease on CPUs " + get_text(it, "cpus") + " of " +
                      get_text(it, "lease") + ": " + std::to_string(get_number(it, "percent")) + "% of a CPU");
    }
    return out;
}

std::string history_text(const model::Value::Dicts& entries, std::uint64_t now, std::size_t width) {
    if (entries.empty()) return "no lease has ended yet\n";
    Table rows{{"ID", "USER", "CLASS", "CORES", "NODES", "ENDED", "WAITED", "RAN", "BUSY", "COMMAND", "HOW IT ENDED"}};
    for (const auto& it : entries) {
        const auto ended = get_number(it, "ended_usec");
        const auto cores = get_number(it, "cores");
        rows.push_back({get_text(it, "id"), user_name(get_number(it, "uid")), or_dash(get_text(it, "class")),
                        cores == 0 ? "-" : std::to_string(cores), or_dash(get_text(it, "nodes")),
                        duration(now > ended ? now - ended : 0) + " ago", duration(get_number(it, "waited_usec")),
                        it.contains("ran_usec") ? duration(get_number(it, "ran_usec")) : "-", percent(it),
                        get_text(it, "command"), get_text(it, "state") + ": " + get_text(it, "reason")});
    }
    return table_text(rows, width);
}

}  // namespace numalease::client
