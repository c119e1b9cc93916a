#include "service/confine.hpp"

#include <sys/resource.h>

#include <cerrno>

#include "host/process.hpp"
#include "service/log.hpp"
#include "service/systemd.hpp"

namespace numalease::service {

namespace {

using model::ConfinementKind;
using model::Errc;
using model::Result;

constexpr std::uint64_t kPollUsec = 2'000;
constexpr std::uint64_t kPolls = 1'000;             ///< 2 s together
constexpr std::uint64_t kPollsForController = 100;  ///< 200 ms
constexpr std::uint64_t kJobTimeout = 30'000'000;
constexpr model::Bytes kSmallUnit = 256 * model::kMiB;  ///< above, PID 1 itself stalls while pages migrate

std::string scope_of(const model::Lease& lease) {
    return lease.confinement.unit.empty() ? "numalease-" + lease.id + ".scope" : lease.confinement.unit;
}

}  // namespace

Confiner::Confiner(Later& later, const Machine& machine, sd_bus* bus, std::function<void(core::Done)> done)
    : later_(later), machine_(machine), bus_(bus), done_(std::move(done)) {}

void Confiner::start() {
    if (bus_ == nullptr) return;
    available_ = systemd::is_there(bus_);
    sd_bus_slot* slot = nullptr;
    sd_bus_match_signal(bus_, &slot, systemd::kService, systemd::kPath, systemd::kManager, "JobRemoved", on_job_removed,
                        this);
    removed_slot_.reset(slot);
    slot = nullptr;
    sd_bus_add_match(bus_, &slot,
                     "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',"
                     "arg0='org.freedesktop.systemd1'",
                     on_owner_changed, this);
    owner_slot_.reset(slot);
    if (available_) systemd::subscribe(later_, bus_);
}

int Confiner::on_owner_changed(sd_bus_message* message, void* data, sd_bus_error* /*error*/) {
    auto* self = static_cast<Confiner*>(data);
    const char* name = nullptr;
    const char* before = nullptr;
    const char* now = nullptr;
    if (sd_bus_message_read(message, "sss", &name, &before, &now) < 0) return 0;
    self->available_ = *now != '\0';
    if (self->available_) systemd::subscribe(self->later_, self->bus_);
    return 0;
}

void Confiner::finish(const JobPtr& job) {
    done_({.op = job->op, .confinement = job->lease.confinement, .note = job->note});
}

void Confiner::give_up(const JobPtr& job, model::Error error) {
    starting_.erase(scope_of(job->lease));
    done_({.op = job->op, .error = std::move(error), .confinement = job->lease.confinement, .note = job->note});
}

// ── Inspect ──────────────────────────────────────────────────────────────────────────────────────────────────────

void Confiner::read_property(const JobPtr& job, const std::string& path, const char* property,
                             const std::function<void(std::vector<std::uint8_t>)>& next) {
    const bool slice = job->lease.confinement.kind == ConfinementKind::slice;
    auto call = systemd::get_property(bus_, path, property,
                                      slice ? "org.freedesktop.systemd1.Slice" : "org.freedesktop.systemd1.Service");
    if (!call) return give_up(job, call.error());
    later_.call(bus_, std::move(*call), 0, [=, this](Result<sd_bus_message*> reply) {
        if (!reply) return give_up(job, reply.error());
        auto mask = systemd::read_mask(*reply);
        if (!mask) return give_up(job, mask.error());
        next(std::move(*mask));
    });
}

void Confiner::inspect(std::uint64_t op, const model::Lease& lease) {
    const auto job = std::make_shared<Job>(Job{.op = op, .lease = lease});
    auto call = systemd::get_unit(bus_, lease.confinement.unit);
    if (!call) return give_up(job, call.error());
    later_.call(bus_, std::move(*call), 0, [=, this](Result<sd_bus_message*> reply) {
        const char* path = nullptr;
        if (!reply) return give_up(job, reply.error());
        if (sd_bus_message_read(*reply, "o", &path) < 0)
            return give_up(job, {Errc::io, "systemd named no object for " + job->lease.confinement.unit});
        const std::string unit_path = path;
        read_property(job, unit_path, "AllowedCPUs", [=, this](const std::vector<std::uint8_t>& cpus) {
            read_property(job, unit_path, "AllowedMemoryNodes", [=, this](const std::vector<std::uint8_t>& nodes) {
                job->lease.confinement.prior_known = true;
                job->lease.confinement.prior_cpus = model::IndexSet::from_bytes(cpus).text();
                job->lease.confinement.prior_nodes = model::IndexSet::from_bytes(nodes).text();
                job->lease.confinement.kind == ConfinementKind::slice ? finish(job) : read_main_pid(job, unit_path);
            });
        });
    });
}

/// A lease of a service's main process is the service's: it ends when the unit is empty. Where another process of the
/// unit asks (a cron job, a script in a service), the lease is that process's own, or it would never end.
void Confiner::read_main_pid(const JobPtr& job, const std::string& path) {
    auto call = systemd::get_property(bus_, path, "MainPID");
    if (!call) return give_up(job, call.error());
    later_.call(bus_, std::move(*call), 0, [=, this](Result<sd_bus_message*> reply) {
        std::uint32_t pid = 0;
        if (reply && sd_bus_message_read(*reply, "v", "u", &pid) >= 0)
            job->lease.confinement.whole_unit = static_cast<int>(pid) == job->lease.caller.process.pid;
        finish(job);
    });
}

// ── Confine ──────────────────────────────────────────────────────────────────────────────────────────────────────

void Confiner::confine(std::uint64_t op, const model::Lease& lease, const model::Process& process) {
    const auto job = std::make_shared<Job>(Job{.op = op, .lease = lease, .process = process, .polls_left = kPolls});
    const bool joins = lease.state == model::LeaseState::active;
    switch (lease.confinement.kind) {
        case ConfinementKind::scope: return joins ? attach(job) : start_scope(job);
        case ConfinementKind::unit: return joins ? verify(job) : set_unit(job);
        case ConfinementKind::slice: return joins ? join_slice(job) : set_slice(job);
        case ConfinementKind::affinity:
        case ConfinementKind::none: return track(job);
    }
}

void Confiner::start_scope(const JobPtr& job) {
    const auto unit = scope_of(job->lease);
    job->lease.confinement.unit = unit;
    job->sets_nodes = true;
    auto call = systemd::start_scope(bus_, unit, job->lease, job->process.pid);
    if (!call) return give_up(job, call.error());
    starting_[unit] = job;
    later_.call(bus_, std::move(*call), kJobTimeout, [=, this](Result<sd_bus_message*> reply) {
        if (!reply && starting_.contains(unit))
            give_up(job, {Errc::io, "systemd did not start " + unit + ": " + reply.error().detail, reply.error().err});
    });
    later_.after(kJobTimeout, [=, this] {
        const auto found = starting_.find(unit);
        if (found != starting_.end() && found->second == job)
            give_up(job, {Errc::io, "systemd did not finish starting " + unit + " in 30 s"});
    });
}

int Confiner::on_job_removed(sd_bus_message* message, void* data, sd_bus_error* /*error*/) {
    auto* self = static_cast<Confiner*>(data);
    std::uint32_t id = 0;
    const char* path = nullptr;
    const char* unit = nullptr;
    const char* result = nullptr;
    if (sd_bus_message_read(message, "uoss", &id, &path, &unit, &result) < 0) return 0;
    const auto found = self->starting_.find(unit);
    if (found == self->starting_.end()) return 0;
    const JobPtr job = found->second;
    self->starting_.erase(found);
    if (std::string_view(result) != "done")
        self->give_up(job, {Errc::io, std::string("systemd could not start ") + unit + ": " + result});
    else
        self->verify(job);
    return 0;
}

void Confiner::attach(const JobPtr& job) {
    auto call = systemd::attach_process(bus_, scope_of(job->lease), job->process.pid);
    if (!call) return give_up(job, call.error());
    later_.call(bus_, std::move(*call), kJobTimeout, [=, this](Result<sd_bus_message*> reply) {
        if (!reply)
            return give_up(job,
                           {Errc::io, "systemd did not move the process: " + reply.error().detail, reply.error().err});
        verify(job);
    });
}

void Confiner::set_unit(const JobPtr& job) {
    auto& confinement = job->lease.confinement;
    Properties properties{{"AllowedCPUs", job->lease.placement.cpus.bytes()}};
    const auto cgroup = host::read_cgroup(machine_.proc, job->process.pid);
    job->sets_nodes = !cgroup || unit_is_small(*cgroup);
    if (job->sets_nodes)
        properties.emplace_back("AllowedMemoryNodes", job->lease.placement.nodes.bytes());
    else
        job->note = "memory nodes of " + confinement.unit + " left alone: it is larger than 256M already";
    set_properties(confinement.unit, properties, [=, this](Result<sd_bus_message*> reply) {
        if (reply) return verify(job);
        give_up(job, {Errc::io, "systemd did not confine " + job->lease.confinement.unit + ": " + reply.error().detail,
                      reply.error().err});
    });
}

bool Confiner::unit_is_small(const std::string& cgroup) const {
    const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, cgroup);
    return !facts || facts->memory_current < kSmallUnit;
}

void Confiner::track(const JobPtr& job) {
    auto& confinement = job->lease.confinement;
    confinement.kind = ConfinementKind::affinity;
    confinement.effective_cpus = job->lease.placement.cpus;
    confinement.effective_nodes = job->lease.placement.nodes;
    if (!machine_.is_real() || machine_.cgroup2.empty() || available_) return finish(job);
    if (!confinement.cgroup.empty()) {
        const auto moved = machine_.root.write(machine_.cgroup2 + confinement.cgroup + "/cgroup.procs",
                                               std::to_string(job->process.pid));
        if (!moved) job->note = "the process that joined is not tracked: " + moved.error().detail;
        return finish(job);
    }
    auto made = host::make_tracking_cgroup(machine_.root, machine_.cgroup2, job->lease.caller.cgroup,
                                           "numalease-" + job->lease.id, job->process.pid);
    if (made)
        confinement.cgroup = std::move(*made);
    else
        job->note = "the lease ends with its first process: " + made.error().detail;
    raise_memlock(*job);
    finish(job);
}

/// Property changes take effect after the call has returned, so the effective file is looked at until it says so.
void Confiner::verify(const JobPtr& job) {
    auto& it = job->lease.confinement;
    const auto cgroup = host::read_cgroup(machine_.proc, job->process.pid);
    if (!cgroup || !host::is_alive(machine_.proc, job->process))
        return give_up(job, {Errc::io, "the process is gone", ESRCH});
    const std::string& path = *cgroup;
    const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, path);
    const bool bare = !facts || facts->effective_cpus.empty();
    const bool asked = !bare && job->lease.placement.cpus.covers(facts->effective_cpus) &&
                       (!job->sets_nodes ||
                        (!facts->effective_nodes.empty() && job->lease.placement.nodes.covers(facts->effective_nodes)));
    const bool inside = it.kind != ConfinementKind::scope || path.ends_with('/' + it.unit);
    // Where there is no cpuset file yet, the controller may be on its way; it is given less time than a value is.
    const auto used = kPolls - job->polls_left;
    if ((!asked || !inside) && used < (bare && inside ? kPollsForController : kPolls)) {
        --job->polls_left;
        return later_.after(kPollUsec, [=, this] { verify(job); });
    }
    if (!inside) return give_up(job, {Errc::io, "the process is in " + path + ", not in " + it.unit});
    if (it.kind != ConfinementKind::unit || it.whole_unit) it.cgroup = path;
    if (bare && it.kind == ConfinementKind::unit)
        return give_up(job,
                       {Errc::unsupported, "no cpuset controller in " + path + ": " + it.unit + " is not confined"});
    if (bare) {
        it.kind = ConfinementKind::affinity;
        it.effective_cpus = job->lease.placement.cpus;
        it.effective_nodes = job->lease.placement.nodes;
        it.why = "no cpuset controller in " + path + ": only the processes' own affinity holds them";
    } else if (!asked) {
        return give_up(job,
                       {Errc::io, it.unit + " has CPUs " + facts->effective_cpus.text() + " and memory nodes " +
                                      facts->effective_nodes.text() + " although " + job->lease.placement.cpus.text() +
                                      " and " + job->lease.placement.nodes.text() + " were set"});
    } else {
        it.effective_cpus = facts->effective_cpus;
        it.effective_nodes = facts->effective_nodes;
    }
    raise_memlock(*job);
    finish(job);
}

/// Scopes refuse LimitMEMLOCK=, so the limit of the verified process is raised to what it was promised.
/// Source: getrlimit(2); CASES 34.
void Confiner::raise_memlock(const Job& job) const {
    model::Bytes promised = 0;
    for (const auto& [node, bytes] : job.lease.placement.promise) promised += bytes;
    rlimit limit{};
    if (promised == 0 || !host::is_alive(machine_.proc, job.process)) return;
    if (prlimit(job.process.pid, RLIMIT_MEMLOCK, nullptr, &limit) != 0 || limit.rlim_cur >= promised) return;
    limit.rlim_cur = promised;
    if (limit.rlim_max < promised) limit.rlim_max = promised;
    if (prlimit(job.process.pid, RLIMIT_MEMLOCK, &limit, nullptr) != 0)
        log::event(log::Level::warning, log::kConfinement, "the memory-lock limit could not be raised",
                   {{"LEASE", job.lease.id}, {"ERRNO", std::to_string(errno)}});
}

void Confiner::forget(const model::Lease& lease) const {
    if (lease.confinement.kind != ConfinementKind::affinity || lease.confinement.cgroup.empty()) return;
    if (!lease.confinement.cgroup.ends_with("/numalease-" + lease.id)) return;
    (void)host::remove_tracking_cgroup(machine_.root, machine_.cgroup2, lease.confinement.cgroup);
}

void Confiner::set_properties(const std::string& unit, const Properties& properties, Next next) {
    auto call = systemd::set_properties(bus_, unit, properties);
    if (!call) return next(std::unexpected(call.error()));
    later_.call(bus_, std::move(*call), kJobTimeout, std::move(next));
}

}  // namespace numalease::service
