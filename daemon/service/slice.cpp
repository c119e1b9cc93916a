#include <cerrno>
#include <optional>

#include "host/partition.hpp"
#include "host/threads.hpp"
#include "service/confine.hpp"
#include "service/systemd.hpp"

// A named lease is a slice that others join: its properties are set before anybody does. It need not run, and may be
// about to be started for the very process that asks, so it is neither started here nor waited for.

namespace numalease::service {

namespace {

using model::ConfinementKind;
using model::Errc;
using model::Result;

constexpr std::uint64_t kLookAgain = 250'000;
constexpr std::uint64_t kLooks = 12;  ///< 3 s together: a service that is being stopped takes its time

/// Where systemd puts a slice: each dash opens a level, "numalease-foo.slice" is /numalease.slice/numalease-foo.slice.
std::string cgroup_of_slice(const std::string& slice) { return "/numalease.slice/" + slice; }

/// Over is what systemd leaves alone. `nullopt`: it is still being stopped.
std::optional<bool> is_over(const systemd::UnitFacts& facts) {
    const std::string_view state = facts.sub_state;
    if (state == "dead" || state == "failed" || state == "exited") return !facts.has_job;
    if (state == "running" || state == "reload" || state.starts_with("stop") || state.starts_with("final"))
        return std::nullopt;
    return false;  // "auto-restart", "start", "condition", …: it comes back
}

}  // namespace

void Confiner::set_slice(const JobPtr& job) {
    auto& it = job->lease.confinement;
    it.cgroup = cgroup_of_slice(it.unit);
    systemd::Settings settings;
    for (const auto& setting : it.settings) settings.emplace_back(setting.property, setting.value);
    set_properties(it.unit, settings, [=, this](Result<sd_bus_message*> reply) {
        if (reply) return verify_slice(job);
        give_up(job, {Errc::io, "systemd did not confine " + job->lease.confinement.unit + ": " + reply.error().detail,
                      reply.error().err});
    });
}

/// Before anybody has joined there is no cgroup to look at, or, as seen once with systemd 252, one without controllers.
void Confiner::verify_slice(const JobPtr& job) {
    auto& it = job->lease.confinement;
    const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, it.cgroup);
    const auto& wanted = job->lease.placement;
    if (facts) {
        it.effective_cpus = facts->effective_cpus;
        it.effective_nodes = facts->effective_nodes;
    }
    if (const auto events = host::read_memory_events(machine_.root, machine_.cgroup2, it.cgroup))
        it.memory_events = *events;
    const bool is_empty = !facts || (!facts->populated && facts->effective_cpus.empty());
    if (is_empty || is_in_force(*job, *facts)) {
        // The keeper may have brought the controller, which takes them on older kernels.
        it.masks = host::restore_thread_masks(machine_.root, machine_.proc, machine_.cgroup2, it.masks, it.cgroup);
        return finish(job);
    }
    if (job->polls_left-- == 0)
        return give_up(job, {Errc::io, it.unit + " has CPUs " + facts->effective_cpus.text() + " although " +
                                           wanted.cpus.text() + " were set"});
    later_.after(kPollUsec, [=, this] { verify_slice(job); });
}

/// A process of a login session enters a named lease in a scope of its own; a service's process is never moved.
void Confiner::join_slice(const JobPtr& job) {
    auto& it = job->lease.confinement;
    const auto cgroup = host::read_cgroup(machine_.proc, job->process.pid);
    if (!cgroup) return refuse(job, {Errc::io, "the process is gone", ESRCH});
    if (host::is_inside(*cgroup, it.cgroup)) return finish(job);
    if (!cgroup->starts_with("/user.slice/"))
        return refuse(job, {Errc::unsupported, *cgroup + " is no login session, and is not moved; use Slice=" +
                                                   it.unit + " in its unit, or systemd-run --slice=" + it.unit});
    if (const auto limits = host::limits_of_user(machine_.root, machine_.cgroup2, *cgroup); !limits.empty())
        return refuse(job, {Errc::unsupported, it.unit + " is outside " + host::user_slice_of(*cgroup) +
                                                   ", whose limits would no longer bind the process (" + limits +
                                                   "); lift them, or use numa-leasectl run"});
    it.kind = ConfinementKind::scope;
    it.slice = it.unit;
    it.unit = "numalease-" + job->lease.id + "-" + std::to_string(job->process.pid) + ".scope";
    start_scope(job);
}

void Confiner::ask_unit(std::uint64_t op, const model::Lease& lease) {
    const auto job = std::make_shared<Job>(Job{.op = op, .lease = lease, .polls_left = kLooks});
    look_at_unit(job);
}

void Confiner::answer_about_unit(const JobPtr& job, bool over) {
    core::Done done{.op = job->op};
    done.unit_is_over = over;
    done_(std::move(done));
}

void Confiner::look_at_unit(const JobPtr& job) {
    read_facts(
        job->lease.confinement.unit,
        [=, this](const systemd::UnitFacts& facts) {
            const auto over = is_over(facts);
            if (!over && job->polls_left-- > 0) return later_.after(kLookAgain, [=, this] { look_at_unit(job); });
            answer_about_unit(job, over.value_or(false));
        },
        // While systemd does not answer, it is not known to be over.
        [=, this](const model::Error& error) { answer_about_unit(job, systemd::is_not_loaded(error)); });
}

}  // namespace numalease::service
