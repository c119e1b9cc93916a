#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/error.hpp"
#include "model/limits.hpp"
#include "model/policy.hpp"
#include "model/request.hpp"

namespace numalease::policies {

/// Everything that was found, and what was not usable.
struct Library {
    std::map<std::string, model::Policy> policies;
    std::map<std::string, model::Engine> engines;
    std::vector<model::Error> problems;  ///< "FILE:LINE:COLUMN: …", one per file that was left out
};

/// Site configuration of the daemon, /etc/numa-lease/numa-lease.yaml.
struct SiteConfig {
    std::vector<std::pair<std::string, std::string>> defaults;  ///< request fields
    std::string group = "numa-lease";
    model::Bytes reserve = 256 * model::kMiB;
    bool overcommit = false;  ///< an estimated need that does not fit is warned of; else it refuses
    model::Scheduling scheduling;
    /// Of everybody but root. To go before all others, as a service does, is not a user's own choice.
    model::Limits limits{.leases = 256, .queued = 64, .classes = std::set<std::string>{"batch", "normal"}};
    std::map<std::string, model::Limits>
        users;  ///< what is said of one: a weight of 0 is not, a time of kNever lifts it
    std::map<std::string, model::Limits> groups;  ///< the same
};

/// A lease that units and containers join, /etc/numa-lease/leases/NAME.yaml.
struct LeaseFile {
    std::vector<std::pair<std::string, std::string>> fields;  ///< request fields, the policy among them
    std::string engine;  ///< whose variables joiners find in the environment file; empty: those of every known engine
    std::string model;   ///< sizes the memory; empty: none
};

inline constexpr const char* kLeaseDirectory = "/etc/numa-lease/leases";

/// Parses one policy or engine file. Bounded: 1 MiB, 64 levels, 10,000 nodes, aliases refused, duplicate keys refused.
/// Errors: unreadable, "FILE:LINE:COLUMN: what and what is allowed instead".
model::Result<model::Policy> parse_policy(const std::string& text, const std::string& file);
model::Result<model::Engine> parse_engine(const std::string& text, const std::string& file);
model::Result<SiteConfig> parse_site_config(const std::string& text, const std::string& file);
model::Result<LeaseFile> parse_lease(const std::string& text, const std::string& file);

/// The site configuration; a link is followed.  Errors: unreadable; with ENOENT where there is none.
model::Result<SiteConfig> load_site_config(const std::string& file);

/// The definition of one named lease.  Errors: unreadable; with ENOENT where there is none.
model::Result<LeaseFile> load_lease(const std::string& directory, const std::string& name);

/// Reads DIRECTORY/*.yaml as policies and DIRECTORY/engines/*.yaml as engines from each directory in turn; later wins
/// by name. A directory that is missing is no problem; a file that is wrong is one, and the others still load.
Library load(const std::vector<std::string>& directories);

/// shipped (beside the binary in a build or /usr/share/numa-lease/policies), /etc/numa-lease/policies,
/// ~/.config/numa-lease/policies. The last is left out for root's sake where `home` is empty.
std::vector<std::string> search_path(const std::string& home);

}  // namespace numalease::policies
