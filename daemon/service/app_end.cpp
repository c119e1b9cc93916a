#include <signal.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdio>

#include "service/app.hpp"
#include "service/log.hpp"

// What signals do, and how a daemon ends: by a signal, when idle, or when what a dead one left is back.

namespace numalease::service {

namespace {

constexpr std::uint64_t kLingerUsec = 1'000'000;
constexpr std::uint64_t kFirstLingerUsec = 10'000'000;  ///< until the one who started us has connected
constexpr std::uint64_t kBoundUsec = 60'000'000;
constexpr std::uint64_t kRestoreBoundUsec = 240'000'000;  ///< giving back 2 MiB pages was seen to take 145 s
constexpr std::uint64_t kKeepBoundUsec = 20'000'000;      ///< what is under way then is finished by the next daemon
constexpr model::Micros kPatience{5'000'000};             ///< --restore: for what refuses, with nothing under way
constexpr std::uint64_t kAccuracy = 10'000;

}  // namespace

int App::on_signal(sd_event_source* /*source*/, const signalfd_siginfo* info, void* data) {
    auto* self = static_cast<App*>(data);
    if (info->ssi_signo == SIGHUP) {
        self->reload();
        return 0;
    }
    if (!self->daemon_) return sd_event_exit(self->event_.get(), 0);
    self->shut_down();
    return 0;
}

/// Who waits may have room now, by other limits or in another order.
void App::reload() {
    load_config(site_, options_.config);
    limits_.forget();
    if (daemon_) daemon_->submit(core::Tick{});
}

void App::shut_down() {
    if (std::exchange(stopping_, true)) return;
    sd_notify(0, "STOPPING=1");
    stopping_since_ = now().boot;
    sd_event_source* source = nullptr;
    const auto bound = options_.restore ? kRestoreBoundUsec : options_.keep_leases ? kKeepBoundUsec : kBoundUsec;
    sd_event_add_time_relative(event_.get(), &source, CLOCK_BOOTTIME, bound, kAccuracy, on_bound, this);
    bound_.reset(source);
    daemon_->submit(core::Shutdown{.keeps_leases = options_.keep_leases});
}

int App::on_bound(sd_event_source* /*source*/, std::uint64_t /*usec*/, void* data) {
    auto* self = static_cast<App*>(data);
    if (self->options_.keep_leases) return sd_event_exit(self->event_.get(), 0);
    self->tell_what_is_left();
    return sd_event_exit(self->event_.get(), 1);
}

int App::on_post(sd_event_source* /*source*/, void* data) {
    static_cast<App*>(data)->look_for_the_end();
    return 0;
}

int App::on_linger(sd_event_source* /*source*/, std::uint64_t /*usec*/, void* data) {
    auto* self = static_cast<App*>(data);
    return self->idle() ? sd_event_exit(self->event_.get(), 0) : 0;
}

/// Whoever is connected may be about to ask.
bool App::idle() const {
    return core::idle(state()) && workers_->in_flight() == 0 && manager_->pending() == 0 && server_->connections() == 0;
}

/// Runs after every event, and never between events: an idle daemon is not woken by this.
void App::look_for_the_end() {
    if (!daemon_ || !manager_) return;
    if (stopping_) {
        if (core::idle(state()) && workers_->in_flight() == 0) sd_event_exit(event_.get(), 0);
        const bool quiet = workers_->in_flight() == 0 && state().lease_ops.empty();
        if (options_.keep_leases && quiet) sd_event_exit(event_.get(), 0);
        if (options_.restore && quiet && now().boot - stopping_since_ > kPatience) {
            tell_what_is_left();
            sd_event_exit(event_.get(), 1);
        }
        return;
    }
    if (!options_.exit_when_idle) return;
    if (!idle()) {
        linger_.reset();
        return;
    }
    if (linger_) return;
    sd_event_source* source = nullptr;
    sd_event_add_time_relative(event_.get(), &source, CLOCK_BOOTTIME,
                               server_->was_used() ? kLingerUsec : kFirstLingerUsec, kAccuracy, on_linger, this);
    linger_.reset(source);
}

void App::tell_what_is_left() const {
    tell_which_units_are_left();
    for (const auto& [key, row] : state().ledger) {
        const auto reading = observer_->read(key);
        const auto value =
            reading.value ? *reading.value : std::to_string(reading.pool ? reading.pool->persistent() : 0);
        const auto why = row.stuck.empty() ? std::string("not put back in time") : row.stuck;
        if (options_.restore)
            std::fprintf(stderr, "numa-leased: %s is %s, was %s before: %s\n", key.text().c_str(), value.c_str(),
                         row.prior.c_str(), why.c_str());
        log::event(log::Level::error, log::kStuck, "not put back",
                   {{"KNOB", key.text()}, {"OLD", row.prior}, {"NEW", value}, {"REASON", why}});
    }
}

void App::tell_which_units_are_left() const {
    for (const auto& [id, retry] : state().unit_retries) {
        const auto& lease = state().leases.at(id);
        const auto why = lease.notes.empty() ? std::string("not put back in time") : lease.notes.back();
        if (options_.restore) std::fprintf(stderr, "numa-leased: %s\n", why.c_str());
        log::event(log::Level::error, log::kStuck, "a unit stays confined",
                   {{"LEASE", id}, {"UNIT", lease.confinement.unit}, {"REASON", why}});
    }
}

int App::loop() {
    look_for_the_end();  // nothing may happen at all: then there is no event after which to look
    const int status = sd_event_loop(event_.get());
    finish();
    return status < 0 ? model::row_of(model::Errc::internal).exit_status : status;
}

void App::finish() {
    if (!daemon_) return;
    server_->unlink_socket();
    if (options_.keep_leases && !stopping_ && bus_ && sd_bus_is_open(bus_.get()) <= 0)
        log::event(log::Level::error, log::kDegraded, "the bus is gone; leaving, to be started again");
    const bool clean = core::idle(state()) && daemon_->journal_works();
    // A clean journal is one line, the counter of ids: they never repeat within a boot.
    if (clean) (void)journal_->compact(core::snapshot(state()));
    log::event(log::Level::info, log::kStopped,
               clean                  ? "stopped, everything is put back"
               : options_.keep_leases ? "stopped; the leases wait for the next daemon"
                                      : "stopped");
}

}  // namespace numalease::service
