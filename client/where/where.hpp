#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/verification.hpp"
#include "where/memory_policy.hpp"
#include "where/numa_maps.hpp"

/// Where the memory and threads of processes are, and what that means for their lease. Pure.
namespace numalease::client {

/// What is on one node.
struct NodeUse {
    Bytes anonymous = 0;
    Bytes shared = 0;
    Bytes file = 0;
    Bytes hugetlb = 0;
    Bytes large = 0;       ///< of all but `file`, what is in KV-sized mappings
    unsigned threads = 0;  ///< that last ran here

    [[nodiscard]] Bytes unnamed() const { return anonymous + shared + hugetlb; }  ///< what no file holds
    [[nodiscard]] Bytes total() const { return unnamed() + file; }
    NodeUse& operator+=(const NodeUse& other);
    bool operator==(const NodeUse&) const = default;
};

/// A mapping or a file large enough to be named.
struct Large {
    int pid = 0;  ///< 0: a file, of all processes together
    std::uint64_t start = 0;
    Kind kind = Kind::anonymous;
    std::string name;    ///< the file
    std::string policy;  ///< as the kernel writes it
    PerNode nodes;
    Bytes size = 0;

    bool operator==(const Large&) const = default;
};

struct ProcessFound {
    int pid = 0;
    std::string name;
    Bytes resident = 0;

    bool operator==(const ProcessFound&) const = default;
};

/// How it was found out.
struct Effort {
    std::size_t sampled = 0;  ///< pages asked for; 0: every page was looked at
    double seconds = 0;

    bool operator==(const Effort&) const = default;
};

struct Found {
    std::vector<ProcessFound> processes;
    std::map<unsigned, NodeUse> nodes;
    std::vector<Large> mappings;            ///< KV-sized ones that no file holds, the largest first
    std::vector<Large> files;               ///< of the same size, likewise
    std::map<std::string, Bytes> policies;  ///< of what no file holds
    Bytes kv_size = 0;                      ///< from which size on a mapping is KV-sized
    Bytes swap = 0;
    Bytes not_found = 0;  ///< huge pages that the process has, and no node showed
    std::optional<Bytes> transparent_huge;
    unsigned threads = 0;
    unsigned threads_astray = 0;             ///< may run on other CPUs than the lease's
    std::map<std::string, PerNode> charged;  ///< memory.numa_stat of the lease's cgroup
    Effort effort;
    std::vector<std::string> notes;

    [[nodiscard]] NodeUse all() const;
};

/// Adds up mappings, one by one and in bounded memory.
class Tally {
public:
    void add(int pid, const Mapping& mapping);
    /// What was added, into what else is known of the processes.
    void finish(Found& found);

private:
    void keep_largest();

    std::map<unsigned, NodeUse> nodes_;
    std::vector<Large> mappings_;
    std::map<std::string, Large> files_;
    std::map<std::string, Bytes> policies_;
};

/// What the memory is held against.
struct Bounds {
    std::string lease;     ///< id; empty: none, and `nodes` are those that the process may use
    model::NodeSet nodes;  ///< leased
    model::CpuSet cpus;
    std::optional<MemoryPolicy> policy;
    std::map<unsigned, unsigned> weights;
    model::NodeSet machine;         ///< nodes with memory
    std::string model;              ///< file that the command names; empty: none known
    model::Verification verified;   ///< by the daemon, when the engine was ready
    bool nodes_are_judged = false;  ///< by the daemon, just now: what it cannot know is left to be told
};

struct Judgement {
    bool fine = true;
    std::string text;

    bool operator==(const Judgement&) const = default;
};
/// In words, the most important first.
std::vector<Judgement> judge(const Found& found, const Bounds& bounds);

model::Dict to_dict(const Found& found, const Bounds& bounds);
std::string where_text(const Found& found, const Bounds& bounds, std::size_t width);

/// "node 1", "nodes 0-1".
std::string nodes_text(const model::NodeSet& nodes);
using model::share_text;
/// "58 % on node 2, 42 % on node 0"; "on node 2" where that is all.
std::string spread_text(const PerNode& nodes);

}  // namespace numalease::client
