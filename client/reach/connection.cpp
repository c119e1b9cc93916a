#include "reach/connection.hpp"

#include <sys/wait.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace numalease::client {

using model::Dict;
using model::Errc;
using model::fail;
using model::Result;
using model::Value;

namespace {

// Acquire and Join may ask a person (polkit) and take in a large unit: longer than sd-bus's 25 s.
constexpr std::uint64_t kPatient = 300'000'000;

Result<void> append_text(sd_bus_message* message, const std::string& text) {
    if (const int result = sd_bus_message_append(message, "s", text.c_str()); result < 0)
        return fail(Errc::invalid_request, "'" + text.substr(0, 64) + "' is not text", -result);
    return {};
}

Result<void> append_nothing(sd_bus_message* /*message*/) { return {}; }

Result<Dict> dict_of(const Result<bus::Message>& reply) {
    if (!reply) return std::unexpected(reply.error());
    return bus::read_dict(reply->get(), bus::kMaxReplyEntries);
}

}  // namespace

Connection::Connection(Connection&& other) noexcept
    : bus_(std::move(other.bus_)), destination_(other.destination_), child_(std::exchange(other.child_, 0)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
    if (this == &other) return *this;
    close();
    bus_ = std::move(other.bus_);
    destination_ = other.destination_;
    child_ = std::exchange(other.child_, 0);
    return *this;
}

Connection::~Connection() { close(); }

void Connection::close() {
    bus_.reset();
    if (child_ > 0)
        while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
        }
}

Result<void> Connection::ping(Wake wake) {
    sd_bus_message* raw = nullptr;
    int result = sd_bus_message_new_method_call(bus_.get(), &raw, destination_, bus::kManagerPath,
                                                "org.freedesktop.DBus.Peer", "Ping");
    const bus::Message call(raw);
    bus::BusError error;
    if (result >= 0) result = sd_bus_message_set_auto_start(raw, wake == Wake::yes ? 1 : 0);
    if (result >= 0) result = sd_bus_call(bus_.get(), raw, 0, error.get(), nullptr);
    if (result < 0) return std::unexpected(bus::from_bus(*error, result));
    return {};
}

Result<Dict> Connection::ask(const char* method) {
    return dict_of(bus::call(bus_.get(), destination_, method, append_nothing));
}

Result<Dict> Connection::ask(const char* method, const std::string& id) {
    return dict_of(
        bus::call(bus_.get(), destination_, method, [&](sd_bus_message* m) { return append_text(m, id); }, kPatient));
}

Result<Value::Dicts> Connection::ask_list(const char* method) {
    const auto reply = bus::call(bus_.get(), destination_, method, append_nothing);
    if (!reply) return std::unexpected(reply.error());
    return bus::read_dicts(reply->get(), bus::kMaxReplyEntries);
}

Result<Value::Dicts> Connection::ask_list(const char* method, unsigned most) {
    const auto reply = bus::call(bus_.get(), destination_, method, [&](sd_bus_message* m) -> Result<void> {
        if (const int result = sd_bus_message_append(m, "u", most); result < 0)
            return fail(Errc::io, "cannot ask", -result);
        return {};
    });
    if (!reply) return std::unexpected(reply.error());
    return bus::read_dicts(reply->get(), bus::kMaxReplyEntries);
}

Result<Dict> Connection::ask_holder(const std::string& id, const std::string& text) {
    const auto append = [&](sd_bus_message* m) -> Result<void> {
        if (const int result = sd_bus_message_append(m, "ss", id.c_str(), text.c_str()); result < 0)
            return fail(Errc::invalid_request, "the lease or the text is not UTF-8", -result);
        return {};
    };
    return dict_of(bus::call(bus_.get(), destination_, bus::kAsk, append, kPatient));
}

Result<Acquired> Connection::acquire(const Dict& request) {
    const auto reply = bus::call(
        bus_.get(), destination_, bus::kAcquire, [&](sd_bus_message* m) { return bus::append_dict(m, request); },
        kPatient);
    if (!reply) return std::unexpected(reply.error());
    const char* id = nullptr;
    if (sd_bus_message_read(reply->get(), "s", &id) < 0)
        return fail(Errc::internal, "the daemon's answer to Acquire has no id; are both of one version?");
    auto lease = bus::read_dict(reply->get(), bus::kMaxReplyEntries);
    if (!lease) return std::unexpected(lease.error());
    return Acquired{.id = id, .lease = std::move(*lease)};
}

Result<Dict> Connection::plan(const Dict& request) {
    return dict_of(bus::call(bus_.get(), destination_, bus::kPlan,
                             [&](sd_bus_message* m) { return bus::append_dict(m, request); }));
}

Result<Dict> Connection::cache_residency(int file) {
    const auto append = [&](sd_bus_message* m) -> Result<void> {
        if (const int result = sd_bus_message_append(m, "h", file); result < 0)
            return fail(Errc::io, std::string("cannot hand over the file: ") + std::strerror(-result), -result);
        return {};
    };
    return dict_of(bus::call(bus_.get(), destination_, bus::kCacheResidency, append, kPatient));
}

Result<void> Connection::release(const std::string& id) {
    const auto reply = bus::call(
        bus_.get(), destination_, bus::kRelease, [&](sd_bus_message* m) { return append_text(m, id); }, kPatient);
    if (!reply) return std::unexpected(reply.error());
    return {};
}

namespace {

Result<void> append_time(sd_bus_message* m, const std::string& id, model::Micros time) {
    if (const int result = sd_bus_message_append(m, "st", id.c_str(), static_cast<std::uint64_t>(time.count()));
        result < 0)
        return fail(Errc::invalid_request, "'" + id.substr(0, 64) + "' is not text", -result);
    return {};
}

}  // namespace

Result<Dict> Connection::extend(const std::string& id, model::Micros by) {
    return dict_of(
        bus::call(bus_.get(), destination_, bus::kExtend, [&](sd_bus_message* m) { return append_time(m, id, by); }));
}

Result<void> Connection::stop(const std::string& id, model::Micros grace) {
    const auto append = [&](sd_bus_message* m) { return append_time(m, id, grace); };
    const auto reply = bus::call(bus_.get(), destination_, bus::kStop, append, kPatient);
    if (!reply) return std::unexpected(reply.error());
    return {};
}

// ── Waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────

namespace {

/// What the pending call has brought.
struct Pending {
    std::optional<Result<Dict>> answer;

    static int done(sd_bus_message* reply, void* userdata, sd_bus_error* /*error*/) {
        auto& self = *static_cast<Pending*>(userdata);
        const auto* error = sd_bus_message_get_error(reply);
        if (error != nullptr)
            self.answer = std::unexpected(bus::from_bus(*error, -sd_bus_message_get_errno(reply)));
        else
            self.answer = bus::read_dict(reply, bus::kMaxReplyEntries);
        return 0;
    }
};

/// Calls `progress` every `interval`.
struct Timer {
    std::function<void()> progress;
    std::uint64_t interval = 0;

    static int due(sd_event_source* source, std::uint64_t /*usec*/, void* userdata) {
        const auto& self = *static_cast<Timer*>(userdata);
        if (self.progress) self.progress();
        const int set = sd_event_source_set_time_relative(source, self.interval);
        return set < 0 ? set : sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
    }
};

}  // namespace

Result<Dict> Connection::wait(const std::string& id, const char* until, model::Micros interval,
                              const std::function<void()>& progress) {
    auto call = bus::new_call(bus_.get(), destination_, bus::kWait);
    if (!call) return std::unexpected(call.error());
    // Whoever waits asks a daemon that is there, and starts none that was stopped.
    if (sd_bus_message_set_auto_start(call->get(), 0) < 0 ||
        sd_bus_message_append(call->get(), "ss", id.c_str(), until) < 0)
        return fail(Errc::invalid_request, "'" + id.substr(0, 64) + "' is not text");
    Pending pending;
    Timer timer{.progress = progress, .interval = static_cast<std::uint64_t>(interval.count())};
    constexpr std::uint64_t kAccuracy = 100'000;
    sd_event* loop = nullptr;
    int r = sd_event_default(&loop);
    const std::unique_ptr<sd_event, bus::Deleter<sd_event_unref>> event(loop);
    sd_event_source* source = nullptr;
    if (r >= 0)
        r = sd_event_add_time_relative(loop, &source, CLOCK_BOOTTIME, timer.interval, kAccuracy, Timer::due, &timer);
    const std::unique_ptr<sd_event_source, bus::Deleter<sd_event_source_disable_unref>> due(source);
    sd_bus_slot* raw = nullptr;
    if (r >= 0) r = sd_bus_call_async(bus_.get(), &raw, call->get(), Pending::done, &pending, UINT64_MAX);
    const bus::Slot slot(raw);
    if (r >= 0) r = sd_bus_attach_event(bus_.get(), loop, SD_EVENT_PRIORITY_NORMAL);
    while (r >= 0 && !pending.answer) r = sd_event_run(loop, UINT64_MAX);
    sd_bus_detach_event(bus_.get());
    if (!pending.answer) return std::unexpected(bus::from_bus(SD_BUS_ERROR_NULL, r));
    return *pending.answer;
}

// ── Finding ──────────────────────────────────────────────────────────────────────────────────────────────────────

namespace {

struct StringsDeleter {
    void operator()(char** list) const {
        for (char** at = list; at != nullptr && *at != nullptr; ++at) free(*at);
        free(list);
    }
};
using Strings = std::unique_ptr<char*, StringsDeleter>;

bool lists_us(const Strings& names) {
    for (char** at = names.get(); at != nullptr && *at != nullptr; ++at)
        if (std::string_view(*at) == bus::kService) return true;
    return false;
}

/// A broker, and whether our name is there.
struct Broker {
    bus::Bus bus;
    std::string where;
    bool running = false;
    bool startable = false;
};

Result<Broker> look_on(const std::string& where) {
    auto opened = bus::open_bus(where);
    if (!opened) return std::unexpected(opened.error());
    char** acquired = nullptr;
    char** activatable = nullptr;
    if (const int listed = sd_bus_list_names(opened->get(), &acquired, &activatable); listed < 0)
        return std::unexpected(bus::from_bus(SD_BUS_ERROR_NULL, listed));
    const Strings running(acquired);
    const Strings startable(activatable);
    return Broker{
        .bus = std::move(*opened), .where = where, .running = lists_us(running), .startable = lists_us(startable)};
}

/// Errors: no_daemon where nobody has or could have our name; else why whoever has it does not answer.
Result<Connection> over_bus(Broker broker, Wake wake) {
    if (!broker.running && (!broker.startable || wake == Wake::no))
        return fail(Errc::no_daemon,
                    "nobody has the name " + std::string(bus::kService) + " on the " + broker.where + " bus");
    sd_bus_set_allow_interactive_authorization(broker.bus.get(), isatty(STDIN_FILENO));
    Connection connection(std::move(broker.bus), bus::kService);
    if (auto answers = connection.ping(wake); !answers) return std::unexpected(answers.error());
    return connection;
}

Result<Connection> over_socket(const std::string& path) {
    auto opened = bus::open_socket(path);
    if (!opened) return std::unexpected(opened.error());
    Connection connection(std::move(*opened), nullptr);
    if (auto answers = connection.ping(); !answers) {
        auto error = answers.error();
        error.detail = path + ": " + error.detail;
        return std::unexpected(std::move(error));
    }
    return connection;
}

}  // namespace

Result<Connection> find_daemon(const Endpoint& endpoint, Wake wake) {
    const bool bus_typed = !endpoint.bus.empty() && endpoint.bus != "none";
    const bool socket_meant = !endpoint.socket.empty() || endpoint.runtime_directory_typed || endpoint.bus == "none";
    std::optional<model::Error> silent;  // our name is on the system bus, and whoever has it does not answer
    if (!socket_meant || bus_typed) {
        auto broker = look_on(bus_typed ? endpoint.bus : "system");
        const bool ours = broker && (broker->running || broker->startable);
        const bool can_wake = !broker || broker->startable;  // the socket may be systemd's, too
        auto connection = broker ? over_bus(std::move(*broker), wake) : std::unexpected(broker.error());
        if (connection || bus_typed || (wake == Wake::no && can_wake)) return connection;
        if (ours) silent = connection.error();
    }
    auto connection = over_socket(endpoint.socket_path());
    if (connection) return connection;
    // That the package's socket is root's alone says nothing about a daemon that is broken.
    const auto why = silent && connection.error().code == Errc::denied ? *silent : connection.error();
    if (why.code != Errc::no_daemon) return std::unexpected(why);
    std::string way_out = "start it with systemctl start numa-leased, or use numa-leasectl run as root";
    if (geteuid() != 0) way_out += ", or go without a lease: numa-leasectl run --unleased";
    return fail(Errc::no_daemon, "no numa-leased answers (" + why.detail + "): " + way_out, why.err);
}

}  // namespace numalease::client
