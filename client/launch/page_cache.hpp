#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/asking.hpp"
#include "model/lease.hpp"
#include "model/residency.hpp"
#include "reach/connection.hpp"

/// The pages of a model's files in the page cache: where they are, and how they are brought where the lease is. The
/// client's own lever, and the narrowest: `posix_fadvise` on a file that the caller may read needs no privilege.
namespace numalease::client {

/// What a daemon says of all files of a model together.
struct ModelCache {
    std::string name;  ///< for people: the model's file without its folders
    model::Residency found;
    std::string problem;  ///< why `found` is not known; empty: it is

    /// Resident bytes on other nodes than these.
    [[nodiscard]] model::Bytes outside(const model::NodeSet& nodes) const;
};

ModelCache read_model_cache(Connection& daemon, const std::string& model, const std::vector<std::string>& files);

/// "3.1G on node 0 and 12M on node 1", "nothing"; nodes of `always` are named where they have nothing, too.
std::string where_text(const ModelCache& cache, const model::NodeSet& always = {});
/// "llama-server (PID 123) and python3 (PID 7)"; empty where nobody maps it.
std::string mappers_text(const ModelCache& cache);
model::Dict to_dict(const ModelCache& cache);

/// What a model's pages are to a lease. Pure.
struct CacheCase {
    ModelCache cache;
    model::NodeSet nodes;      ///< of the lease
    bool first_touch = false;  ///< pages are to be where they are first touched: a cached one is in the wrong place
                               ///< wherever it is
    bool maps = false;         ///< the engine maps the model
    std::string other_lease;   ///< one whose command names the model, too

    [[nodiscard]] model::Bytes misplaced() const;
    /// More than a tenth of the model is.
    [[nodiscard]] bool matters() const;
    /// Why a policy's eviction is left out; empty where it is not. Who typed it gets it in any case.
    [[nodiscard]] std::string reason_to_keep() const;
    /// "58 % of m.gguf is cached on node 1, outside the lease: --page-cache evict moves it".
    [[nodiscard]] std::string note() const;
    /// What an eviction came to, from the state after it.
    [[nodiscard]] std::string evicted_text(const ModelCache& after) const;
};

/// Drops the cached pages of a file, except those that somebody maps or that are not on the disk yet.
/// Errors: unreadable.
model::Result<void> evict_file(const std::string& file);

/// Between the grant and the command: evicts where the lease says so, else says what is cached elsewhere. What was
/// found before and after becomes `page_cache` of `lease`. Errors: unreadable, where an eviction that was typed cannot
/// be done.
model::Result<void> settle_page_cache(Connection& daemon, const Asked& asked, bool maps, std::size_t machine_nodes,
                                      bool quiet, model::Dict& lease);

}  // namespace numalease::client
