#include "launch/page_cache.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "engines/wrapper.hpp"
#include "text/output.hpp"

namespace numalease::client {

using model::Bytes;
using model::bytes_text;
using model::Dict;
using model::Errc;
using model::fail;
using model::NodeSet;
using model::PageCache;
using model::Result;

namespace {

constexpr Bytes kFew = 10;  ///< a tenth of the model is not worth reading again

/// Close-on-exec, and nothing that waits for a writer.
class File {
public:
    explicit File(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), err_(errno) {}
    ~File() {
        if (fd_ >= 0) close(fd_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] std::string problem() const { return fd_ >= 0 ? "" : std::strerror(err_); }
    [[nodiscard]] int err() const { return err_; }

private:
    int fd_;
    int err_;
};

void add(model::Residency& sum, const model::Residency& part) {
    sum.size += part.size;
    sum.resident += part.resident;
    sum.sampled = sum.sampled || part.sampled;
    for (const auto& [node, bytes] : part.nodes) sum.nodes[node] += bytes;
    for (const auto& mapper : part.mapped_by)
        if (std::ranges::find(sum.mapped_by, mapper) == sum.mapped_by.end()) sum.mapped_by.push_back(mapper);
}

std::string percent(Bytes part, Bytes whole) {
    constexpr double kHundred = 100;
    const auto share = kHundred * static_cast<double>(part) / static_cast<double>(std::max<Bytes>(whole, 1));
    return std::to_string(std::lround(share)) + " %";
}

/// "a", "a and b", "a, b and c".
std::string enumeration(const std::vector<std::string>& words) {
    std::string out;
    for (std::size_t i = 0; i < words.size(); ++i)
        out += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
    return out;
}

/// The id of another lease whose command names the same file: it may be about to read it.
std::string other_lease_of(Connection& daemon, const std::string& own, const std::string& name) {
    const auto leases = daemon.current_leases(0);
    if (!leases) return {};
    for (const auto& lease : *leases) {
        const auto id = get_text(lease, "id");
        const auto state = get_text(lease, "state");
        if (id == own || (state != "active" && state != "preparing")) continue;
        if (get_text(get_dict(lease, "request"), "command").find(name) != std::string::npos) return id;
    }
    return {};
}

}  // namespace

// ── What is known ────────────────────────────────────────────────────────────────────────────────────────────────

Bytes ModelCache::outside(const NodeSet& nodes) const {
    Bytes sum = 0;
    for (const auto& [node, bytes] : found.nodes)
        if (!nodes.contains(node)) sum += bytes;
    return sum;
}

ModelCache read_model_cache(Connection& daemon, const std::string& model, const std::vector<std::string>& files) {
    ModelCache out{.name = std::string(base_name(model)), .found = {}, .problem = {}};
    for (const auto& path : files) {
        const File file(path);
        out.problem = file.problem();
        if (!out.problem.empty()) return out;
        const auto part = daemon.cache_residency(file.fd());
        if (!part) {
            out.problem = part.error().detail;
            return out;
        }
        add(out.found, model::residency_from_dict(*part));
    }
    return out;
}

std::string where_text(const ModelCache& cache, const NodeSet& always) {
    auto nodes = cache.found.nodes;
    if (cache.found.resident == 0) return "nothing";
    if (nodes.empty()) return bytes_text(cache.found.resident) + " (on which node, the kernel does not say)";
    for (const auto node : always.items()) nodes.try_emplace(node, 0);
    std::vector<std::string> parts;
    for (const auto& [node, bytes] : nodes) parts.push_back(bytes_text(bytes) + " on node " + std::to_string(node));
    return enumeration(parts);
}

std::string mappers_text(const ModelCache& cache) {
    std::vector<std::string> parts;
    for (const auto& it : cache.found.mapped_by)
        parts.push_back(printable(it.command) + " (PID " + std::to_string(it.pid) + ')');
    return enumeration(parts);
}

Dict to_dict(const ModelCache& cache) {
    return cache.problem.empty() ? to_dict(cache.found) : Dict{{"unknown", cache.problem}};
}

// ── What follows from it ─────────────────────────────────────────────────────────────────────────────────────────

Bytes CacheCase::misplaced() const { return first_touch ? cache.found.resident : cache.outside(nodes); }

bool CacheCase::matters() const { return cache.problem.empty() && misplaced() > cache.found.size / kFew; }

std::string CacheCase::reason_to_keep() const {
    if (!cache.problem.empty()) return "what is cached is not known: " + cache.problem;
    if (!matters()) return "no more than a tenth of it is cached elsewhere";
    if (!maps) return "its engine is not known to map it";
    if (const auto who = mappers_text(cache); !who.empty()) return "mapped by " + who;
    if (!other_lease.empty()) return other_lease + " uses it, too";
    return {};
}

std::string CacheCase::note() const {
    auto elsewhere = cache;
    std::erase_if(elsewhere.found.nodes, [&](const auto& it) { return nodes.contains(it.first); });
    std::vector<std::string> names;
    for (const auto& [node, bytes] : elsewhere.found.nodes) names.push_back(std::to_string(node));
    const auto who = mappers_text(cache);
    return percent(misplaced(), cache.found.size) + " of " + cache.name + " is cached on node" +
           (names.size() > 1 ? "s " : " ") + enumeration(names) + ", outside the lease: " +
           (who.empty() ? "--page-cache evict moves it" : "mapped by " + who + ", it stays there until that ends");
}

std::string CacheCase::evicted_text(const ModelCache& after) const {
    if (!cache.problem.empty() || !after.problem.empty())
        return "page cache: " + cache.name + " evicted; how much of it was cached is not known: " +
               (cache.problem.empty() ? after.problem : cache.problem);
    const auto stays = after.found.resident;
    const auto gone = cache.found.resident - std::min(cache.found.resident, stays);
    auto out = "page cache: " + cache.name + " had " + where_text(cache, nodes);
    if (cache.found.resident == 0) return out;
    out += "; evicted " + bytes_text(gone) + (gone != 0 ? ", which is read again" : "");
    if (stays == 0) return out;
    const auto who = mappers_text(after);
    return out + "; " + bytes_text(stays) + " stays, " +
           (who.empty() ? "in use, or in memory only, or not on the disk yet" : "mapped by " + who);
}

// ── Doing it ─────────────────────────────────────────────────────────────────────────────────────────────────────

Result<void> evict_file(const std::string& path) {
    const File file(path);
    if (!file.problem().empty())
        return fail(Errc::unreadable, "page-cache: cannot evict " + path + ": " + file.problem(), file.err());
    // A page that is not on the disk yet cannot go: a model that was just downloaded has many. Where it does not work
    // they stay, and that is said.
    [[maybe_unused]] const int synced = fdatasync(file.fd());
    if (const int err = posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED); err != 0)
        return fail(Errc::unreadable, "page-cache: cannot evict " + path + ": " + std::strerror(err), err);
    return {};
}

namespace {

/// What was done, and the line that says so.
struct Settled {
    Dict report;
    std::string line;
};

Result<Settled> evict(Connection& daemon, const Asked& asked, const CacheCase& facts, bool typed) {
    Settled out;
    out.report["before"] = to_dict(facts.cache);
    if (const auto reason = typed ? "" : facts.reason_to_keep(); !reason.empty()) {
        out.line = "page cache: " + facts.cache.name + " is not evicted: " + reason;
        return out;
    }
    for (const auto& file : asked.model_files)
        if (auto gone = evict_file(file); !gone) {
            if (typed) return std::unexpected(gone.error());
            out.line = gone.error().detail;
            return out;
        }
    const auto after = read_model_cache(daemon, asked.model, asked.model_files);
    out.report["after"] = to_dict(after);
    out.line = facts.evicted_text(after);
    return out;
}

}  // namespace

Result<void> settle_page_cache(Connection& daemon, const Asked& asked, bool maps, std::size_t machine_nodes, bool quiet,
                               Dict& lease) {
    const auto granted = model::lease_from_dict(lease);
    if (!granted) return std::unexpected(granted.error());
    const auto& request = granted->request;
    const bool evicts = request.page_cache == PageCache::evict;
    if (asked.model_files.empty()) {
        if (evicts && !quiet) say("page cache: nothing is evicted: no model file is known; --model FILE says it");
        return {};
    }
    if (!evicts && machine_nodes <= 1) return {};
    CacheCase facts{.cache = read_model_cache(daemon, asked.model, asked.model_files),
                    .nodes = granted->placement.nodes,
                    .first_touch = request.mempolicy == model::Mempolicy::local && granted->placement.nodes.size() > 1,
                    .maps = maps,
                    .other_lease = {}};
    Settled settled;
    if (evicts) {
        facts.other_lease = other_lease_of(daemon, granted->id, facts.cache.name);
        auto done = evict(daemon, asked, facts, model::is_required(request, "page-cache"));
        if (!done) return std::unexpected(done.error());
        settled = std::move(*done);
    } else {
        settled.report["before"] = to_dict(facts.cache);
        if (facts.cache.problem.empty() && facts.cache.outside(facts.nodes) > facts.cache.found.size / kFew)
            settled.line = facts.note();
    }
    if (!quiet && !settled.line.empty()) say(settled.line);
    settled.report["action"] = std::string(model::text_of(request.page_cache));
    settled.report["model"] = asked.model;
    settled.report["files"] = asked.model_files;
    if (!settled.line.empty()) settled.report["note"] = settled.line;
    lease["page_cache"] = std::move(settled.report);
    return {};
}

}  // namespace numalease::client
