#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/journal.hpp"
#include "service/authorise.hpp"
#include "service/background.hpp"
#include "service/confine.hpp"
#include "service/daemon.hpp"
#include "service/effects.hpp"
#include "service/handed_over.hpp"
#include "service/history.hpp"
#include "service/holders.hpp"
#include "service/hotplug.hpp"
#include "service/identity.hpp"
#include "service/limits.hpp"
#include "service/manager.hpp"
#include "service/observe.hpp"
#include "service/options.hpp"
#include "service/server.hpp"
#include "service/shield_watch.hpp"
#include "service/site.hpp"
#include "service/squatters.hpp"
#include "service/use.hpp"
#include "service/workers.hpp"

namespace numalease::service {

/// Everything that a running daemon is, put together in the order in which it starts:
/// locks → machine → journal → replay → liveness → recover → socket → bus name → ready.
class App {
public:
    explicit App(const Options& options) : options_(options) {}

    /// Errors: already_running, io, and whatever else keeps it from starting.
    model::Result<void> start();
    /// Returns the exit status.
    int loop();

private:
    model::Result<void> open_event_loop();
    model::Result<void> open_bus();
    model::Result<core::State> open_journal();
    core::State peek_journal();
    void assemble(core::State state);
    void assemble_seeing(const std::function<const core::State&()>& current);
    void changed(const core::State& before, const core::State& after, const core::Input& input);
    void recover();
    model::Result<void> serve();
    model::Result<void> take_name();
    void announce() const;

    [[nodiscard]] const core::State& state() const { return daemon_ ? daemon_->state() : read_state_; }
    [[nodiscard]] About about() const;
    [[nodiscard]] bool serves_on_bus() const { return bus_ && options_.bus != "none"; }
    [[nodiscard]] bool idle() const;
    void reload();
    void shut_down();
    void look_for_the_end();
    void finish();
    void tell_what_is_left() const;
    void tell_which_units_are_left() const;

    static int on_signal(sd_event_source* source, const struct signalfd_siginfo* info, void* data);
    static int on_post(sd_event_source* source, void* data);
    static int on_linger(sd_event_source* source, std::uint64_t usec, void* data);
    static int on_bound(sd_event_source* source, std::uint64_t usec, void* data);

    const Options& options_;
    Site site_;
    Accounts accounts_;
    LimitTable limits_{site_, accounts_};
    HandedOver handed_over_;
    std::optional<Machine> machine_;
    std::optional<host::Locks> locks_;
    std::optional<host::Journal> journal_;
    core::State read_state_;  ///< read-only: what the journal said
    Event event_;
    bus::Bus bus_;  ///< the broker, where there is one
    std::optional<Later> later_;
    std::optional<Observer> observer_;
    std::optional<Confiner> confiner_;
    std::optional<Holders> holders_;
    std::optional<ShieldWatch> shields_;
    std::optional<Daemon> daemon_;
    std::optional<Effects> effects_;  ///< before the workers: their jobs use it until they are joined
    std::optional<Workers> workers_;
    std::optional<Identifier> identifier_;
    std::optional<Denials> denials_;
    std::optional<Residencies> residencies_;
    std::optional<Uses> uses_;
    std::optional<History> history_;
    std::optional<Squatters> squatters_;
    std::optional<Background> background_;  ///< after what its jobs use
    std::optional<Authoriser> authoriser_;
    std::optional<Manager> manager_;
    Hotplug hotplug_;
    std::optional<Server> server_;
    std::vector<EventSource> sources_;
    EventSource linger_;
    EventSource bound_;
    bool stopping_ = false;
    model::Micros stopping_since_{0};
};

}  // namespace numalease::service
