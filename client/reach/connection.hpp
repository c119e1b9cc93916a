#pragma once

#include <functional>
#include <string>

#include "bus/bus.hpp"
#include "bus/names.hpp"
#include "model/units.hpp"

/// The way to a daemon, and its methods.
namespace numalease::client {

/// Where to look for a daemon. Empty: the default order of DESIGN §3.
struct Endpoint {
    std::string bus;     ///< "system", "session", "none" or an address
    std::string socket;  ///< path of a peer-to-peer socket
    std::string runtime_directory = bus::kRuntimeDirectory;
    bool runtime_directory_typed = false;  ///< then its socket is meant, not the system bus

    [[nodiscard]] std::string socket_path() const {
        return socket.empty() ? runtime_directory + '/' + bus::kSocketName : socket;
    }
};

/// Whether asking may start a daemon that the bus or systemd has in store.
enum class Wake { yes, no };

/// A lease as Acquire answered: queued, preparing, or active already.
struct Acquired {
    std::string id;
    model::Dict lease;
};

/// A connection to a daemon that has answered. Closing it ends a daemon that was started only for it.
class Connection {
public:
    Connection(bus::Bus bus, const char* destination, int child = 0)
        : bus_(std::move(bus)), destination_(destination), child_(child) {}
    Connection(Connection&& other) noexcept;
    Connection& operator=(Connection&& other) noexcept;
    Connection(const Connection&) = delete;
    ~Connection();

    /// False for a daemon of our own that only reads.
    [[nodiscard]] bool is_daemon() const { return child_ == 0; }

    /// Methods of org.numalease1.Manager.  Errors: the daemon's own, no_daemon.
    model::Result<Acquired> acquire(const model::Dict& request);
    model::Result<model::Dict> join(const std::string& id) { return ask(bus::kJoin, id); }
    model::Result<void> release(const std::string& id);
    model::Result<void> stop(const std::string& id, model::Micros grace);
    /// The lease as it then is.
    model::Result<model::Dict> extend(const std::string& id, model::Micros by);
    /// Its engine is ready: model::verification_from_dict.
    model::Result<model::Dict> verify(const std::string& id) { return ask(bus::kVerify, id); }
    model::Result<model::Dict> plan(const model::Dict& request);
    model::Result<model::Dict> lease(const std::string& id) { return ask(bus::kGetLease, id); }
    model::Result<model::Dict> topology() { return ask(bus::kGetTopology); }
    model::Result<model::Dict> status() { return ask(bus::kGetStatus); }
    model::Result<model::Value::Dicts> leases() { return ask_list(bus::kListLeases); }
    /// Those that are not over; of those that wait the first so many, in their order.
    model::Result<model::Value::Dicts> current_leases(unsigned waiting) { return ask_list(bus::kListCurrent, waiting); }
    /// Leases that are over, the newest first.
    model::Result<model::Value::Dicts> history(unsigned most) { return ask_list(bus::kHistory, most); }
    /// Who is busy on leased CPUs without a lease; takes a fifth of a second.
    model::Result<model::Value::Dicts> squatters() { return ask_list(bus::kGetSquatters); }
    /// A line to who holds a lease.
    model::Result<model::Dict> ask_holder(const std::string& id, const std::string& text);
    model::Result<model::Value::Dicts> knobs() { return ask_list(bus::kGetKnobs); }

    /// What of an open file is in the page cache: model::residency_from_dict.
    model::Result<model::Dict> cache_residency(int file);

    /// Waits until the lease is "active" or "ended". `progress` is called every `interval` until then. Runs sd-event's
    /// default loop: where something else ends that, the wait is an error, too.
    model::Result<model::Dict> wait(const std::string& id, const char* until, model::Micros interval,
                                    const std::function<void()>& progress);

    /// True where somebody answers.
    model::Result<void> ping(Wake wake = Wake::yes);

private:
    void close();
    model::Result<model::Dict> ask(const char* method);
    model::Result<model::Dict> ask(const char* method, const std::string& id);
    model::Result<model::Value::Dicts> ask_list(const char* method);
    model::Result<model::Value::Dicts> ask_list(const char* method, unsigned most);

    bus::Bus bus_;
    const char* destination_;  ///< null on a peer-to-peer connection
    int child_;                ///< a daemon of ours to be reaped
};

/// A running (or bus-activatable) daemon.  Errors: no_daemon, with the way out; denied.
model::Result<Connection> find_daemon(const Endpoint& endpoint, Wake wake = Wake::yes);

}  // namespace numalease::client
