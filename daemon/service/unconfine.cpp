#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "host/threads.hpp"
#include "service/confine.hpp"

namespace numalease::service {

// Unsetting AllowedCPUs= alone does not put a unit back: the property reads empty, yet every process keeps the narrow
// mask. So a property without a prior is first set to everything, which is verified, and only then unset.

namespace {

using model::Errc;
using model::Result;

constexpr std::uint64_t kReloadTimeout = 90'000'000;

bool is_gone(const model::Error& error) { return systemd::is_not_loaded(error); }

}  // namespace

model::CpuSet possible_cpus(const host::Root& root, const model::CpuSet& online) {
    const auto text = root.read("sys/devices/system/cpu/possible");
    return text ? model::CpuSet::parse(model::trim(*text)).value_or(online) : online;
}

bool is_own_dropin(std::string_view text, std::string_view property, const std::vector<std::string>& values) {
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
        if (value == "infinity") value.clear();
        if (!value.empty() && std::ranges::find(values, value) == values.end()) return false;
        found = true;
    }
    return found;
}

std::string Confiner::dropin(const std::string& unit, model::UnitProperty property) const {
    // A unit that was itself made at run time (systemd-run) keeps its properties beside its own file.
    for (const std::string directory : {"system.control", "transient"}) {
        auto path =
            "run/systemd/" + directory + '/' + unit + ".d/50-" + std::string(model::row_of(property).name) + ".conf";
        if (machine_.root.exists(path)) return path;
    }
    return {};
}

bool Confiner::dropin_holds(const std::string& unit, model::UnitProperty property,
                            const std::vector<std::string>& values) const {
    const auto path = dropin(unit, property);
    if (path.empty()) return true;
    const auto text = machine_.root.read(path);
    return text && is_own_dropin(*text, model::row_of(property).name, values);
}

void Confiner::unconfine(std::uint64_t op, const model::Lease& lease, const model::Topology& topology) {
    const auto job = std::make_shared<Job>(Job{.op = op,
                                               .lease = lease,
                                               .process = lease.caller.process,
                                               .online = topology.online,
                                               .possible = possible_cpus(machine_.root, topology.online),
                                               .nodes = topology.node_ids(),
                                               .polls_left = kPolls});
    if (!available_ && model::is_unit(lease.confinement.kind))
        return give_up(job, {Errc::io, "systemd does not answer, " + lease.confinement.unit + " stays confined"});
    lower_shield(job, [=, this] { put_back(job); });
}

void Confiner::put_back(const JobPtr& job) {
    const auto& it = job->lease.confinement;
    if (!model::is_unit(it.kind) || !it.prior_known) return restore_masks(job);
    // Compare before restore: what somebody else has set meanwhile is left alone.
    for (const auto& setting : it.settings) {
        if (dropin_holds(it.unit, setting.property, {setting.value, setting.prior, everything(*job, setting.property)}))
            job->restored.push_back(setting);
        else
            job->note += (job->note.empty() ? "" : "; ") + std::string(model::row_of(setting.property).name) + " of " +
                         it.unit + " was set by somebody else meanwhile and is left alone";
    }
    if (job->restored.empty()) return restore_masks(job);
    job->polls_left = kPolls;
    widen(job);
}

/// What a property without a prior is set to first.
std::string Confiner::everything(const Job& job, model::UnitProperty property) {
    switch (property) {
        case model::UnitProperty::cpus: return job.possible.text();  // the same before and after a hotplug
        case model::UnitProperty::nodes: return job.nodes.text();
        case model::UnitProperty::memory: break;
    }
    return {};
}

void Confiner::widen(const JobPtr& job) {
    const auto& unit = job->lease.confinement.unit;
    systemd::Settings settings;
    for (const auto& it : job->restored)
        settings.emplace_back(it.property, it.prior.empty() ? everything(*job, it.property) : it.prior);
    set_properties(unit, settings, [=, this](Result<sd_bus_message*> reply) {
        if (!reply && is_gone(reply.error())) return unlink_ours(job);
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
    const auto* cpus = model::find_setting(job->restored, model::UnitProperty::cpus);
    model::IndexSet target;
    if (cpus != nullptr) target = model::CpuSet::parse(cpus->prior).value_or(model::CpuSet());
    if (cpus != nullptr && target.empty()) target = job->online - core::shielded_cpus(state_());
    // A slice above may bound the unit more tightly; then the deadline ends the wait, and nothing is lost by it.
    if (!facts->effective_cpus.covers(target) && job->polls_left-- > 0)
        return later_.after(kPollUsec, [=, this] { await_widened(job); });
    unset(job);
}

void Confiner::unset(const JobPtr& job) {
    systemd::Settings settings;
    for (const auto& it : job->restored)
        if (it.prior.empty() && model::row_of(it.property).mask_limit != 0) settings.emplace_back(it.property, "");
    if (settings.empty()) return unlink_ours(job);
    set_properties(job->lease.confinement.unit, settings, [=, this](Result<sd_bus_message*> reply) {
        if (!reply && !is_gone(reply.error()))
            return give_up(
                job,
                {Errc::io, job->lease.confinement.unit + ": its properties could not be unset: " + reply.error().detail,
                 reply.error().err});
        unlink_ours(job);
    });
}

void Confiner::restore_masks(const JobPtr& job) {
    const auto masks =
        core::masks_behind_shields(job->lease.confinement.masks, job->masks_now, core::shielded_cpus(state_()));
    (void)host::restore_thread_masks(machine_.root, machine_.proc, machine_.cgroup2, masks, "");
    finish(job);
}

/// Exactly our own files, and only while their text is ours. Never RevertUnitFiles, which deletes the administrator's
/// too.
void Confiner::unlink_ours(const JobPtr& job) {
    const auto& unit = job->lease.confinement.unit;
    for (const auto& it : job->restored) {
        if (it.source == model::PriorSource::runtime) continue;  // somebody else's file, as it was
        const auto path = dropin(unit, it.property);
        if (path.empty() || !dropin_holds(unit, it.property, {it.value, it.prior, everything(*job, it.property)}))
            continue;
        job->unlinked = unlinkat(machine_.root.fd(), path.c_str(), 0) == 0 || job->unlinked;
        unlinkat(machine_.root.fd(), path.substr(0, path.rfind('/')).c_str(),
                 AT_REMOVEDIR);  // fails while others are there
    }
    if (!job->unlinked || job->lease.confinement.reload_was_due) return restore_masks(job);
    read_facts(
        unit,
        [=, this](const systemd::UnitFacts& facts) { facts.needs_reload ? await_reload(job) : restore_masks(job); },
        [=, this](const model::Error&) { restore_masks(job); });  // not loaded: it is read anew when it starts
}

/// systemd holds on to a drop-in that it has read. One reload serves all whose files were gone when it began.
void Confiner::await_reload(const JobPtr& job) {
    unloaded_.push_back(job);
    if (!reloading_) send_reload();
}

void Confiner::send_reload() {
    auto batch = std::exchange(unloaded_, {});
    const auto end = [=, this](const std::string& problem) {
        reloading_ = false;
        for (const auto& job : batch) {
            if (!problem.empty()) job->note = "systemd still wants a daemon-reload: " + problem;
            restore_masks(job);
        }
        if (!reloading_ && !unloaded_.empty()) send_reload();
    };
    auto call = systemd::reload(bus_);
    if (!call) return end(call.error().detail);
    reloading_ = true;
    later_.call(bus_, std::move(*call), kReloadTimeout,
                [end](Result<sd_bus_message*> reply) { end(reply ? "" : reply.error().detail); });
}

}  // namespace numalease::service
