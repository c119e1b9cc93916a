#pragma once

#include "reach/connection.hpp"

/// Daemons that the client starts itself.
namespace numalease::client {

/// numa-leased beside this binary, in ../libexec, or where it was installed.  Errors: no_daemon.
model::Result<std::string> daemon_path();

/// A daemon that only answers questions, over a socket of our own, for as long as the connection lives. Needs no
/// privilege.  Errors: no_daemon.
model::Result<Connection> start_reader(const Endpoint& endpoint);

/// A daemon of its own for this kernel until nothing is leased: a transient service where systemd runs, else a session
/// of its own. Root only. `how` says which.  Errors: no_daemon, with where its log is.
model::Result<Connection> start_daemon(const Endpoint& endpoint, std::string& how);

/// True where a daemon died in the middle: its journal, as a daemon that only reads shows it, holds a lease that is not
/// over or a knob that is not restored.
bool left_behind(Connection& reader);

/// Who is to be asked.
enum class Need {
    looking,   ///< any daemon, else one that only reads
    changing,  ///< a real one
    leasing,   ///< a real one, started where there is none and we are root
};
/// Errors: no_daemon, denied.
model::Result<Connection> reach(const Endpoint& endpoint, Need need);

}  // namespace numalease::client
