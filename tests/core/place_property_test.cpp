#include <gmock/gmock.h>

#include <random>

#include "support/place_oracle.hpp"
#include "support/placing.hpp"

namespace numalease {
namespace {

using model::Bytes;
using model::kGiB;
using testing::IsEmpty;

/// A random machine with random leases, and random requests of it. The same seed, the same trace.
class Random {
public:
    explicit Random(unsigned seed) : engine_(seed) {}

    unsigned below(unsigned limit) { return static_cast<unsigned>(engine_() % limit); }
    bool one_in(unsigned n) { return below(n) == 0; }

    model::Topology topology() {
        auto out = test::regular({.sockets = 1 + below(3),
                                  .nodes_per_socket = 1 + below(3),
                                  .cores_per_node = 1 + below(8),
                                  .threads_per_core = 1 + below(2),
                                  .cores_per_llc = 1 + below(6),
                                  .memory_per_node = (1 + below(64)) * kGiB});
        const unsigned stride = 1 + below(3);
        for (auto& node : out.nodes) {
            node.id *= stride;
            if (one_in(10)) node.total = 0;
        }
        for (auto& core : out.cores) {
            core.node *= stride;
            if (one_in(6)) core.efficiency = 1;
        }
        if (one_in(3))
            out.nodes.push_back(
                {.id = out.nodes.back().id + 1, .kind = model::NodeKind::memory_only, .total = 32 * kGiB});
        for (const unsigned cpu : out.online.items()) {
            if (one_in(12))
                test::take_offline(out, cpu);
            else if (one_in(30))
                out.isolated.add(cpu);
        }
        if (one_in(3)) out.distance.clear();
        for (unsigned i = below(6); i > 0; --i)
            out.devices.push_back(
                {.pci = "0000:" + std::to_string(10 + i) + ":00.0",
                 .kind = "gpu",
                 .nodes = one_in(3) ? model::NodeSet{}
                                    : model::NodeSet{out.nodes[below(static_cast<unsigned>(out.nodes.size()))].id},
                 .vendor = one_in(4) ? "amd" : "nvidia",
                 .uuid = one_in(4) ? "" : "GPU-" + std::to_string(i)});
        return out;
    }

    void restrict(core::Occupancy& occupancy, const model::Topology& topology) {
        occupancy.reserve = below(3) * model::kMiB * 128;
        if (one_in(3))
            for (const unsigned cpu : topology.online.items())
                if (one_in(3)) occupancy.allowed_cpus.remove(cpu);
        if (one_in(4) && topology.nodes.size() > 1) occupancy.allowed_nodes.remove(topology.nodes[0].id);
        if (one_in(4) && !topology.online.empty()) occupancy.foreign_cpus.add(topology.online.first());
    }

    model::Request request(const model::Topology& topology) {
        model::Request out;
        const auto choose = [&](unsigned limit) {
            model::Choice choice{.kind = one_in(2) ? model::Choice::Kind::list : model::Choice::Kind::any};
            choice.count = 1 + below(3);
            for (unsigned i = 0; i < choice.count; ++i) choice.items.add(below(limit));
            return choice;
        };
        if (one_in(3))
            out.nodes = choose(topology.nodes.back().id + 1);
        else if (one_in(4))
            out.sockets = choose(3);
        if (!one_in(3)) out.cores = 1 + below(6);
        if (one_in(2)) out.memory = (1 + below(40)) * kGiB + below(4096);
        if (one_in(3)) {
            out.gpus.any = 1 + below(3);
            if (one_in(2)) out.gpus = {.items = {std::to_string(below(5)), std::to_string(below(5))}, .any = 0};
            if (one_in(3)) out.gpu_share = 1 + below(3);
        }
        out.share = one_in(4);
        out.isolated = one_in(5);
        out.mode = one_in(2) ? model::Mode::all : model::Mode::physical;
        if (one_in(3)) out.mempolicy = model::Mempolicy::interleave;
        if (one_in(6)) {
            out.mempolicy = model::Mempolicy::weighted;
            for (const auto& node : topology.nodes) out.weights[node.id] = 1 + below(255);
        }
        return out;
    }

private:
    std::mt19937 engine_;
};

void become_an_occupant(core::Occupancy& occupancy, const model::Request& request, const model::Placement& placement) {
    occupancy.occupants.push_back({.id = "c" + std::to_string(occupancy.occupants.size() + 1),
                                   .cpus = placement.cpus,
                                   .share = request.share,
                                   .outstanding = placement.promise,
                                   .gpus = model::gpu_addresses(placement),
                                   .gpu_share = request.gpu_share});
}

class PlaceProperty : public testing::TestWithParam<unsigned> {};

/// Leases come and go at random on a random machine; every answer is checked by the oracle.
TEST_P(PlaceProperty, EveryPlacementKeepsTheRules) {
    Random random(GetParam());
    unsigned placed = 0;
    unsigned with_gpus = 0;
    for (unsigned machine = 0; machine < 40; ++machine) {
        const auto topology = random.topology();
        const auto observed = test::at_rest(topology);
        auto occupancy = test::nobody(topology);
        random.restrict(occupancy, topology);
        for (unsigned attempt = 0; attempt < 12; ++attempt) {
            const auto request = random.request(topology);
            const auto got = core::place(observed, occupancy, request);
            if (!got) continue;
            ++placed;
            with_gpus += got->gpus.empty() ? 0U : 1U;
            ASSERT_THAT(test::broken_rules(observed, occupancy, request, *got), IsEmpty()) << "machine " << machine;
            become_an_occupant(occupancy, request, *got);
            if (random.one_in(4)) occupancy.occupants.erase(occupancy.occupants.begin());
        }
    }
    EXPECT_GT(placed, 60U);  // else nothing was looked at
    EXPECT_GT(with_gpus, 10U);
}

/// `not_now` keeps its word: without those in the way it is granted. `impossible` does too: never, on an idle machine.
TEST_P(PlaceProperty, RefusalsKeepTheirWord) {
    Random random(GetParam() + 1000);
    unsigned not_now = 0;
    for (unsigned machine = 0; machine < 60; ++machine) {
        const auto topology = random.topology();
        const auto observed = test::at_rest(topology);
        auto occupancy = test::nobody(topology);
        for (unsigned attempt = 0; attempt < 12; ++attempt) {
            const auto request = random.request(topology);
            const auto got = core::place(observed, occupancy, request);
            if (got) {
                become_an_occupant(occupancy, request, *got);
                continue;
            }
            const auto& no = got.error();
            auto later = occupancy;
            if (no.error.code == model::Errc::not_now) {
                ++not_now;
                ASSERT_THAT(no.in_the_way, testing::Not(IsEmpty())) << no.error.detail;
                std::erase_if(later.occupants, [&](const core::Occupant& it) {
                    return std::ranges::find(no.in_the_way, it.id) != no.in_the_way.end();
                });
                EXPECT_TRUE(core::place(observed, later, request)) << no.error.detail;
            } else {
                later.occupants.clear();
                EXPECT_FALSE(core::place(observed, later, request)) << no.error.detail;
            }
        }
    }
    EXPECT_GT(not_now, 20U);
}

TEST_P(PlaceProperty, SameInputSameAnswer) {
    Random random(GetParam() + 2000);
    for (unsigned machine = 0; machine < 20; ++machine) {
        const auto topology = random.topology();
        const auto observed = test::at_rest(topology);
        auto occupancy = test::nobody(topology);
        const auto request = random.request(topology);
        const auto first = core::place(observed, occupancy, request);
        const auto copy = observed;
        const auto second = core::place(copy, occupancy, request);
        ASSERT_EQ(first.has_value(), second.has_value());
        EXPECT_EQ(first.value_or(model::Placement{}), second.value_or(model::Placement{}));
        if (!first) {
            EXPECT_EQ(first.error().error, second.error().error);
        }
    }
}

/// What is offered as fitting now does fit, when typed as it is written.
TEST_P(PlaceProperty, OffersFit) {
    Random random(GetParam() + 3000);
    unsigned offers = 0;
    for (unsigned machine = 0; machine < 60; ++machine) {
        const auto topology = random.topology();
        const auto observed = test::at_rest(topology);
        auto occupancy = test::nobody(topology);
        for (unsigned attempt = 0; attempt < 10; ++attempt) {
            const auto request = random.request(topology);
            const auto got = core::place(observed, occupancy, request);
            if (got) become_an_occupant(occupancy, request, *got);
            if (got || got.error().fits_now.empty()) continue;
            std::string rest = got.error().fits_now + " or ";
            for (auto end = rest.find(" or "); end != std::string::npos; end = rest.find(" or ")) {
                const auto option = rest.substr(2, end - 2);
                const auto blank = option.find(' ');
                rest.erase(0, end + 4);
                auto other = request;
                ASSERT_TRUE(model::set_field(other, option.substr(0, blank),
                                             blank == std::string::npos ? "yes" : option.substr(blank + 1)))
                    << option;
                EXPECT_TRUE(core::place(observed, occupancy, other)) << got.error().error.detail << " / " << option;
                ++offers;
            }
        }
    }
    EXPECT_GT(offers, 10U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PlaceProperty, testing::Range(1U, 6U));

/// The fewest nodes, compared with every subset of a small machine.
TEST(PlaceOptimal, FindsAPairWhereverThereIsOne) {
    Random random(7);
    for (unsigned round = 0; round < 300; ++round) {
        const auto topology = test::regular({.sockets = 2, .nodes_per_socket = 3, .cores_per_node = 6});
        auto observed = test::at_rest(topology);
        auto occupancy = test::nobody(topology);
        for (unsigned node = 0; node < 6; ++node) observed.memory[node].free = random.below(20) * kGiB;
        core::Occupant other{.id = "c1"};
        for (const unsigned cpu : topology.online.items())
            if (random.one_in(2)) other.cpus.add(cpu);
        occupancy.occupants = {other};
        model::Request request;
        request.cores = 2 + random.below(8);
        request.memory = (5 + random.below(30)) * kGiB;

        std::size_t fewest = 99;
        for (unsigned subset = 1; subset < 64; ++subset) {
            unsigned cores = 0;
            Bytes memory = 0;
            std::size_t size = 0;
            for (unsigned node = 0; node < 6; ++node) {
                if ((subset >> node & 1U) == 0) continue;
                ++size;
                cores += (topology.nodes[node].cpus - other.cpus).size();
                memory += observed.memory[node].free;
            }
            if (cores >= *request.cores && memory >= *request.memory) fewest = std::min(fewest, size);
        }
        const auto got = core::place(observed, occupancy, request);
        if (fewest <= 2) {
            ASSERT_TRUE(got) << got.error().error.detail;
            EXPECT_EQ(got->nodes.size(), fewest);
        } else if (got) {
            EXPECT_GE(got->nodes.size(), fewest);
        }
        EXPECT_EQ(got.has_value(), fewest < 99);
    }
}

}  // namespace
}  // namespace numalease
