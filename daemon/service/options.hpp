#pragma once

#include <optional>
#include <string>

#include "model/error.hpp"
#include "service/log.hpp"

namespace numalease::service {

/// The command line of numa-leased.
struct Options {
    std::string runtime_directory = "/run/numa-lease";
    std::string state_directory;  ///< empty: where state_directory_of says
    std::string root = "/";       ///< kernel files are looked up below it
    std::string gpu_root;         ///< what GPUs' drivers say is looked up below it; that of `root` unless typed
    std::string bus = "system";   ///< "system", "session", "none" or a D-Bus address
    bool bus_is_optional = true;  ///< no --bus was typed: a machine without a bus is served on the socket alone
    std::string socket;           ///< empty: RUNTIME_DIRECTORY/socket
    std::string config = "/etc/numa-lease/numa-lease.yaml";
    bool exit_when_idle = false;
    bool keep_leases = false;  ///< SIGTERM leaves them to the next daemon
    bool restore = false;
    bool check = false;
    std::string if_stopping;  ///< with restore: only while systemd has a stop job for this unit
    bool read_only = false;
    int serve_fd = -1;
    int ready_fd = -1;
    bool residency = false;  ///< a daemon's own child: see answer_residency. Not in --help
    log::Level log_level = log::Level::info;
    bool help = false;
    bool version = false;
};

/// Errors: invalid_request, naming the option.
model::Result<Options> parse_options(int argc, char** argv);

/// Where what outlives a boot is kept: typed; or /var/lib/numa-lease for the machine's own daemon, where it can be had;
/// else the runtime directory.
std::string state_directory_of(const Options& options);

/// Text of --help and of --version.
std::string usage();
std::string version_text();

/// "0.1.0".
std::string version();

}  // namespace numalease::service
