#include <benchmark/benchmark.h>

#include "support/topologies.hpp"

namespace numalease {
namespace {

/// Every other core is leased, by `leases` in turn, and each of them was promised some memory.
core::Occupancy crowded(const model::Topology& topology, unsigned leases) {
    auto out = test::nobody(topology);
    for (unsigned i = 0; i < leases; ++i) out.occupants.push_back({.id = "c" + std::to_string(i + 1)});
    for (std::size_t i = 0; i < topology.cores.size(); i += 2) {
        auto& occupant = out.occupants[i / 2 % leases];
        occupant.cpus |= topology.cores[i].cpus;
        occupant.outstanding[topology.cores[i].node] = 64 * model::kMiB;
    }
    return out;
}

void run(benchmark::State& state, const model::Topology& topology, unsigned leases, const model::Request& request) {
    const auto observed = test::at_rest(topology);
    const auto occupancy = crowded(topology, leases);
    for (auto unused : state) {
        auto placed = core::place(observed, occupancy, request);
        benchmark::DoNotOptimize(placed);
    }
}

model::Request cores_and_memory(unsigned cores, model::Bytes memory) {
    model::Request out;
    out.cores = cores;
    out.memory = memory;
    return out;
}

model::Request any_nodes(unsigned count, unsigned cores) {
    auto out = cores_and_memory(cores, model::kGiB);
    out.nodes = {.kind = model::Choice::Kind::any, .items = {}, .count = count};
    return out;
}

/// place() on 4 nodes and 32 threads with 4 leases.
void FourNodesOneNode(benchmark::State& s) {
    run(s, test::dual_socket_four_nodes(), 4, cores_and_memory(2, model::kGiB));
}
void FourNodesRefused(benchmark::State& s) {
    run(s, test::dual_socket_four_nodes(), 4, cores_and_memory(12, model::kGiB));
}
/// place() on 64 nodes and 4096 threads with 200 leases. Aim: under 1 ms.
void SixtyFourNodesOneNode(benchmark::State& s) {
    run(s, test::sixty_four_nodes(), 200, cores_and_memory(8, model::kGiB));
}
void SixtyFourNodesEight(benchmark::State& s) {
    run(s, test::sixty_four_nodes(), 200, cores_and_memory(100, 400 * model::kGiB));
}
void SixtyFourNodesAnyThirtyTwo(benchmark::State& s) { run(s, test::sixty_four_nodes(), 200, any_nodes(32, 400)); }
void SixtyFourNodesRefused(benchmark::State& s) { run(s, test::sixty_four_nodes(), 200, {}); }

BENCHMARK(FourNodesOneNode)->Unit(benchmark::kMicrosecond);
BENCHMARK(FourNodesRefused)->Unit(benchmark::kMicrosecond);
BENCHMARK(SixtyFourNodesOneNode)->Unit(benchmark::kMicrosecond);
BENCHMARK(SixtyFourNodesEight)->Unit(benchmark::kMicrosecond);
BENCHMARK(SixtyFourNodesAnyThirtyTwo)->Unit(benchmark::kMicrosecond);
BENCHMARK(SixtyFourNodesRefused)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace numalease
