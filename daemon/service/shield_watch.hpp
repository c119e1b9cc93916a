#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/step.hpp"
#include "service/event.hpp"
#include "service/machine.hpp"

namespace numalease::service {

/// Follows the partitions of live shields: whoever gives a sibling cgroup some of their CPUs makes the kernel call them
/// "root invalid (…)". That is said at once, and until it is over the partition is asked for again now and then:
/// the kernel does not do so by itself. Where it takes threads' own masks with each change, they get them back.
class ShieldWatch {
public:
    using Changed = std::function<void(core::ShieldChanged)>;

    ShieldWatch(sd_event* event, const Machine& machine, Changed changed)
        : event_(event), machine_(machine), changed_(std::move(changed)) {}

    /// After every step: which shields there are now.
    void sync(const core::State& state);

private:
    struct Shielded {
        model::LeaseId lease;
        std::string cgroup;
        std::string problem;  ///< as the lease has it
    };

    void check();
    void ask_again();
    void restore_masks(const std::vector<model::ThreadMask>& now) const;
    void arm();
    static int on_event(sd_event_source* source, const inotify_event* event, void* data);
    static int on_time(sd_event_source* source, std::uint64_t usec, void* data);

    sd_event* event_;
    const Machine& machine_;
    Changed changed_;
    std::vector<Shielded> shielded_;
    std::vector<model::ThreadMask> masks_;           ///< as recorded before the shields
    model::CpuSet cpus_;                             ///< of all shields
    std::map<std::string, EventSource> partitions_;  ///< by cgroup
    EventSource timer_;                              ///< while one does not hold
};

}  // namespace numalease::service
