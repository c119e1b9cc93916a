#include "service/squatters.hpp"

#include <algorithm>
#include <thread>

#include "host/process.hpp"
#include "service/daemon.hpp"
#include "service/identity.hpp"
#include "service/log.hpp"

namespace numalease::service {

namespace {

constexpr std::size_t kShown = 5;
constexpr std::size_t kMostEntries = 64;
constexpr model::Micros kApart{200'000};
constexpr model::Micros kPause{1'000'000};
constexpr model::Micros kYoung{2'000'000};

/// Of all leases: what a nested one has is its parent's, too, and whose that is shows by where it is.
model::CpuSet leased_cpus(const core::State& state) {
    model::CpuSet out;
    for (const auto& [id, lease] : state.leases.begun())
        if (model::occupies(lease.state)) out |= lease.placement.cpus;
    return out;
}

bool is_leased(const core::State& state, const host::BusyProcess& process) {
    if (!find_parent(state, process.cgroup, process.ancestry).empty()) return true;
    // A unit is confined as a whole, also for the lease of one of its processes.
    return std::ranges::any_of(state.leases.begun(), [&](const auto& item) {
        const auto& lease = item.second;
        return model::occupies(lease.state) && lease.confinement.kind == model::ConfinementKind::unit &&
               host::is_inside(process.cgroup, lease.caller.cgroup);
    });
}

}  // namespace

model::Value::Dicts squatters_of(const core::State& state, const std::vector<host::BusyProcess>& busy) {
    model::Value::Dicts out;
    for (const auto& process : busy) {
        if (is_leased(state, process)) continue;
        for (const auto& [id, lease] : state.leases.begun()) {
            if (!model::occupies(lease.state) || !lease.caller.parent.empty()) continue;
            unsigned threads = 0;
            unsigned percent = 0;
            model::CpuSet cpus;
            for (const auto& thread : process.threads) {
                if (!lease.placement.cpus.contains(thread.cpu)) continue;
                ++threads;
                percent += thread.percent;
                cpus.add(thread.cpu);
            }
            if (threads == 0) continue;
            out.push_back({{"lease", id},
                           {"pid", static_cast<unsigned>(process.pid)},
                           {"uid", process.uid},
                           {"command", process.command},
                           {"threads", threads},
                           {"percent", percent},
                           {"cpus", cpus.text()}});
        }
    }
    std::ranges::stable_sort(out, std::greater{}, [](const auto& it) { return get_number(it, "percent"); });
    if (out.size() > kMostEntries) out.resize(kMostEntries);
    return out;
}

std::string squatters_text(const model::Value::Dicts& squatters, const model::LeaseId& lease,
                           const std::function<std::string(unsigned)>& user_name) {
    std::string out;
    std::size_t count = 0;
    for (const auto& it : squatters) {
        if (get_text(it, "lease") != lease || ++count > kShown) continue;
        out += (out.empty() ? "busy on its CPUs without a lease: " : "; ") + get_text(it, "command") + " (pid " +
               std::to_string(get_number(it, "pid")) + ", " + user_name(static_cast<unsigned>(get_number(it, "uid"))) +
               "), " + std::to_string(get_number(it, "percent")) + " % of a CPU on CPUs " + get_text(it, "cpus");
    }
    return count > kShown ? out + "; and " + std::to_string(count - kShown) + " more" : out;
}

Squatters::Squatters(Background& background, const Machine& machine, std::function<const core::State&()> state,
                     std::function<std::string(unsigned)> user_name)
    : background_(background), machine_(machine), state_(std::move(state)), user_name_(std::move(user_name)) {}

void Squatters::ask(Answer answer) {
    if (leased_cpus(state_()).empty()) return answer({});
    if (last_at_.count() != 0 && now().boot - last_at_ < kYoung) return answer(last_);
    asked_.push_back(std::move(answer));
    if (!looking_) look();
}

void Squatters::changed(const core::State& before, const core::State& after) {
    for (const auto& id : after.leases.changed_since(before.leases)) {
        const auto* lease = after.leases.get(id);
        if (lease == nullptr || lease->state != model::LeaseState::active || !lease->caller.parent.empty()) continue;
        const auto* was = before.leases.get(id);
        if (was != nullptr && was->state == model::LeaseState::active) continue;
        // A look that has begun may have been over before this one was here.
        (looking_ ? granted_later_ : granted_).insert(id);
    }
    if (!granted_.empty() && !looking_) look();
    std::erase_if(notes_, [&](const auto& item) { return !after.leases.contains(item.first); });
}

std::string Squatters::note_of(const model::LeaseId& id) const {
    const auto found = notes_.find(id);
    return found == notes_.end() ? std::string() : found->second;
}

void Squatters::look(model::Micros pause) {
    looking_ = background_.post([=, this, &proc = machine_.proc, cpus = leased_cpus(state_())]() -> Background::Then {
        std::this_thread::sleep_for(pause);
        const auto before = host::read_thread_times(proc);
        const auto began = now().boot;
        std::this_thread::sleep_for(kApart);
        auto busy = host::read_busy(proc, before, now().boot - began, cpus);
        return [this, busy = std::move(busy)] { seen(busy); };
    });
    if (!looking_) seen({});
}

void Squatters::seen(const std::vector<host::BusyProcess>& busy) {
    looking_ = false;
    last_ = squatters_of(state_(), busy);
    last_at_ = now().boot;
    for (const auto& id : std::exchange(granted_, std::exchange(granted_later_, {}))) {
        const auto text = squatters_text(last_, id, user_name_);
        if (text.empty()) continue;
        notes_[id] = text;
        log::event(log::Level::warning, log::kSquatters, "lease " + id + ": " + text, {{"LEASE", id}});
    }
    for (const auto& answer : std::exchange(asked_, {})) answer(last_);
    if (!granted_.empty()) look(kPause);  // many come at once: the next look is for all of them
}

}  // namespace numalease::service
