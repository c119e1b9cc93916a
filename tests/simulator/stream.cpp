#include "simulator/stream.hpp"

#include <algorithm>

#include "support/topologies.hpp"

namespace numalease::test {

using model::kGiB;
using model::Micros;

namespace {

constexpr Micros second{1'000'000};

class Random {
public:
    explicit Random(unsigned seed) : engine_(seed) {}
    unsigned below(unsigned limit) { return static_cast<unsigned>(engine_() % limit); }
    unsigned between(unsigned least, unsigned most) { return least + below(most - least + 1); }
    bool one_in(unsigned n) { return below(n) == 0; }
    /// Many short, few long, as jobs are: 10 s to an hour.
    Micros duration() { return second * (std::int64_t{10} << below(9)); }

private:
    std::mt19937 engine_;
};

std::string what(Random& random, const model::Topology& topology) {
    const auto nodes = static_cast<unsigned>(topology.nodes.size());
    std::string out;
    const auto kind = random.below(10);
    if (kind < 5)
        out = "cores=" +
              std::to_string(random.between(1, std::max(1U, static_cast<unsigned>(topology.cores.size()) / 2)));
    else if (kind < 8)
        out = "node=any:" + std::to_string(random.between(1, nodes));
    else if (kind < 9)
        out = "node=all";
    else
        out = "node=" + std::to_string(topology.nodes[random.below(nodes)].id);
    if (random.one_in(3)) out += " memory=" + std::to_string(random.between(1, 40)) + "G mempolicy=bind";
    if (random.one_in(8)) out += " share=yes";
    if (random.one_in(6))
        out += " numa-balancing=" + std::string(random.one_in(2) ? "off" : "on") + " required=numa-balancing";
    if (random.one_in(5)) out += " class=" + std::string(random.one_in(2) ? "batch" : "service");
    return out;
}

}  // namespace

Stream random_stream(unsigned seed) {
    Random random(seed);
    Stream out;
    out.topology = regular({.sockets = random.between(1, 2),
                            .nodes_per_socket = random.between(1, 4),
                            .cores_per_node = random.between(1, 8),
                            .threads_per_core = random.between(1, 2),
                            .cores_per_llc = random.between(1, 4),
                            .memory_per_node = random.between(8, 64) * kGiB});
    out.scheduling.aging = second * (random.one_in(3) ? 60 : 3600);
    out.scheduling.half_life = second * (random.one_in(3) ? 600 : 86'400);
    const bool all_end = !random.one_in(4);
    const auto users = random.between(1, 4);
    for (unsigned user = 0; user < users; ++user) {
        auto& limits = out.limits[1000 + user];
        limits.weight = random.between(1, 4);
        if (random.one_in(4)) limits.leases = random.between(1, 3);
        if (random.one_in(5)) limits.cores = random.between(1, 8);
        if (random.one_in(6)) limits.memory = random.between(8, 64) * kGiB;
        if (random.one_in(8)) limits.nodes = random.between(1, 3);
        if (random.one_in(8)) limits.queued = random.between(1, 5);
    }
    const auto jobs = random.between(20, 60);
    Micros now{0};
    for (unsigned i = 0; i < jobs; ++i) {
        now += second * random.between(0, 120);
        Job job{.arrives = now, .uid = 1000 + random.below(users), .fields = what(random, out.topology)};
        job.runs = random.duration();
        if (all_end || random.one_in(2)) job.limit = job.runs * random.between(1, 3) + second;
        if (job.limit && random.one_in(10)) {
            job.runs = *job.limit * 10;
            job.ignores_term = random.one_in(2);
        }
        job.fields += random.one_in(8) ? " wait=10min" : random.one_in(10) ? " wait=no" : " wait=forever";
        out.jobs.push_back(std::move(job));
    }
    return out;
}

Stream saturated_stream(unsigned seed) {
    Random random(seed);
    Stream out;
    out.topology = regular({.sockets = 2, .nodes_per_socket = 2, .cores_per_node = 4});
    out.scheduling.half_life = second * 3600 * 24;
    for (unsigned user = 0; user < 3; ++user) {
        out.limits[1000 + user].weight = 1U << user;
        for (unsigned i = 0; i < 60U * (user + 1); ++i) {
            Job job{.uid = 1000 + user, .fields = "node=any:1 wait=forever"};
            job.runs = second * random.between(60, 600);
            job.limit = job.runs * 2;
            out.jobs.push_back(std::move(job));
        }
    }
    return out;
}

Stream starving_stream(unsigned seed) {
    Random random(seed);
    Stream out;
    out.topology = regular({.sockets = 2, .nodes_per_socket = 2, .cores_per_node = 4});
    out.scheduling.aging = second * 1800;
    const auto cores = static_cast<unsigned>(out.topology.cores.size());
    for (unsigned i = 0; i < 1500; ++i) {
        Job job{.arrives = second * 10 * i, .uid = 1000 + i % 5};
        job.fields = "cores=" + std::to_string(random.between(1, 2)) + " wait=forever";
        job.runs = second * random.between(30, 180);
        job.limit = job.runs + second * random.between(0, 120);
        out.jobs.push_back(std::move(job));
        if (i != 100) continue;
        job.uid = 1000;
        job.fields = "cores=" + std::to_string(cores) + " node=all wait=forever";
        out.jobs.push_back(std::move(job));
    }
    return out;
}

}  // namespace numalease::test
