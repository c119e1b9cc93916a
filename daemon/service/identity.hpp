#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/step.hpp"
#include "host/process.hpp"
#include "service/event.hpp"
#include "service/machine.hpp"

namespace numalease::service {

/// The other end of a peer-to-peer connection, as the kernel named it when it connected.
struct Peer {
    int pid = 0;
    unsigned uid = 0;
    host::UniqueFd pidfd;
};
/// SO_PEERCRED and SO_PEERPIDFD (Linux 6.5; before, pidfd_open of the PID, checked for being alive by whoever uses it).
/// Errors: denied.  Source: socket(7).
model::Result<Peer> read_peer(int socket);

/// Who sent a message, and a descriptor that is that process and no later one.
struct Identity {
    model::Caller caller;
    host::UniqueFd pidfd;
};

/// What a bus says of a sender.
struct Credentials {
    int pid = 0;
    unsigned uid = 0;
    host::UniqueFd pidfd;  ///< where the bus has it (ProcessFD, dbus 1.15.8 and dbus-broker 34)
};
/// Reads the a{sv} of GetConnectionCredentials.  Errors: denied where pid or uid is missing.
model::Result<Credentials> read_credentials(sd_bus_message* reply);

/// The innermost live lease that a process is in: by its cgroup, else by the nearest ancestor that holds one.
/// `ancestry` is the process, its parent, and so on.
model::LeaseId find_parent(const core::State& state, const std::string& cgroup,
                           const std::vector<model::Process>& ancestry);

/// Finds out who sends: from the connection, never from an argument.
class Identifier {
public:
    using Answer = std::function<void(model::Result<std::shared_ptr<Identity>>)>;

    Identifier(Later& later, const Machine& machine, std::function<const core::State&()> state)
        : later_(later), machine_(machine), state_(std::move(state)) {}

    void add_peer(sd_bus* connection, Peer peer);
    void forget_peer(sd_bus* connection) { peers_.erase(connection); }
    /// Calls back at once for a peer, else when the bus has answered.  Errors: denied.
    void identify(const Held& message, const Answer& answer);

private:
    model::Result<std::shared_ptr<Identity>> verify(int pid, unsigned uid, host::UniqueFd pidfd) const;

    Later& later_;
    const Machine& machine_;
    std::function<const core::State&()> state_;
    std::map<sd_bus*, Peer> peers_;
};

}  // namespace numalease::service
