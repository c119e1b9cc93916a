#include "host/use.hpp"

#include <unistd.h>

#include "host/lines.hpp"
#include "host/process.hpp"

namespace numalease::host {

using model::Errc;
using model::fail;
using model::Micros;
using model::Result;

namespace {

constexpr std::int64_t kSecond = 1'000'000;

std::optional<Micros> micros_of(std::string_view text) {
    const auto number = model::parse_unsigned(text, "microseconds", 1ULL << 62U);
    if (!number) return std::nullopt;
    return Micros(static_cast<std::int64_t>(*number));
}

/// Format: "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345\nfull avg10=…". Source: accounting/psi.rst.
Micros read_pressure(const Root& root, const std::string& path) {
    constexpr std::string_view kTotal = "total=";
    const auto text = root.read(path);
    if (!text) return Micros(0);
    for (const auto line : lines_of(*text))
        if (line.starts_with("some "))
            for (const auto word : words_of(line))
                if (word.starts_with(kTotal)) return micros_of(word.substr(kTotal.size())).value_or(Micros(0));
    return Micros(0);
}

}  // namespace

Result<model::Use> read_cgroup_use(const Root& root, const std::string& cgroup2, const std::string& cgroup) {
    if (cgroup2.empty() || cgroup.empty()) return fail(Errc::unsupported, "no cgroup");
    const auto path = cgroup2 + cgroup;
    const auto text = root.read(path + "/cpu.stat");
    if (!text) return std::unexpected(text.error());
    // Format: "usage_usec 87654\nuser_usec 80000\nsystem_usec 7654\n…". Source: admin-guide/cgroup-v2.rst.
    for (const auto line : lines_of(*text)) {
        const auto words = words_of(line);
        if (words.size() != 2 || words[0] != "usage_usec") continue;
        if (const auto cpu = micros_of(words[1]))
            return model::Use{.cpu = *cpu,
                              .cpu_pressure = read_pressure(root, path + "/cpu.pressure"),
                              .memory_pressure = read_pressure(root, path + "/memory.pressure")};
    }
    return fail(Errc::unsupported, "no usage_usec in " + root.full_path(path + "/cpu.stat"));
}

Result<model::Use> read_process_use(const Root& proc_root, const std::vector<model::Process>& processes) {
    constexpr std::size_t kFirst = 11;  // utime, counted from the state, which is field 3
    constexpr std::size_t kEnd = 15;
    static const auto ticks_per_second = sysconf(_SC_CLK_TCK);
    model::Use out;
    bool found = false;
    for (const auto& process : processes) {
        if (!is_alive(proc_root, process)) continue;
        const auto text = proc_root.read(std::to_string(process.pid) + "/stat");
        const auto end = text ? text->rfind(')') : std::string::npos;
        if (end == std::string::npos) continue;
        const auto words = words_of(std::string_view(*text).substr(end + 1));
        for (std::size_t i = kFirst; i < kEnd && i < words.size(); ++i)
            if (const auto ticks = model::parse_unsigned(words[i], "ticks", 1ULL << 40U))
                out.cpu += Micros(static_cast<std::int64_t>(*ticks) * kSecond / ticks_per_second);
        found = true;
    }
    if (!found) return fail(Errc::io, "none of its processes is there", ESRCH);
    return out;
}

}  // namespace numalease::host
