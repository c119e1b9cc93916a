#include <sys/types.h>

#include "host/process.hpp"
#include "service/confine.hpp"
#include "service/systemd.hpp"

// A named lease is a slice that others join: its properties are set before anybody does. It need not run, and may be
// about to be started for the very process that asks, so it is neither started here nor waited for.

namespace numalease::service {

namespace {

using model::ConfinementKind;
using model::Errc;
using model::Result;

constexpr std::uint64_t kLookAgain = 20'000;
constexpr std::uint64_t kLooks = 150;  ///< 3 s together: a service that is being stopped takes its time
constexpr const char* kUnit = "org.freedesktop.systemd1.Unit";

/// Where systemd puts a slice: each dash opens a level, "numalease-foo.slice" is /numalease.slice/numalease-foo.slice.
std::string cgroup_of_slice(const std::string& slice) { return "/numalease.slice/" + slice; }

/// "(uo)" of the Job property: 0 where there is none.
bool has_job(sd_bus_message* reply) {
    std::uint32_t id = 0;
    return sd_bus_message_enter_container(reply, 'v', "(uo)") >= 0 &&
           sd_bus_message_enter_container(reply, 'r', "uo") >= 0 && sd_bus_message_read(reply, "u", &id) >= 0 &&
           id != 0;
}

}  // namespace

void Confiner::set_slice(const JobPtr& job) {
    auto& it = job->lease.confinement;
    it.cgroup = cgroup_of_slice(it.unit);
    const Properties properties{{"AllowedCPUs", job->lease.placement.cpus.bytes()},
                                {"AllowedMemoryNodes", job->lease.placement.nodes.bytes()}};
    set_properties(it.unit, properties, [=, this](Result<sd_bus_message*> reply) {
        if (reply) return verify_slice(job);
        give_up(job, {Errc::io, "systemd did not confine " + job->lease.confinement.unit + ": " + reply.error().detail,
                      reply.error().err});
    });
}

/// Before anybody has joined there is no cgroup to look at.
void Confiner::verify_slice(const JobPtr& job) {
    auto& it = job->lease.confinement;
    const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, it.cgroup);
    if (!facts) return finish(job);
    it.effective_cpus = facts->effective_cpus;
    it.effective_nodes = facts->effective_nodes;
    const auto& wanted = job->lease.placement;
    if (!facts->effective_cpus.empty() && wanted.cpus.covers(facts->effective_cpus) &&
        wanted.nodes.covers(facts->effective_nodes))
        return finish(job);
    if (job->polls_left-- == 0)
        return give_up(job, {Errc::io, it.unit + " has CPUs " + facts->effective_cpus.text() + " although " +
                                           wanted.cpus.text() + " were set"});
    constexpr std::uint64_t kPoll = 2'000;
    later_.after(kPoll, [=, this] { verify_slice(job); });
}

/// A process of a login session enters a named lease in a scope of its own; a service's process is never moved.
void Confiner::join_slice(const JobPtr& job) {
    auto& it = job->lease.confinement;
    const auto cgroup = host::read_cgroup(machine_.proc, job->process.pid);
    if (!cgroup) return give_up(job, {Errc::io, "the process is gone", ESRCH});
    if ((*cgroup + '/').starts_with(it.cgroup + '/')) return finish(job);
    if (!cgroup->starts_with("/user.slice/"))
        return give_up(job, {Errc::unsupported, *cgroup + " is no login session, and is not moved; use Slice=" +
                                                    it.unit + " in its unit, or systemd-run --slice=" + it.unit});
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

/// Over: inactive or failed, and nothing is queued for it. What is still being stopped is looked at again.
void Confiner::look_at_unit(const JobPtr& job) {
    auto call = systemd::get_unit(bus_, job->lease.confinement.unit);
    if (!call) return answer_about_unit(job, false);
    later_.call(bus_, std::move(*call), 0, [=, this](Result<sd_bus_message*> reply) {
        const char* path = nullptr;
        if (!reply) return answer_about_unit(job, systemd::is_not_loaded(reply.error()));
        if (sd_bus_message_read(*reply, "o", &path) < 0) return answer_about_unit(job, false);
        const std::string unit = path;
        read_unit_property(job, unit, "SubState", [=, this](sd_bus_message* sub_state) {
            const char* text = nullptr;
            if (sd_bus_message_read(sub_state, "v", "s", &text) < 0) return answer_about_unit(job, false);
            const std::string_view state = text;
            const bool down = state == "dead" || state == "failed" || state == "exited";
            // "auto-restart", "start", "condition", …: it comes back.
            const bool stays = !down && state != "running" && !state.starts_with("stop") &&
                               !state.starts_with("final") && state != "reload";
            if (stays) return answer_about_unit(job, false);
            if (!down && job->polls_left-- > 0) return later_.after(kLookAgain, [=, this] { look_at_unit(job); });
            read_unit_property(job, unit, "Job",
                               [=, this](sd_bus_message* queued) { answer_about_unit(job, down && !has_job(queued)); });
        });
    });
}

void Confiner::read_unit_property(const JobPtr& job, const std::string& path, const char* property,
                                  const std::function<void(sd_bus_message*)>& next) {
    auto call = systemd::get_property(bus_, path, property, kUnit);
    if (!call) return answer_about_unit(job, false);
    later_.call(bus_, std::move(*call), 0,
                [=, this](Result<sd_bus_message*> reply) { reply ? next(*reply) : answer_about_unit(job, false); });
}

}  // namespace numalease::service
