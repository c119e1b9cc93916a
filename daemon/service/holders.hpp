#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/step.hpp"
#include "host/process.hpp"
#include "service/event.hpp"
#include "service/machine.hpp"

namespace numalease::service {

/// Watches what keeps leases alive: the holders' processes through pidfds and, once a lease has a cgroup of its own,
/// that cgroup's emptiness. Nothing is polled.
class Holders {
public:
    using Gone = std::function<void(std::vector<model::LeaseId>)>;
    using OutOfMemory = std::function<void(core::OutOfMemory)>;
    /// `gone` is called from the loop, once for each lease, with all that are found at a time; `out_of_memory` whenever
    /// that happened in one.
    Holders(sd_event* event, const Machine& machine, Gone gone, OutOfMemory out_of_memory);
    /// From now on systemd keeps every descriptor for the daemon after us. `kept` is what it kept of the one before:
    /// such a process is the one that was meant, alive or not; of one that is missing there nothing is known.
    void keep_in_store(std::map<std::string, host::UniqueFd> kept);

    /// Keeps a verified descriptor for a process that is about to hold a lease.
    void adopt(const model::Process& process, host::UniqueFd pidfd);
    /// Watches exactly what the leases of `state` need, then looks whether one of them is over already.
    void sync(const core::State& state);

    /// Does anything of the lease live? A `visitor` that is the only holder of a lease without a cgroup counts as none:
    /// who gives back what he holds himself is not in his own way.
    [[nodiscard]] bool alive(const model::Lease& lease, const model::Process& visitor = {}) const;
    /// Every process of the lease, for signals.
    [[nodiscard]] std::vector<int> processes(const model::Lease& lease) const;
    /// Sends a signal to each of them, never to a PID that was reused.
    void kill(const model::Lease& lease, int signal) const;

private:
    using Key = std::pair<int, std::uint64_t>;
    struct Watch {
        Holders* owner = nullptr;
        host::UniqueFd pidfd;
        EventSource source;
        bool dead = false;
        bool stored = false;
        unsigned leases = 0;  ///< that it holds
    };
    using Known = std::map<model::LeaseId, std::shared_ptr<const model::Lease>>;
    /// A watch is on an inode: where the file or folder was made again, it is set anew.
    struct FileWatch {
        EventSource source;
        ino_t inode = 0;
    };
    Watch& watch(const model::Process& process);
    void watch_cgroup(const std::string& cgroup);
    EventSource watch_file(const std::string& path, std::uint32_t mask, sd_event_inotify_handler_t handler);
    void watch_again(FileWatch& it, const std::string& path, std::uint32_t mask, sd_event_inotify_handler_t handler);
    void watch_memories();
    void watch_cgroups();
    void hold(const std::shared_ptr<const model::Lease>& lease, std::set<model::LeaseId>& changed);
    void let_go(const model::Lease& lease, std::set<model::LeaseId>& changed);
    void look_at_memory(const std::set<model::LeaseId>& ids);
    [[nodiscard]] bool is_same_run(const model::Lease& lease) const;
    void check(const std::set<model::LeaseId>& ids);
    template <class Matches>
    [[nodiscard]] static std::set<model::LeaseId> those(const Known& leases, Matches matches);
    void forget_unused();
    [[nodiscard]] bool process_alive(const model::Process& process) const;
    [[nodiscard]] bool is_held(const model::Lease& lease, const model::Process& visitor = {}) const;
    [[nodiscard]] std::optional<bool> populated(const model::Lease& lease) const;
    static int on_pidfd(sd_event_source* source, int fd, std::uint32_t events, void* data);
    static int on_folder(sd_event_source* source, const struct inotify_event* event, void* data);
    static int on_memory(sd_event_source* source, const struct inotify_event* event, void* data);
    static int on_cgroup(sd_event_source* source, const struct inotify_event* event, void* data);
    static int on_run(sd_event_source* source, const struct inotify_event* event, void* data);
    [[nodiscard]] std::string cgroup_of(sd_event_source* source) const;

    sd_event* event_;
    const Machine& machine_;
    Gone gone_;
    OutOfMemory out_of_memory_;
    std::map<Key, Watch> watches_;
    std::map<std::string, host::UniqueFd> kept_;  ///< and not asked for yet
    bool stores_ = false;
    std::map<std::string, FileWatch> cgroups_;
    std::map<std::string, FileWatch> memories_;    ///< memory.events, and the folders in which slices come and go
    EventSource runs_;                             ///< while a lease is a whole unit's: systemd notes each start of one
    Known leases_;                                 ///< those that are not over
    Known active_;                                 ///< of them, those that are active and not parked
    std::map<model::LeaseId, unsigned> children_;  ///< of each lease, those of `leases_` inside it
    std::set<Key> unused_;                         ///< watched, and holder of none
    std::set<model::LeaseId> reported_;
};

}  // namespace numalease::service
