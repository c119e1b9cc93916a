#include "service/confine.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "host/partition.hpp"
#include "host/threads.hpp"
#include "service/daemon.hpp"
#include "service/log.hpp"
#include "service/use.hpp"

namespace numalease::service {

namespace {

using model::ConfinementKind;
using model::Errc;
using model::Result;

constexpr std::uint64_t kPollsForController = 100;  ///< 200 ms
constexpr std::uint64_t kJobTimeout = 30'000'000;
/// systemd takes them one after the other: the last of hundreds would not be started within the time a call has.
constexpr std::size_t kScopesAtOnce = 16;

std::string scope_of(const model::Lease& lease) {
    return lease.confinement.unit.empty() ? "numalease-" + lease.id + ".scope" : lease.confinement.unit;
}

}  // namespace

Confiner::Confiner(Later& later, const Machine& machine, sd_bus* bus, std::function<const core::State&()> state,
                   std::function<void(core::Done)> done)
    : later_(later), machine_(machine), bus_(bus), state_(std::move(state)), done_(std::move(done)) {}

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
    if (job->lease.state == model::LeaseState::preparing)
        job->lease.confinement.use_before = read_use(job->lease, machine_).value_or(model::Use{.at = now().boot});
    done_({.op = job->op, .confinement = job->lease.confinement, .note = job->note});
}

void Confiner::give_up(const JobPtr& job, model::Error error) {
    done_({.op = job->op, .error = std::move(error), .confinement = job->lease.confinement, .note = job->note});
}

/// From the loop, for what is known at once: whoever asks to join is registered only when `confine` has returned.
void Confiner::refuse(const JobPtr& job, const model::Error& error) {
    later_.after(0, [=, this] { give_up(job, error); });
}

// ── Inspect ──────────────────────────────────────────────────────────────────────────────────────────────────────

void Confiner::read_facts(const std::string& unit, const std::function<void(const systemd::UnitFacts&)>& next,
                          const std::function<void(model::Error)>& otherwise) {
    auto call = systemd::get_unit(bus_, unit);
    if (!call) return otherwise(call.error());
    later_.call(bus_, std::move(*call), 0, [=, this](Result<sd_bus_message*> reply) {
        const char* path = nullptr;
        if (!reply) return otherwise(reply.error());
        if (sd_bus_message_read(*reply, "o", &path) < 0)
            return otherwise({Errc::io, "systemd named no object for " + unit});
        auto question = systemd::get_facts(bus_, path);
        if (!question) return otherwise(question.error());
        later_.call(bus_, std::move(*question), 0, [=](Result<sd_bus_message*> answer) {
            if (!answer) return otherwise(answer.error());
            const auto facts = systemd::read_facts(*answer);
            facts ? next(*facts) : otherwise(facts.error());
        });
    });
}

/// Every thread there is, for each of many leases that begin together: what was seen a moment ago is taken again for
/// four times as long as the look took, so that no more than a fifth of the time goes into looking.
const host::ThreadMasks& Confiner::thread_masks() {
    const auto begun = now().boot;
    if (begun >= masks_good_until_) {
        masks_ = host::read_thread_masks(machine_.root, machine_.proc, machine_.cgroup2);
        const auto end = now().boot;
        constexpr auto kAsLongAs = 4;
        masks_good_until_ = end + kAsLongAs * (end - begun);
    }
    return masks_;
}

void Confiner::read_masks(const JobPtr& job) {
    host::ThreadMasks masks;
    if (machine_.is_real() && host::loses_thread_masks(machine_.root)) masks = thread_masks();
    add_masks_of_shields(job->lease, masks);
    job->lease.confinement.masks = std::move(masks.kept);
    if (masks.left_out == 0) return;
    job->note = "more than " + std::to_string(host::kMostThreadMasks) +
                " threads have an affinity of their own: that of " + std::to_string(masks.left_out) +
                " others may be lost and is not put back";
}

/// A lease of a service's main process is the service's: it ends when the unit is empty. Where another process of the
/// unit asks (a cron job, a script in a service), the lease is that process's own, or it would never end.
void Confiner::inspect(std::uint64_t op, const model::Lease& lease) {
    const auto job = std::make_shared<Job>(Job{.op = op, .lease = lease, .polls_left = kShieldPolls});
    await_room_for_shield(job, [=, this] { inspect_unit(job); });
}

void Confiner::inspect_unit(const JobPtr& job) {
    if (job->lease.confinement.kind == ConfinementKind::scope) {  // not there yet
        read_masks(job);
        return finish(job);
    }
    read_facts(
        job->lease.confinement.unit,
        [=, this](const systemd::UnitFacts& facts) {
            note_priors(job, facts);
            auto& it = job->lease.confinement;
            it.whole_unit = facts.main_pid == job->lease.caller.process.pid;
            it.reload_was_due = facts.needs_reload;
            it.prior_known = true;
            read_masks(job);
            const bool unit = it.kind == ConfinementKind::unit;  // who holds a slice is not inside
            const auto cgroup = host::read_cgroup_facts(machine_.root, machine_.cgroup2, job->lease.caller.cgroup);
            done_({.op = job->op,
                   .confinement = it,
                   .unit_memory = unit && cgroup ? cgroup->memory_current : 0,
                   .note = job->note});
        },
        [=, this](model::Error error) { give_up(job, std::move(error)); });
}

void Confiner::note_priors(const JobPtr& job, const systemd::UnitFacts& facts) const {
    auto& it = job->lease.confinement;
    for (auto& setting : it.settings) {
        const auto value = facts.values.find(std::string(model::row_of(setting.property).name));
        setting.prior = value == facts.values.end() ? "" : value->second;
        if (setting.prior.empty())
            setting.source = model::PriorSource::none;
        else if (!dropin(it.unit, setting.property).empty() && dropin_holds(it.unit, setting.property, {setting.prior}))
            setting.source = model::PriorSource::runtime;
        else
            setting.source = model::PriorSource::persistent;
    }
}

// ── Confine ──────────────────────────────────────────────────────────────────────────────────────────────────────

void Confiner::confine(std::uint64_t op, const model::Lease& lease, const model::Process& process) {
    const auto job = std::make_shared<Job>(Job{.op = op, .lease = lease, .process = process, .polls_left = kPolls});
    const bool joins = lease.state == model::LeaseState::active;
    switch (lease.confinement.kind) {
        case ConfinementKind::scope: return joins ? attach(job) : ensure_keepers(job, [=, this] { start_scope(job); });
        case ConfinementKind::unit: return joins ? join_unit(job) : ensure_keepers(job, [=, this] { set_unit(job); });
        case ConfinementKind::slice:
            return joins ? join_slice(job) : ensure_keepers(job, [=, this] { set_slice(job); });
        case ConfinementKind::affinity:
        case ConfinementKind::none: return track(job);
    }
}

void Confiner::start_scope(const JobPtr& job) {
    job->lease.confinement.unit = scope_of(job->lease);
    const auto& shield = job->lease.confinement.shield;
    if (shield.kind != model::ShieldKind::slice) return send_scope(job);
    await_shield_slice(job);
}

/// Where the process that is to be confined is now.
std::string Confiner::cgroup_of(const Job& job) const {
    return host::read_cgroup(machine_.proc, job.process.pid).value_or(job.lease.caller.cgroup);
}

/// A scope leaves what is between the user's slice and the process: its session, or a unit of the user's own manager.
void Confiner::keep_below_callers_limit(Job& job) const {
    const auto most = host::memory_limit_of(machine_.root, machine_.cgroup2, cgroup_of(job));
    if (!most) return;
    auto& settings = job.lease.confinement.settings;
    const auto found = std::ranges::find(settings, model::UnitProperty::memory, &model::UnitSetting::property);
    if (found != settings.end()) {
        const auto limit = model::parse_unsigned(found->value, "bytes", ~std::uint64_t{0});
        if (limit && *limit <= *most) return;
        settings.erase(found);
    }
    settings.push_back({.property = model::UnitProperty::memory, .value = std::to_string(*most)});
    job.note += (job.note.empty() ? "" : "; ") + ("MemoryMax is " + model::bytes_text(*most)) +
                ": that bound its caller before";
}

void Confiner::send_scope(const JobPtr& job) {
    if (scopes_starting_ == kScopesAtOnce) return held_back_.push_back(job);
    const auto unit = job->lease.confinement.unit;
    job->polls_left = kPolls;
    keep_below_callers_limit(*job);
    auto call = systemd::start_scope(bus_, unit, job->lease, job->process.pid, surroundings_of(*job));
    if (!call) return give_up(job, call.error());
    ++scopes_starting_;
    await_start(
        job, unit, std::move(*call),
        [=, this] {
            scope_is_answered();
            verify(job);
        },
        [=, this](model::Error error) {
            scope_is_answered();
            give_up(job, std::move(error));
        });
}

void Confiner::scope_is_answered() {
    --scopes_starting_;
    while (!held_back_.empty() && scopes_starting_ < kScopesAtOnce) {
        const auto next = std::move(held_back_.front());
        held_back_.pop_front();
        send_scope(next);
    }
}

/// systemd answers before the unit is there: its job says when it is.
void Confiner::await_start(const JobPtr& job, const std::string& unit, bus::Message call, std::function<void()> started,
                           const std::function<void(model::Error)>& failed) {
    starting_.emplace(unit, Start{.job = job, .started = std::move(started), .failed = failed});
    const auto waits = [=, this] {
        const auto [begin, end] = starting_.equal_range(unit);
        const auto found = std::find_if(begin, end, [&](const auto& it) { return it.second.job == job; });
        if (found == end) return false;
        starting_.erase(found);
        return true;
    };
    later_.call(bus_, std::move(call), kJobTimeout, [=](Result<sd_bus_message*> reply) {
        if (!reply && waits())
            failed({Errc::io, "systemd did not start " + unit + ": " + reply.error().detail, reply.error().err});
    });
    later_.after(kJobTimeout, [=] {
        if (waits()) failed({Errc::io, "systemd did not finish starting " + unit + " in 30 s"});
    });
}

int Confiner::on_job_removed(sd_bus_message* message, void* data, sd_bus_error* /*error*/) {
    auto* self = static_cast<Confiner*>(data);
    std::uint32_t id = 0;
    const char* path = nullptr;
    const char* unit = nullptr;
    const char* result = nullptr;
    if (sd_bus_message_read(message, "uoss", &id, &path, &unit, &result) < 0) return 0;
    for (auto start = self->starting_.extract(unit); start; start = self->starting_.extract(unit))
        if (std::string_view(result) != "done")
            start.mapped().failed({Errc::io, std::string("systemd could not start ") + unit + ": " + result});
        else
            start.mapped().started();
    return 0;
}

/// A process of the same user's sessions is moved to the one that is there already. Any other would leave its unit, and
/// what limits and stops that.
void Confiner::attach(const JobPtr& job) {
    const auto cgroup = host::read_cgroup(machine_.proc, job->process.pid);
    if (!cgroup) return refuse(job, {Errc::io, "the process is gone", ESRCH});
    if (host::is_inside(*cgroup, job->lease.confinement.cgroup)) return finish(job);
    const auto slice = host::user_slice_of(job->lease.caller.cgroup);
    if (!host::is_inside(*cgroup, slice))
        return refuse(job, {Errc::unsupported, *cgroup + " is outside " + slice +
                                                   ", whose processes alone are moved to " + job->lease.id +
                                                   "; join from a session of that user, or use numa-leasectl run"});
    auto call = systemd::attach_process(bus_, scope_of(job->lease), job->process.pid);
    if (!call) return give_up(job, call.error());
    later_.call(bus_, std::move(*call), kJobTimeout, [=, this](Result<sd_bus_message*> reply) {
        if (!reply)
            return give_up(job,
                           {Errc::io, "systemd did not move the process: " + reply.error().detail, reply.error().err});
        verify(job);
    });
}

/// What is in the unit is inside already.
void Confiner::join_unit(const JobPtr& job) {
    const auto cgroup = host::read_cgroup(machine_.proc, job->process.pid);
    if (!cgroup) return refuse(job, {Errc::io, "the process is gone", ESRCH});
    if (host::is_inside(*cgroup, job->lease.caller.cgroup)) return verify(job);
    refuse(job,
           {Errc::unsupported, *cgroup + " is outside " + job->lease.confinement.unit + ", which " + job->lease.id +
                                   " confines, and nothing is moved into a unit; start it from that unit, or "
                                   "use numa-leasectl run"});
}

void Confiner::set_unit(const JobPtr& job) {
    systemd::Settings settings;
    for (const auto& it : job->lease.confinement.settings) settings.emplace_back(it.property, it.value);
    set_properties(job->lease.confinement.unit, settings, [=, this](Result<sd_bus_message*> reply) {
        if (reply) return verify(job);
        give_up(job, {Errc::io, "systemd did not confine " + job->lease.confinement.unit + ": " + reply.error().detail,
                      reply.error().err});
    });
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

bool Confiner::is_in_force(const Job& job, const host::CgroupFacts& facts) const {
    const auto& lease = job.lease;
    const auto sets = [&](model::UnitProperty it) {
        return model::find_setting(lease.confinement.settings, it) != nullptr;
    };
    if (sets(model::UnitProperty::cpus) &&
        (facts.effective_cpus.empty() || !lease.placement.cpus.covers(facts.effective_cpus)))
        return false;
    if (const auto* limit = model::find_setting(lease.confinement.settings, model::UnitProperty::memory);
        limit != nullptr && facts.memory_max && std::to_string(*facts.memory_max) != limit->value)
        return false;
    return !sets(model::UnitProperty::nodes) ||
           (!facts.effective_nodes.empty() && lease.placement.nodes.covers(facts.effective_nodes));
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
    const bool asked = !bare && is_in_force(*job, *facts);
    const bool inside = it.kind != ConfinementKind::scope || path.ends_with('/' + it.unit);
    // Where there is no cpuset file yet, the controller may be on its way; it is given less time than a value is.
    const auto used = kPolls - job->polls_left;
    if ((!asked || !inside) && used < (bare && inside ? kPollsForController : kPolls)) {
        --job->polls_left;
        return later_.after(kPollUsec, [=, this] { verify(job); });
    }
    if (!inside) return give_up(job, {Errc::io, "the process is in " + path + ", not in " + it.unit});
    if (it.kind != ConfinementKind::unit || it.whole_unit) it.cgroup = path;
    if (const auto events = host::read_memory_events(machine_.root, machine_.cgroup2, path)) it.memory_events = *events;
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
    // What the change has taken from others comes back at once; inside the lease it comes back with the lease's end.
    // A shield takes them all again when it rises and when it comes down.
    if (it.shield.kind == model::ShieldKind::none)
        it.masks = host::restore_thread_masks(machine_.root, machine_.proc, machine_.cgroup2, it.masks,
                                              it.kind == ConfinementKind::affinity ? std::string() : path);
    raise_memlock(*job);
    raise_shield(job);
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

void Confiner::forget(const model::Lease& lease) {
    const auto& it = lease.confinement;
    if (it.cgroup.empty()) return;
    if (it.kind == ConfinementKind::affinity && it.cgroup.ends_with("/numalease-" + lease.id))
        (void)host::remove_tracking_cgroup(machine_.root, machine_.cgroup2, it.cgroup);
    if (it.kind != ConfinementKind::slice || !available_) return;
    // Older systemd makes the folder of a slice when its properties are set, also where nothing runs in it.
    const auto remove = [this, path = machine_.cgroup2 + it.cgroup] {
        unlinkat(machine_.root.fd(), path.c_str(), AT_REMOVEDIR);
    };
    read_facts(
        it.unit,
        [remove](const systemd::UnitFacts& facts) {
            if (facts.sub_state == "dead") remove();
        },
        [remove](const model::Error& error) {
            if (systemd::is_not_loaded(error)) remove();
        });
}

void Confiner::set_properties(const std::string& unit, const systemd::Settings& settings, Next next) {
    auto call = systemd::set_properties(bus_, unit, settings);
    if (!call) return next(std::unexpected(call.error()));
    later_.call(bus_, std::move(*call), kJobTimeout, std::move(next));
}

}  // namespace numalease::service
