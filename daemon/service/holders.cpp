#include "service/holders.hpp"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "service/handed_over.hpp"
#include "service/use.hpp"

namespace numalease::service {

namespace {

/// Which cgroup is the lease's own: one whose emptiness ends it.
bool has_cgroup(const model::Lease& lease, const Machine& machine) {
    return !lease.confinement.cgroup.empty() && !machine.cgroup2.empty();
}

bool is_watched(const model::Lease& lease) {
    return !lease.parked && (lease.state == model::LeaseState::queued || lease.state == model::LeaseState::preparing ||
                             lease.state == model::LeaseState::active);
}

void send(int pidfd, int signal) { syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0); }

}  // namespace

Holders::Holders(sd_event* event, const Machine& machine, Gone gone, OutOfMemory out_of_memory)
    : event_(event), machine_(machine), gone_(std::move(gone)), out_of_memory_(std::move(out_of_memory)) {}

void Holders::keep_in_store(std::map<std::string, host::UniqueFd> kept) {
    kept_ = std::move(kept);
    stores_ = true;
}

void Holders::adopt(const model::Process& process, host::UniqueFd pidfd) {
    const Key key{process.pid, process.start_time};
    Watch& it = watches_[key];
    if (it.leases == 0) unused_.insert(key);
    if (it.pidfd || it.dead) return;
    it.owner = this;
    it.pidfd = std::move(pidfd);
    if (stores_ && !std::exchange(it.stored, true)) store(process, it.pidfd.get());
    sd_event_source* source = nullptr;
    if (sd_event_add_io(event_, &source, it.pidfd.get(), EPOLLIN, on_pidfd, &it) < 0) it.dead = true;
    it.source.reset(source);
}

Holders::Watch& Holders::watch(const model::Process& process) {
    const Key key{process.pid, process.start_time};
    if (const auto found = watches_.find(key); found != watches_.end()) return found->second;
    if (auto kept = kept_.extract(stored_name(process))) {
        watches_[key].stored = true;
        adopt(process, std::move(kept.mapped()));
        return watches_[key];
    }
    auto pidfd = host::open_pidfd(process.pid);
    // The start time is looked at after the descriptor is open: it then speaks of the process the descriptor is.
    if (pidfd && host::is_alive(machine_.proc, process)) {
        adopt(process, std::move(*pidfd));
    } else {
        // No descriptor to be had is no death: such a process is looked at whenever the others are.
        watches_[key].dead = !host::is_alive(machine_.proc, process);
    }
    return watches_[key];
}

void Holders::watch_cgroup(const std::string& cgroup) {
    watch_again(cgroups_[cgroup], machine_.cgroup2 + cgroup + "/cgroup.events",
                IN_MODIFY | IN_DELETE_SELF | IN_MOVE_SELF, on_cgroup);
}

/// Null where the file is not there: a cgroup that is gone already is seen by the check that follows.
EventSource Holders::watch_file(const std::string& path, std::uint32_t mask, sd_event_inotify_handler_t handler) {
    sd_event_source* source = nullptr;
    const auto full = machine_.root.directory() + '/' + path;
    if (sd_event_add_inotify(event_, &source, full.c_str(), mask, handler, this) < 0) return nullptr;
    sd_event_source_set_description(source, path.c_str());
    return EventSource(source);
}

/// A cgroup may be made anew under its name; its former files tell nothing.
void Holders::watch_again(FileWatch& it, const std::string& path, std::uint32_t mask,
                          sd_event_inotify_handler_t handler) {
    struct stat facts{};
    const bool there = ::fstatat(machine_.root.fd(), path.c_str(), &facts, 0) == 0;
    if (there && it.source && it.inode == facts.st_ino) return;
    it = {.source = there ? watch_file(path, mask, handler) : EventSource(), .inode = facts.st_ino};
}

/// A named lease's slice need not be there, and is made anew with each start of what is in it. Of a file that went with
/// its cgroup the kernel says nothing, so the folders above tell.
void Holders::watch_memories() {
    std::set<std::string> used;
    const auto watch = [&](const std::string& path, std::uint32_t mask, sd_event_inotify_handler_t handler) {
        if (used.insert(path).second) watch_again(memories_[path], path, mask, handler);
    };
    for (const auto& [id, lease] : active_) {
        const auto cgroup = counting_cgroup(*lease, machine_);
        if (cgroup.empty()) continue;
        if (lease->confinement.kind == model::ConfinementKind::slice) {  // "/numalease.slice/numalease-NAME.slice"
            for (auto end = std::size_t{0}; end != std::string::npos; end = cgroup.find('/', end + 1))
                watch(machine_.cgroup2 + cgroup.substr(0, end), IN_CREATE, on_folder);
            watch(machine_.cgroup2 + cgroup, IN_CREATE, on_folder);
        }
        watch(machine_.cgroup2 + cgroup + "/memory.events", IN_MODIFY, on_memory);
    }
    std::erase_if(memories_, [&](const auto& item) { return !used.contains(item.first); });
}

void Holders::watch_cgroups() {
    std::set<std::string> used;
    bool whole_units = false;
    for (const auto& [id, lease] : active_) {
        // A slice comes and goes while it is held: it is watched only when nothing else keeps the lease.
        const auto& it = lease->confinement;
        if (!has_cgroup(*lease, machine_) || (it.kind == model::ConfinementKind::slice && is_held(*lease))) continue;
        watch_cgroup(it.cgroup);
        used.insert(it.cgroup);
        whole_units = whole_units || it.whole_unit;
    }
    if (whole_units && !runs_) runs_ = watch_file("run/systemd/units", IN_CREATE | IN_MOVED_TO, on_run);
    if (!whole_units) runs_.reset();
    std::erase_if(cgroups_, [&](const auto& item) { return !used.contains(item.first); });
    watch_memories();
}

/// Only what is new or has changed is looked at: for the others there are watches.
void Holders::sync(const core::State& state) {
    std::set<model::LeaseId> changed;
    const auto other_active = active_;
    const auto is_known = [](const model::Lease* lease) { return lease != nullptr && !model::is_over(lease->state); };
    // Both are in the order of their ids, and what has not changed is the very same.
    auto known = leases_.begin();
    const auto leave = [&] {
        reported_.erase(known->first);
        let_go(*known->second, changed);
        known = leases_.erase(known);
    };
    for (const auto& [id, lease] : state.leases) {
        while (known != leases_.end() && known->first < id) leave();
        const bool same_id = known != leases_.end() && known->first == id;
        if (same_id && known->second.get() == &lease) {
            ++known;
            continue;
        }
        if (!is_known(&lease)) {
            reported_.erase(id);
            if (same_id) leave();
            continue;
        }
        // Held anew before it is let go of: whoever stays is watched all the time.
        hold(state.leases.share(id), changed);
        if (same_id) let_go(*known->second, changed);
        known = std::next(leases_.insert_or_assign(known, id, state.leases.share(id)));
        changed.insert(id);
    }
    while (known != leases_.end()) leave();
    if (active_ != other_active) watch_cgroups();
    forget_unused();
    check(changed);
}

void Holders::hold(const std::shared_ptr<const model::Lease>& lease, std::set<model::LeaseId>& changed) {
    if (children_[lease->caller.parent]++ == 0) changed.insert(lease->caller.parent);
    // Of a parked one nobody is holder, and whoever takes it up may go, too.
    if (lease->parked) reported_.erase(lease->id);
    if (lease->state == model::LeaseState::active && !lease->parked)
        active_[lease->id] = lease;
    else
        active_.erase(lease->id);
    if (!is_watched(*lease)) return;
    for (const auto& holder : lease->holders) {
        watch(holder).leases += 1;
        unused_.erase({holder.pid, holder.start_time});
    }
}

void Holders::let_go(const model::Lease& lease, std::set<model::LeaseId>& changed) {
    if (const auto found = children_.find(lease.caller.parent); --found->second == 0) {
        children_.erase(found);
        changed.insert(lease.caller.parent);
    }
    if (const auto found = active_.find(lease.id); found != active_.end() && found->second.get() == &lease)
        active_.erase(found);
    if (!is_watched(lease)) return;
    for (const auto& holder : lease.holders) {
        const Key key{holder.pid, holder.start_time};
        if (--watches_.at(key).leases == 0) unused_.insert(key);
    }
}

template <class Matches>
std::set<model::LeaseId> Holders::those(const Known& leases, Matches matches) {
    std::set<model::LeaseId> out;
    for (const auto& [id, lease] : leases)
        if (matches(*lease)) out.insert(id);
    return out;
}

void Holders::forget_unused() {
    for (const auto& key : std::exchange(unused_, {})) {
        const auto found = watches_.find(key);
        if (found->second.stored) unstore(stored_name({.pid = key.first, .start_time = key.second}));
        watches_.erase(found);
    }
    for (const auto& [name, pidfd] : std::exchange(kept_, {})) unstore(name);  // of leases that are over
}

bool Holders::process_alive(const model::Process& process) const {
    const auto found = watches_.find({process.pid, process.start_time});
    if (found != watches_.end() && found->second.dead) return false;
    if (found != watches_.end() && found->second.pidfd) return host::pidfd_alive(found->second.pidfd.get());
    if (const auto kept = kept_.find(stored_name(process)); kept != kept_.end())
        return host::pidfd_alive(kept->second.get());
    return host::is_alive(machine_.proc, process);
}

std::optional<bool> Holders::populated(const model::Lease& lease) const {
    if (!has_cgroup(lease, machine_)) return std::nullopt;
    const auto inside = host::read_populated(machine_.root, machine_.cgroup2, lease.confinement.cgroup);
    if (inside) return *inside;
    if (inside.error().code == model::Errc::unsupported) return false;
    return std::nullopt;
}

/// The unit of a lease may have been started again and be populated by another run.
bool Holders::is_same_run(const model::Lease& lease) const {
    const auto& run = lease.caller.invocation;
    if (run.empty() || lease.confinement.kind != model::ConfinementKind::unit || !lease.confinement.whole_unit)
        return true;
    const auto now = host::read_invocation(machine_.root, lease.confinement.cgroup);
    return now.empty() || now == run;
}

bool Holders::alive(const model::Lease& lease, const model::Process& visitor) const {
    if (lease.confinement.kind == model::ConfinementKind::slice && is_held(lease, visitor)) return true;
    if (lease.state == model::LeaseState::active || lease.state == model::LeaseState::ending)
        if (const auto inside = populated(lease)) {
            if (!is_same_run(lease)) return false;
            if (!*inside || visitor.pid == 0) return *inside;
            const auto pids = processes(lease);
            return std::ranges::any_of(pids, [&](int pid) { return pid != visitor.pid; });
        }
    return is_held(lease, visitor);
}

bool Holders::is_held(const model::Lease& lease, const model::Process& visitor) const {
    return std::ranges::any_of(lease.holders,
                               [&](const auto& holder) { return holder != visitor && process_alive(holder); });
}

std::vector<int> Holders::processes(const model::Lease& lease) const {
    std::vector<int> out;
    if (has_cgroup(lease, machine_))
        if (const auto facts = host::read_cgroup_facts(machine_.root, machine_.cgroup2, lease.confinement.cgroup))
            out = facts->pids;
    for (const auto& holder : lease.holders)
        if (process_alive(holder) && std::ranges::find(out, holder.pid) == out.end()) out.push_back(holder.pid);
    return out;
}

void Holders::kill(const model::Lease& lease, int signal) const {
    const bool own = has_cgroup(lease, machine_);
    // One write reaches also what forks while we walk the list.
    if (own && signal == SIGKILL)
        (void)machine_.root.write(machine_.cgroup2 + lease.confinement.cgroup + "/cgroup.kill", "1");
    for (const int pid : processes(lease)) {
        const auto pidfd = host::open_pidfd(pid);
        if (!pidfd) continue;
        const bool held = std::ranges::any_of(
            lease.holders, [&](const auto& it) { return it.pid == pid && host::is_alive(machine_.proc, it); });
        // Read after the descriptor is open: a PID that was reused in between is somewhere else.
        const auto cgroup = held ? model::Result<std::string>() : host::read_cgroup(machine_.proc, pid);
        const bool inside = own && cgroup && host::is_inside(*cgroup, lease.confinement.cgroup);
        if (held || inside) send(pidfd->get(), signal);
    }
}

/// A killed process often is a lease's last one, so its cgroup is looked at before its end is told.
void Holders::look_at_memory(const std::set<model::LeaseId>& ids) {
    for (const auto& id : ids) {
        const auto found = active_.find(id);
        if (found == active_.end()) continue;
        const auto lease = found->second;
        const auto cgroup = counting_cgroup(*lease, machine_);
        if (cgroup.empty()) continue;
        const auto events = host::read_memory_events(machine_.root, machine_.cgroup2, cgroup);
        // Fewer than before: its cgroup was made anew, and counts from zero.
        if (events && events->oom_kill != lease->confinement.memory_events.oom_kill)
            out_of_memory_({.lease = id, .events = *events});  // may come back here through `sync`
    }
}

void Holders::check(const std::set<model::LeaseId>& ids) {
    look_at_memory(ids);
    std::vector<model::LeaseId> gone;
    for (const auto& id : ids) {
        const auto found = leases_.find(id);
        if (found == leases_.end() || !is_watched(*found->second)) continue;
        const auto& lease = *found->second;
        if (lease.confinement.kind == model::ConfinementKind::slice && lease.state == model::LeaseState::active &&
            !is_held(lease))
            watch_cgroup(lease.confinement.cgroup);  // before it is looked at: nothing is missed in between
        if (!children_.contains(id) && !reported_.contains(id) && !alive(lease)) gone.push_back(id);
    }
    reported_.insert(gone.begin(), gone.end());
    if (!gone.empty()) gone_(std::move(gone));  // may come back here through `sync`
}

int Holders::on_pidfd(sd_event_source* /*source*/, int /*fd*/, std::uint32_t /*events*/, void* data) {
    auto* it = static_cast<Watch*>(data);
    it->dead = true;
    it->source.reset();  // a dead process stays readable
    it->pidfd = {};      // and a lease may outlive thousands of those that joined it
    auto* self = it->owner;
    self->check(those(self->leases_, [&](const model::Lease& lease) {
        return std::ranges::any_of(lease.holders, [&](const model::Process& holder) {
            const auto found = self->watches_.find({holder.pid, holder.start_time});
            return found != self->watches_.end() && (&found->second == it || !found->second.pidfd);
        });
    }));
    return 0;
}

/// The folder whose file a source watches, as it was given to `watch_file`.
std::string Holders::cgroup_of(sd_event_source* source) const {
    const char* path = nullptr;
    if (sd_event_source_get_description(source, &path) < 0 || path == nullptr) return {};
    const std::string_view file(path);
    const auto folder = file.substr(0, file.rfind('/'));
    return std::string(folder.substr(std::min(folder.size(), machine_.cgroup2.size())));
}

int Holders::on_memory(sd_event_source* source, const inotify_event* /*event*/, void* data) {
    auto* self = static_cast<Holders*>(data);
    const auto cgroup = self->cgroup_of(source);
    self->look_at_memory(
        those(self->active_, [&](const model::Lease& it) { return counting_cgroup(it, self->machine_) == cgroup; }));
    return 0;
}

int Holders::on_folder(sd_event_source* /*source*/, const inotify_event* /*event*/, void* data) {
    auto* self = static_cast<Holders*>(data);
    self->watch_memories();
    self->look_at_memory(those(self->active_, [](const model::Lease&) { return true; }));
    return 0;
}

int Holders::on_cgroup(sd_event_source* source, const inotify_event* /*event*/, void* data) {
    auto* self = static_cast<Holders*>(data);
    const auto cgroup = self->cgroup_of(source);
    self->check(those(self->active_, [&](const model::Lease& it) { return it.confinement.cgroup == cgroup; }));
    return 0;
}

int Holders::on_run(sd_event_source* /*source*/, const inotify_event* /*event*/, void* data) {
    auto* self = static_cast<Holders*>(data);
    self->check(those(self->leases_, [](const model::Lease&) { return true; }));
    return 0;
}

}  // namespace numalease::service
