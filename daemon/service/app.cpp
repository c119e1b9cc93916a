#include "service/app.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "bus/names.hpp"
#include "core/schedule.hpp"
#include "service/log.hpp"
#include "service/runtime_directory.hpp"
#include "service/status.hpp"

namespace numalease::service {

using model::Errc;
using model::fail;
using model::Result;

model::Result<void> App::start() {
    handed_over_ = take_handed_over();
    auto machine = open_machine(options_.root, options_.gpu_root);
    if (!machine) return std::unexpected(machine.error());
    machine_.emplace(std::move(*machine));
    if (auto opened = open_event_loop(); !opened) return opened;
    core::State state;
    if (options_.read_only) {
        read_state_ = peek_journal();
    } else {
        if (mkdir(options_.runtime_directory.c_str(), 0755) != 0 && errno != EEXIST)
            return fail(Errc::io,
                        "--runtime-dir: cannot make " + options_.runtime_directory + ": " + std::strerror(errno),
                        errno);
        if (auto checked = check_runtime_directory(options_.runtime_directory); !checked) return checked;
        auto locks = host::take_locks(machine_->root, options_.runtime_directory);
        if (!locks) return std::unexpected(locks.error());
        locks_.emplace(std::move(*locks));
    }
    load_config(site_, options_.config);
    observer_.emplace(*machine_, site_, [this](unsigned uid) { return limits_.of(uid); });
    if (auto probed = observer_->start(); !probed) return probed;
    if (!options_.read_only) {
        auto replayed = open_journal();
        if (!replayed) return std::unexpected(replayed.error());
        state = std::move(*replayed);
    }
    if (auto opened = open_bus(); !opened) return opened;
    assemble(std::move(state));
    if (options_.read_only) {
        auto served = options_.serve_fd >= 0 ? server_->serve(host::UniqueFd(options_.serve_fd))
                                             : server_->listen(options_.socket, {});
        if (served) announce();
        return served;
    }
    recover();
    if (options_.restore) return {};
    if (auto served = serve(); !served) return served;
    if (auto named = take_name(); !named) return named;
    announce();
    return {};
}

Result<void> App::open_event_loop() {
    sd_event* event = nullptr;
    if (const int r = sd_event_new(&event); r < 0) return fail(Errc::io, "no event loop", -r);
    event_.reset(event);
    later_.emplace(event);
    sigset_t mask;
    sigemptyset(&mask);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&mask, signal);
    sigprocmask(SIG_BLOCK, &mask, nullptr);  // before there is a second thread
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
        sd_event_source* source = nullptr;
        if (const int r = sd_event_add_signal(event, &source, signal, on_signal, this); r < 0)
            return fail(Errc::io, "cannot take signals", -r);
        sources_.emplace_back(source);
    }
    sd_event_set_watchdog(event, 1);  // where systemd asks for it
    sd_event_source* post = nullptr;
    sd_event_add_post(event, &post, on_post, this);
    sources_.emplace_back(post);
    return {};
}

Result<core::State> App::open_journal() {
    const auto boot = host::read_boot_id(machine_->root);
    if (!boot) return std::unexpected(boot.error());
    host::Journal::Found found;
    auto journal = host::Journal::open(options_.runtime_directory, *boot, found);
    if (!journal) return std::unexpected(journal.error());
    journal_.emplace(std::move(*journal));
    std::vector<std::string> ignored;
    auto state = core::replay(found.records, ignored);
    found.warnings.insert(found.warnings.end(), ignored.begin(), ignored.end());
    for (const auto& warning : found.warnings) {
        site_.notes.push_back(warning);
        log::event(log::Level::warning, log::kJournal, warning);
    }
    return state;
}

core::State App::peek_journal() {
    if (const auto checked = check_runtime_directory(options_.runtime_directory); !checked) {
        site_.notes.push_back("leases are not shown: " + checked.error().detail);
        return {};
    }
    const auto boot = host::read_boot_id(machine_->root);
    auto found = host::Journal::peek(options_.runtime_directory, boot.value_or(""));
    auto state = core::replay(found.records, found.warnings);
    for (const auto& warning : found.warnings) site_.notes.push_back(options_.runtime_directory + ": " + warning);
    return state;
}

/// Not served on a bus, the daemon still asks systemd on the system bus to confine, where there is one.
Result<void> App::open_bus() {
    const bool serves = options_.bus != "none";
    if (options_.read_only || (!serves && !machine_->is_real())) return {};
    auto opened = bus::open_bus(serves ? options_.bus : "system");
    if (opened) {
        bus_ = std::move(*opened);
        const int r = sd_bus_attach_event(bus_.get(), event_.get(), SD_EVENT_PRIORITY_NORMAL);
        if (r < 0) return fail(Errc::io, "cannot listen to the bus", -r);
        // Where we are started again at once and the leases stay, that is how to get a new connection.
        if (options_.keep_leases) sd_bus_set_exit_on_disconnect(bus_.get(), 1);
        return {};
    }
    if (!serves) return {};
    // What is the kernel's alone can be put back without a bus, and that there is none may be why we are asked to.
    if (!options_.bus_is_optional && !options_.restore) return std::unexpected(opened.error());
    site_.notes.push_back("no system bus here: served on " + options_.socket + " alone");
    return {};
}

void App::assemble(core::State state) {
    const auto done = [this](core::Done it) { daemon_->submit(std::move(it)); };
    const auto current = [this]() -> const core::State& { return this->state(); };
    confiner_.emplace(*later_, *machine_, bus_.get(), current, done);
    confiner_->start();
    holders_.emplace(
        event_.get(), *machine_,
        [this](std::vector<model::LeaseId> ids) { daemon_->submit(core::HoldersGone{std::move(ids)}); },
        [this](core::OutOfMemory it) { daemon_->submit(std::move(it)); });
    if (options_.keep_leases) holders_->keep_in_store(std::move(handed_over_.holders));
    shields_.emplace(event_.get(), *machine_, [this](core::ShieldChanged it) { daemon_->submit(std::move(it)); });
    identifier_.emplace(*later_, *machine_, current);
    denials_.emplace(*later_);
    residencies_.emplace(event_.get());
    assemble_seeing(current);
    // Of those whom the journal, which is this boot's, does not know.
    state.usage.merge(history_->usage(now(), site_.config.scheduling.half_life));
    authoriser_.emplace(*later_, accounts_, serves_on_bus() ? bus_.get() : nullptr);
    if (!options_.read_only) {
        daemon_.emplace(event_.get(),
                        Daemon::Parts{.journal = &*journal_,
                                      .runtime_directory = options_.runtime_directory,
                                      .observe =
                                          [this](const core::State& now, const core::Input& input) {
                                              return observer_->observe(now, input, confiner_->available());
                                          },
                                      .perform = [this](const core::Effect& effect,
                                                        const core::State& now) { effects_->perform(effect, now); },
                                      .changed = [this](const core::State& before, const core::State& after,
                                                        const core::Input& input) { changed(before, after, input); }},
                        std::move(state));
        workers_.emplace(event_.get(), done);
        effects_.emplace(*machine_, *observer_, *workers_, *confiner_, *holders_, done);
        if (machine_->is_real())
            hotplug_.start(event_.get(), [this] {
                confiner_->keep_controller();
                daemon_->submit(core::Tick{});
            });
    }
    manager_.emplace(Manager::Parts{.daemon = daemon_ ? &*daemon_ : nullptr,
                                    .state = current,
                                    .about = [this] { return about(); },
                                    .site = &site_,
                                    .machine = &*machine_,
                                    .observer = &*observer_,
                                    .holders = &*holders_,
                                    .identifier = &*identifier_,
                                    .authoriser = &*authoriser_,
                                    .accounts = &accounts_,
                                    .denials = &*denials_,
                                    .residencies = &*residencies_,
                                    .uses = &*uses_,
                                    .history = &*history_,
                                    .squatters = &*squatters_});
    server_.emplace(Server::Parts{.event = event_.get(),
                                  .later = &*later_,
                                  .manager = &*manager_,
                                  .identifier = &*identifier_,
                                  .accounts = &accounts_,
                                  .denials = &*denials_,
                                  .group = [this] { return serves_on_bus() ? std::string() : site_.config.group; },
                                  .disconnected =
                                      [this] {
                                          if (options_.serve_fd >= 0) sd_event_exit(event_.get(), 0);
                                      }});
}

void App::assemble_seeing(const std::function<const core::State&()>& current) {
    background_.emplace(event_.get());
    uses_.emplace(*machine_);
    history_.emplace(state_directory_of(options_), host::read_boot_id(machine_->root).value_or(""),
                     options_.read_only ? nullptr : &*background_,
                     [this](const model::Lease& lease) { return core::nodes_of(lease, observer_->topology()); });
    squatters_.emplace(*background_, *machine_, current, [this](unsigned uid) { return accounts_.user_name(uid); });
}

void App::changed(const core::State& before, const core::State& after, const core::Input& input) {
    uses_->changed(before, after);  // first: of a lease that ends the counters are soon gone
    manager_->changed(before, after, input);
    history_->changed(before, after, *uses_);
    squatters_->changed(before, after);
    holders_->sync(after);
    shields_->sync(after);
    for (const auto& id : after.leases.changed_since(before.leases)) {
        const auto* was = before.leases.get(id);
        const auto* is = after.leases.get(id);
        if (was != nullptr && is != nullptr && !model::is_over(was->state) && model::is_over(is->state))
            confiner_->forget(*is);
    }
}

namespace {

/// Started by a process of a lease that a dead daemon left, we are in that lease's tracking cgroup, which would then
/// never become empty.
void leave_tracking_cgroups(const Machine& machine, const core::State& state) {
    const auto own = host::read_cgroup(machine.proc, getpid());
    if (!own || !machine.is_real() || machine.cgroup2.empty()) return;
    std::string outermost;
    for (const auto& [id, lease] : state.leases) {
        const auto& it = lease.confinement;
        const bool tracks = it.kind == model::ConfinementKind::affinity && it.cgroup.ends_with("/numalease-" + id);
        if (!tracks || !(*own + '/').starts_with(it.cgroup + '/')) continue;
        if (outermost.empty() || it.cgroup.size() < outermost.size()) outermost = it.cgroup;
    }
    if (outermost.empty()) return;
    const auto above = machine.cgroup2 + outermost.substr(0, outermost.rfind('/')) + "/cgroup.procs";
    if (const auto left = machine.root.write(above, std::to_string(getpid())); !left)
        log::event(log::Level::warning, log::kDegraded, "a lease that this daemon was started in ends only with it",
                   {{"REASON", left.error().detail}});
}

}  // namespace

/// Leases whose holder lives stay; the others end now, by the same path as any ending.
void App::recover() {
    leave_tracking_cgroups(*machine_, state());
    core::Recover input;
    // A lease that was stopped under a living workload left its tracking cgroup, which may be empty by now.
    for (const auto& [id, lease] : state().leases)
        if (model::is_over(lease.state)) confiner_->forget(lease);
    for (const auto& [id, lease] : state().leases)
        if (!model::is_over(lease.state) && holders_->alive(lease)) input.alive.insert(id);
    if (!state().leases.empty() || !state().ledger.empty()) daemon_->handle(std::move(input));
    if (options_.restore) shut_down();
}

Result<void> App::serve() {
    if (auto listening = server_->listen(options_.socket, std::move(handed_over_.socket)); !listening) return listening;
    if (!serves_on_bus()) return {};
    return manager_->attach(bus_.get());
}

/// Last of all: whoever sees the name can be answered.
Result<void> App::take_name() {
    if (!serves_on_bus()) return {};
    const int r = sd_bus_request_name(bus_.get(), bus::kService, 0);
    if (r >= 0) return {};
    if (r == -EEXIST || r == -EALREADY)
        return fail(Errc::already_running, std::string(bus::kService) + " is owned by another process on this bus", -r);
    const auto why = std::string("the bus does not let us be ") + bus::kService + ": " + std::strerror(-r);
    if (!options_.bus_is_optional) return fail(Errc::io, why + " (is its policy file installed?)", -r);
    site_.notes.push_back(why + "; served on " + options_.socket + " alone");
    return {};
}

void App::announce() const {
    log::event(log::Level::info, log::kStarted, "ready",
               {{"VERSION", version()}, {"RUNTIME_DIR", options_.runtime_directory}, {"SOCKET", options_.socket}});
    for (const auto& note : site_.notes) log::event(log::Level::warning, log::kDegraded, note);
    for (const auto& rival : running_rivals(machine_->proc))
        log::event(log::Level::warning, log::kDegraded,
                   rival + " tunes this machine, too: what a lease sets it may set back, and the other way round");
    sd_notify(0, "READY=1");
    if (options_.ready_fd < 0) return;
    // A launcher that left before it heard is no concern of the daemon.
    [[maybe_unused]] const auto written = write(options_.ready_fd, "ready\n", 6);
    close(options_.ready_fd);
}

About App::about() const {
    return {.mode = options_.read_only        ? "read-only"
                    : options_.exit_when_idle ? "embedded"
                                              : "daemon",
            .runtime_directory = options_.runtime_directory,
            .systemd = confiner_ && confiner_->available(),
            .journal_works = !daemon_ || daemon_->journal_works()};
}

}  // namespace numalease::service
