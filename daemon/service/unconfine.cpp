#include <fcntl.h>
#include <unistd.h>

#include "host/process.hpp"
#include "service/confine.hpp"
#include "service/systemd.hpp"

namespace numalease::service {

// Unsetting AllowedCPUs= alone does not put a unit back: the property reads empty, yet every process keeps the narrow
// mask. So a property without a prior is first set to everything, which is verified, and only then unset.

namespace {

using model::Errc;
using model::Result;

constexpr std::uint64_t kPollUsec = 2'000;
constexpr std::uint64_t kPolls = 1'000;

model::IndexSet parse_prior(const std::string& text, unsigned limit) {
    return model::IndexSet::parse_list(text, limit).value_or(model::IndexSet());
}

bool is_gone(const model::Error& error) { return systemd::is_not_loaded(error); }

}  // namespace

bool is_own_dropin(std::string_view text, std::string_view property, std::string_view ours) {
    bool found = false;
    while (!text.empty()) {
        const auto end = text.find('\n');
        const auto line = model::trim(text.substr(0, end));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        if (line.empty() || line.starts_with('#') || line.starts_with(';')) continue;
        if (line.starts_with('[') && line.ends_with(']')) continue;
        if (!line.starts_with(property) || line.substr(property.size(), 1) != "=") return false;
        auto value = std::string(line.substr(property.size() + 1));
        for (char& c : value)
            if (c == ' ') c = ',';  // systemd writes "0-3 8"
        if (!value.empty() && value != ours) return false;
        found = true;
    }
    return found;
}

std::string Confiner::dropin(const std::string& unit, const char* property) const {
    // A unit that was itself made at run time (systemd-run) keeps its properties beside its own file.
    for (const std::string directory : {"system.control", "transient"}) {
        auto path = "run/systemd/" + directory + '/' + unit + ".d/50-" + property + ".conf";
        if (machine_.root.exists(path)) return path;
    }
    return {};
}

void Confiner::unconfine(std::uint64_t op, const model::Lease& lease, const model::Topology& topology) {
    const auto job = std::make_shared<Job>(Job{.op = op,
                                               .lease = lease,
                                               .process = lease.caller.process,
                                               .online = topology.online,
                                               .nodes = topology.node_ids(),
                                               .polls_left = kPolls});
    if (!available_)
        return give_up(job, {Errc::io, "systemd does not answer, " + lease.confinement.unit + " stays confined"});
    widen(job);
}

void Confiner::widen(const JobPtr& job) {
    const auto& it = job->lease.confinement;
    const auto prior_cpus = parse_prior(it.prior_cpus, model::kCpuLimit);
    const auto prior_nodes = parse_prior(it.prior_nodes, model::kNodeLimit);
    Properties properties{{"AllowedCPUs", prior_cpus.empty() ? job->online.bytes() : prior_cpus.bytes()}};
    if (!dropin(it.unit, "AllowedMemoryNodes").empty() || !prior_nodes.empty())
        properties.emplace_back("AllowedMemoryNodes", prior_nodes.empty() ? job->nodes.bytes() : prior_nodes.bytes());
    set_properties(it.unit, properties, [=, this](Result<sd_bus_message*> reply) {
        if (!reply && is_gone(reply.error())) return unset(job);
        if (!reply)
            return give_up(job,
                           {Errc::io, job->lease.confinement.unit + " could not be put back: " + reply.error().detail,
                            reply.error().err});
        await_widened(job);
    });
}

void Confiner::await_widened(const JobPtr& job) {
    const auto& it = job->lease.confinement;
    // A confinement that never came to its end has not read its cgroup: a unit's is the caller's own.
    const auto& cgroup = it.cgroup.empty() ? job->lease.caller.cgroup : it.cgroup;
    const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, cgroup);
    if (!facts) return unset(job);  // no processes, nothing that could stay narrow
    const auto prior = parse_prior(it.prior_cpus, model::kCpuLimit);
    const auto& target = prior.empty() ? static_cast<const model::IndexSet&>(job->online) : prior;
    // A slice above may bound the unit more tightly; then the deadline ends the wait, and nothing is lost by it.
    if (!facts->effective_cpus.covers(target) && job->polls_left-- > 0)
        return later_.after(kPollUsec, [=, this] { await_widened(job); });
    unset(job);
}

void Confiner::unset(const JobPtr& job) {
    const auto& it = job->lease.confinement;
    Properties properties;
    if (it.prior_cpus.empty()) properties.emplace_back("AllowedCPUs", std::vector<std::uint8_t>());
    if (it.prior_nodes.empty() && !dropin(it.unit, "AllowedMemoryNodes").empty())
        properties.emplace_back("AllowedMemoryNodes", std::vector<std::uint8_t>());
    const auto unlink_ours = [=, this] {
        const auto& confinement = job->lease.confinement;
        if (confinement.prior_cpus.empty())
            unlink_dropin(confinement.unit, "AllowedCPUs", job->lease.placement.cpus.text());
        if (confinement.prior_nodes.empty())
            unlink_dropin(confinement.unit, "AllowedMemoryNodes", job->lease.placement.nodes.text());
        finish(job);
    };
    if (properties.empty()) return unlink_ours();
    set_properties(it.unit, properties, [=, this](Result<sd_bus_message*> reply) {
        if (!reply && !is_gone(reply.error()))
            return give_up(
                job,
                {Errc::io, job->lease.confinement.unit + ": its properties could not be unset: " + reply.error().detail,
                 reply.error().err});
        unlink_ours();
    });
}

/// Exactly our own file, and only while its text is ours. Never RevertUnitFiles, which deletes the administrator's too.
void Confiner::unlink_dropin(const std::string& unit, const char* property, const std::string& ours) const {
    const auto path = dropin(unit, property);
    if (path.empty()) return;
    const auto text = machine_.root.read(path);
    if (!text || !is_own_dropin(*text, property, ours)) return;
    unlinkat(machine_.root.fd(), path.c_str(), 0);
    unlinkat(machine_.root.fd(), path.substr(0, path.rfind('/')).c_str(),
             AT_REMOVEDIR);  // fails while others are there
}

}  // namespace numalease::service
