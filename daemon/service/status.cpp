#include "service/status.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>

#include "service/options.hpp"

namespace numalease::service {

namespace {

constexpr std::array<std::string_view, 5> kRivals{"tuned", "numad", "irqbalance", "auto-cpufreq", "numabalanced"};

/// A knob whose reading is not its prior, or might not be.
bool is_off_prior(const core::Row& row) {
    return row.written.has_value() || row.writing.has_value() || !row.wants.empty() || !row.shares.empty();
}

model::CpuSet offline_cpus(const model::Topology& topology) {
    model::CpuSet out;
    for (const auto& core : topology.cores) out |= core.offline;
    return out;
}

void add_row(model::Dict& out, const core::Row& row) {
    model::Value::Strings holders;
    for (const auto& [id, value] : row.wants) holders.push_back(id);
    model::Dict got;
    for (const auto& [id, share] : row.shares) {
        holders.push_back(id);
        got[id] = share.got;
    }
    out["prior"] = row.prior;
    out["held_by"] = holders;
    if (!got.empty()) out["got"] = got;
    if (!row.stuck.empty()) out["stuck"] = row.stuck;
}

}  // namespace

std::vector<std::string> running_rivals(const host::Root& proc) {
    std::set<std::string> found;
    for (const int pid : proc.numbers(".")) {
        const auto comm = proc.read(std::to_string(pid) + "/comm");
        if (!comm) continue;
        const auto program = model::trim(*comm);
        if (std::ranges::find(kRivals, program) != kRivals.end()) found.emplace(program);
    }
    return {found.begin(), found.end()};
}

model::Dict status_dict(const core::State& state, const About& about, const Site& site, const Machine& machine,
                        Observer& observer, const std::vector<std::string>& rivals) {
    std::map<std::string, std::uint64_t> counts;
    for (const auto& [id, lease] : state.leases) counts[std::string(model::text_of(lease.state))] += 1;
    model::Dict leases;
    for (const auto& [name, count] : counts) leases[name] = count;
    model::Value::Strings off_prior;
    for (const auto& [key, row] : state.ledger)
        if (is_off_prior(row)) off_prior.push_back(key.text());
    auto degraded = site.notes;
    if (!site.config_problem.empty()) degraded.push_back("configuration not used: " + site.config_problem);
    if (!about.journal_works) degraded.push_back("the journal in " + about.runtime_directory + " cannot be written");
    if (machine.cgroup2.empty()) degraded.push_back("no cgroup v2 here: a lease ends with its first process");
    model::Value::Strings confinement;
    if (about.systemd) confinement = {"scope", "unit", "slice"};
    confinement.emplace_back("affinity");
    return {{"version", version()},
            {"pid", static_cast<std::uint64_t>(getpid())},
            {"mode", about.mode},
            {"runtime_dir", about.runtime_directory},
            {"configuration", site.config_file},
            {"scheduling", to_dict(site.config.scheduling)},
            {"confinement", confinement},
            {"degraded", degraded},
            {"rivals", rivals},
            {"leases", leases},
            {"offline_cpus", offline_cpus(observer.topology()).text()},
            {"knobs_off_prior", off_prior},
            {"stopping", state.stopping}};
}

model::Value::Dicts knob_dicts(const core::State& state, Observer& observer) {
    model::Value::Dicts out;
    for (const auto& key : observer.all_knobs()) {
        const auto reading = observer.read(key);
        model::Dict knob{{"knob", key.text()}};
        if (reading.value) {
            knob["value"] = *reading.value;
        } else if (reading.pool) {
            knob["value"] = std::to_string(reading.pool->persistent());
            knob["total"] = reading.pool->total;
            knob["free"] = reading.pool->free;
            knob["surplus"] = reading.pool->surplus;
        } else {
            knob["unsupported"] = reading.error.detail;
        }
        if (const auto row = state.ledger.find(key); row != state.ledger.end()) add_row(knob, row->second);
        out.push_back(std::move(knob));
    }
    return out;
}

}  // namespace numalease::service
