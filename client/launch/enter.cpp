#include "launch/enter.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include <numaif.h>

#include "text/output.hpp"

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Mempolicy;
using model::Result;

namespace {

constexpr int kWeightedInterleave = 6;  // MPOL_WEIGHTED_INTERLEAVE, Linux 6.9; not in every numaif.h
constexpr int kCannotStart = 126;
constexpr int kNotFound = 127;
constexpr int kOurs = 125;

int mode_of(Mempolicy kind) {
    switch (kind) {
        case Mempolicy::bind: return MPOL_BIND;
        case Mempolicy::interleave: return MPOL_INTERLEAVE;
        case Mempolicy::weighted: return kWeightedInterleave;
        case Mempolicy::local: return MPOL_LOCAL;
        case Mempolicy::automatic: break;
    }
    return MPOL_DEFAULT;
}

/// As set_mempolicy(2) and sched_setaffinity(2) want their masks.
std::vector<unsigned long> mask_of(const model::IndexSet& set) {
    constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
    std::vector<unsigned long> mask;
    for (const auto item : set.items()) {
        mask.resize(std::max(mask.size(), item / kBits + 1));
        mask[item / kBits] |= 1UL << (item % kBits);
    }
    return mask;
}

int set_memory_policy(const MemoryPolicy& policy) {
    const auto mask = policy.kind == Mempolicy::local ? std::vector<unsigned long>{} : mask_of(policy.nodes);
    // The kernel takes one bit less than it is told.
    const auto bits = mask.empty() ? 0 : mask.size() * sizeof(unsigned long) * CHAR_BIT + 1;
    return syscall(SYS_set_mempolicy, mode_of(policy.kind), mask.empty() ? nullptr : mask.data(), bits) < 0 ? errno : 0;
}

/// Mems_allowed_list of /proc/self/status.
std::string allowed_nodes() {
    constexpr std::string_view kName = "Mems_allowed_list:";
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(kName)) return std::string(model::trim(std::string_view(line).substr(kName.size())));
    return "unknown";
}

Result<void> confine_memory(const Entry& entry) {
    auto policy = memory_policy(entry.request, entry.facts.nodes, entry.facts.machine_nodes);
    if (!policy) return {};
    const int err = set_memory_policy(*policy);
    if (err == 0) return {};
    const auto text = memory_policy_failure(*policy, err, allowed_nodes());
    if (model::is_required(entry.request, "mempolicy"))
        return fail(Errc::unsupported, text + "; or say --best-effort", err);
    if (policy->kind == Mempolicy::weighted) {
        policy->kind = Mempolicy::interleave;
        if (set_memory_policy(*policy) == 0) {
            say(text + "; interleaves without weights");
            return {};
        }
    }
    say(text + "; goes on without");
    return {};
}

Result<void> confine_cpus(const model::CpuSet& cpus) {
    const auto mask = mask_of(cpus);
    if (sched_setaffinity(0, mask.size() * sizeof(unsigned long), reinterpret_cast<const cpu_set_t*>(mask.data())) == 0)
        return {};
    const int err = errno;
    return fail(Errc::io, "sched_setaffinity to CPUs " + cpus.text() + ": " + std::strerror(err), err);
}

int execute(const Adapted& adapted) {
    for (const auto& [name, value] : adapted.env) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (const auto& word : adapted.argv) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    const int err = errno;
    say("cannot run " + adapted.argv[0] + ": " + std::strerror(err));
    return err == ENOENT ? kNotFound : kCannotStart;
}

/// One hardware thread of each core, where the engine is told of as many; else all.
model::CpuSet core_cpus_of(const model::Placement& placement, const model::Dict& topology) {
    model::CpuSet out;
    for (const auto& core : model::get_dicts(topology, "cores")) {
        const auto cpus =
            model::CpuSet::parse(model::get_text(core, "cpus")).value_or(model::CpuSet{}) & placement.cpus;
        if (!cpus.empty()) out.add(cpus.first());
    }
    return out.size() == placement.threads ? out : placement.cpus;
}

}  // namespace

LeaseFacts facts_of(const std::string& id, const model::Placement& placement, const model::Confinement& confinement,
                    const model::Dict& topology) {
    LeaseFacts facts{.id = id,
                     .cpus = placement.cpus,
                     .core_cpus = core_cpus_of(placement, topology),
                     .nodes = placement.nodes,
                     .gpus = placement.gpus,
                     .cores = placement.cores,
                     .threads = placement.threads};
    const auto online = model::CpuSet::parse(model::get_text(topology, "online")).value_or(model::CpuSet{});
    const auto nodes = model::get_dicts(topology, "nodes");
    facts.whole_machine = !online.empty() && placement.cpus.covers(online);
    facts.machine_nodes = static_cast<unsigned>(nodes.size());
    facts.machine_cpus = online.size();
    for (std::size_t i = 0; i < nodes.size(); ++i)
        if (model::get_number(nodes[i], "id") != i) facts.node_numbers_have_gaps = true;
    const bool by_cgroup =
        confinement.kind == model::ConfinementKind::scope || confinement.kind == model::ConfinementKind::unit;
    // Nobody is in a slice yet when it is granted.
    facts.contained =
        (by_cgroup && !confinement.effective_cpus.empty()) || confinement.kind == model::ConfinementKind::slice;
    return facts;
}

bool has_huge_pages(const model::Request& request) {
    constexpr model::Bytes kSize = 2 * model::kMiB;
    return std::ranges::any_of(request.hugepages, [](const auto& item) { return item.page_size == kSize; });
}

std::string memory_policy_failure(const MemoryPolicy& policy, int err, const std::string& allowed) {
    std::string cause;
    if (err == EPERM)
        cause = "a seccomp filter forbids it; in a container add CAP_SYS_NICE";
    else if (err == ENOSYS)
        cause = "this kernel has no NUMA support, or a seccomp filter hides the call";
    else if (err == EINVAL && policy.kind == Mempolicy::weighted)
        cause = "weighted interleave needs Linux 6.9, or the nodes are not allowed here";
    else if (err == EINVAL)
        cause = "nodes that this process may not use";
    return "set_mempolicy(" + std::string(model::text_of(policy.kind)) + "): " + std::strerror(err) +
           (cause.empty() ? "" : " (" + cause + ")") + "; asked nodes " + policy.nodes.text() + ", allowed " + allowed;
}

Env current_environment() {
    Env out;
    for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
        const std::string_view entry(*at);
        const auto equals = entry.find('=');
        if (equals != std::string_view::npos) out.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
    return out;
}

int enter(const Entry& entry) {
    const auto adapted =
        adapt(entry.library, entry.policy, entry.command, current_environment(), entry.facts, entry.expand);
    for (const auto& warning : adapted.warnings) say(warning);
    if (!entry.quiet && !adapted.told.empty()) say(adapted.told);
    if (entry.set_affinity)
        if (auto confined = confine_cpus(entry.facts.cpus); !confined) return say_failure(confined.error());
    if (auto confined = confine_memory(entry); !confined) return say_failure(confined.error());
    if (adapted.argv.empty()) return kOurs;
    return execute(adapted);
}

}  // namespace numalease::client
