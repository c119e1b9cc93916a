#pragma once

#include <map>
#include <string>

#include "host/root.hpp"
#include "model/lease.hpp"

namespace numalease::service {

/// What systemd kept for us and passes on at our start (sd_listen_fds(3)): the socket of our socket unit, and from its
/// file descriptor store the pidfds that the daemon before us had of its leases' holders.
struct HandedOver {
    host::UniqueFd socket;
    std::map<std::string, host::UniqueFd> holders;  ///< by `stored_name`
};
/// Once per process. What nobody knows is closed, and forgotten in the store.
HandedOver take_handed_over();

/// "holder-PID-START": names are unique within a boot.
std::string stored_name(const model::Process& process);
/// Puts a pidfd into the store, which keeps it however we end. Without polling: systemd drops what it sees hung up, and
/// that a holder is dead is what the next daemon wants to know.
void store(const model::Process& process, int pidfd);
void unstore(const std::string& name);

}  // namespace numalease::service
