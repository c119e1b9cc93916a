#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace numalease::client {

/// A command line behind its wrappers.
struct Unwrapped {
    std::size_t program = 0;                 ///< index of the word that names what is run in the end
    std::map<std::string, std::string> env;  ///< variables that the wrappers set: env A=1, sudo A=1
    std::string drops_env;                   ///< the wrapper that keeps our variables from the program; empty: none
};

/// Looks through env, nice, ionice, chrt, nohup, setsid, time, timeout, stdbuf, taskset, numactl, sudo, doas and python
/// (whose script or module is the program), as often as they are stacked. Where a wrapper is used in a way that hides
/// the program (env -S, python -c), it is the program.
Unwrapped unwrap(const std::vector<std::string>& argv);

/// "/usr/bin/docker" → "docker".
std::string_view base_name(std::string_view path);

}  // namespace numalease::client
