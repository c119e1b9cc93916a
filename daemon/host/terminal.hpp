#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/root.hpp"
#include "model/lease.hpp"

namespace numalease::host {

/// Writes to the controlling terminal of a process, as write(1) does: only where the group may write to it (`mesg y`),
/// and never waiting for it. The kernel says which terminal that is, nobody else. `pts`: /dev/pts, the only terminals
/// that a daemon without devices sees. Returns its name, "pts/3".
/// Errors: unsupported where it has none, or none of these; denied where it wants no messages, or is another file
/// system's terminal of that number (in a container); io.
model::Result<std::string> write_to_terminal(const Root& proc_root, const Root& pts, const model::Process& process,
                                             std::string_view text);

/// The same for the first of these processes that has one, with the terminals of this machine.
/// Errors: those of the last one that has a terminal; unsupported where none has.
model::Result<std::string> write_to_one_of(const Root& proc_root, const std::vector<model::Process>& processes,
                                           std::string_view text);

}  // namespace numalease::host
