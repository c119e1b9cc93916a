// The crash matrix: the daemon dies after its n-th action (an append to the journal, or an effect), for every n, and
// the next one starts from the journal alone.

#include <gtest/gtest.h>

#include <random>

#include "support/fake_machine.hpp"

namespace numalease {
namespace {

using model::Knob;
using model::KnobKey;
using model::LeaseState;
using test::Crash;
using test::FakeMachine;
using test::until_crash;

constexpr KnobKey kBalancing{.knob = Knob::numa_balancing};
constexpr KnobKey kThp{.knob = Knob::thp_enabled};

KnobKey pool_key(unsigned node) { return {.knob = Knob::hugepages, .node = node, .page_size = 2 * model::kMiB}; }

/// Two overlapping leases with every kind of knob, one after the other ended.
void scenario(FakeMachine& machine) {
    const auto first = machine.acquire("node=0 numa-balancing=off thp=always hugepages=2M=32M required=numa-balancing");
    const auto second = machine.acquire("node=1 numa-balancing=off hugepages=2M=8M@0-1");
    machine.holder_gone(first);
    machine.acquire("node=0 zone-reclaim=1 hugepages=2M=4M");
    machine.holder_gone(second);
    for (const auto& id : std::set(machine.alive)) machine.holder_gone(id);
}

FakeMachine start() {
    FakeMachine machine(test::simple_topology(2, 4));
    machine.knobs[kBalancing] = "2";
    machine.pools[pool_key(0)] = {.persistent = 3, .surplus = 2, .used = 5};
    machine.pools[pool_key(1)] = {.persistent = 1};
    return machine;
}

void expect_as_at_start(FakeMachine& machine) {
    const auto begin = start();
    EXPECT_EQ(machine.knobs, begin.knobs);
    for (const auto& [key, pool] : begin.pools) {
        EXPECT_EQ(machine.pools[key].persistent, pool.persistent) << key.text();
        EXPECT_EQ(machine.pools[key].surplus, pool.surplus) << key.text();
    }
    EXPECT_TRUE(core::idle(machine.state));
    EXPECT_TRUE(machine.problems.empty()) << machine.problems.front();
}

std::size_t all_actions() {
    auto machine = start();
    scenario(machine);
    return machine.actions;
}

TEST(Crash, AtEveryActionTheMachineComesBackWhenTheHoldersAreDead) {
    const auto total = all_actions();
    ASSERT_GT(total, 30U);
    for (std::size_t n = 0; n <= total; ++n) {
        SCOPED_TRACE(n);
        auto machine = start();
        machine.crash_after = n;
        until_crash(machine, scenario);
        machine.alive.clear();
        machine.restart();
        machine.settle();
        expect_as_at_start(machine);
    }
}

TEST(Crash, AtEveryActionLiveLeasesAreKeptAndTheMachineComesBackAfterThem) {
    const auto total = all_actions();
    for (std::size_t n = 0; n <= total; ++n) {
        SCOPED_TRACE(n);
        auto machine = start();
        machine.crash_after = n;
        until_crash(machine, scenario);
        const auto held = core::replay(machine.journal, machine.reports);
        for (const auto& [id, lease] : held.leases)
            if (lease.state == LeaseState::active) machine.alive.insert(id);
        machine.restart();
        for (const auto& [id, lease] : held.leases)
            if (lease.state == LeaseState::active) {
                EXPECT_EQ(machine.lease(id).state, LeaseState::active);
                EXPECT_EQ(machine.lease(id).started, lease.started);
                if (lease.request.numa_balancing == model::Balancing::off) {
                    EXPECT_EQ(machine.knobs[kBalancing], "0");
                }
            }
        for (const auto& id : std::set(machine.alive)) machine.holder_gone(id);
        machine.settle();
        expect_as_at_start(machine);
    }
}

TEST(Crash, DyingAgainWhileRecoveringIsRecoveredToo) {
    const auto total = all_actions();
    for (std::size_t n = 0; n <= total; n += 3)
        for (std::size_t again = 1; again < 8; ++again) {
            SCOPED_TRACE(std::to_string(n) + " then " + std::to_string(again));
            auto machine = start();
            machine.crash_after = n;
            until_crash(machine, scenario);
            machine.alive.clear();
            try {
                std::vector<std::string> ignored;
                machine.state = core::replay(machine.journal, ignored);
                machine.crash_after = machine.actions + again;
                machine.handle(core::Recover{});
                machine.settle();
            } catch (const Crash&) {
            }
            machine.restart();
            machine.settle();
            expect_as_at_start(machine);
        }
}

/// A service with a prior of its own, on a kernel that loses threads' masks.
FakeMachine service() {
    FakeMachine machine(test::simple_topology(2, 4));
    machine.observed.systemd = true;
    machine.observed.loses_masks = true;
    machine.cgroup = "/system.slice/foo.service";
    machine.unit = {
        {model::UnitProperty::cpus, "0-5"}, {model::UnitProperty::nodes, ""}, {model::UnitProperty::memory, ""}};
    machine.masks = {{7, {1, 2}}, {8, {3}}};
    return machine;
}

void lease_of_service(FakeMachine& machine) {
    machine.holder_gone(machine.acquire("node=0 memory=64M"));
    machine.holder_gone(machine.acquire("node=1"));
}

TEST(Crash, AtEveryActionAUnitAndTheMasksOfThreadsComeBack) {
    auto whole = service();
    lease_of_service(whole);
    ASSERT_GT(whole.actions, 20U);
    for (std::size_t n = 0; n <= whole.actions; ++n) {
        SCOPED_TRACE(n);
        auto machine = service();
        machine.crash_after = n;
        until_crash(machine, lease_of_service);
        machine.alive.clear();
        machine.restart();
        machine.settle();
        EXPECT_EQ(machine.unit, service().unit);
        EXPECT_EQ(machine.masks, service().masks);
        EXPECT_TRUE(core::idle(machine.state));
        EXPECT_TRUE(machine.problems.empty()) << machine.problems.front();
    }
}

TEST(Crash, AJournalCutInsideOneAppendIsRecoveredToo) {
    // One append is several lines, and a write can be cut between any two of them.
    auto whole = start();
    whole.keep_whole_journal = true;
    scenario(whole);
    for (std::size_t kept = 0; kept <= whole.journal.size(); ++kept) {
        SCOPED_TRACE(kept);
        // The machine as it was when that record was written: everything before it had happened, nothing after.
        auto machine = start();
        machine.keep_whole_journal = true;
        machine.cut_journal_at = kept;
        until_crash(machine, scenario);
        machine.alive.clear();
        machine.restart();
        machine.settle();
        expect_as_at_start(machine);
    }
}

TEST(Crash, ShutdownPutsEverythingBackUnderLiveWorkloads) {
    const auto total = all_actions();
    for (std::size_t n = 0; n <= total; ++n) {
        SCOPED_TRACE(n);
        auto machine = start();
        machine.crash_after = n;
        until_crash(machine, scenario);
        machine.restart();
        machine.handle(core::Shutdown{});
        machine.settle();
        expect_as_at_start(machine);
        EXPECT_TRUE(machine.signals.empty());
    }
}

TEST(Crash, AShutdownThatKeepsLeasesLosesNothingWhereverItComes) {
    const auto total = all_actions();
    for (std::size_t n = 0; n <= total; ++n) {
        SCOPED_TRACE(n);
        auto machine = start();
        machine.crash_after = n;
        until_crash(machine, scenario);
        machine.restart();
        machine.crash_after.reset();
        const auto before = machine.state.leases;
        machine.handle(core::Shutdown{.keeps_leases = true});
        for (const auto& [id, lease] : before) {
            if (lease.state != model::LeaseState::active) continue;
            EXPECT_EQ(machine.state.leases.at(id), lease);
        }
        machine.restart();
        machine.alive.clear();
        machine.restart();
        machine.settle();
        expect_as_at_start(machine);
        EXPECT_TRUE(machine.signals.empty());
    }
}

TEST(Crash, AValueOfOursIsNeverTakenForAPriorAndForeignOnesSurvive) {
    // Random traces: leases come and go, an administrator sets values, the daemon dies. At the end the machine shows
    // the administrator's last word on each knob.
    for (unsigned seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        const auto pick = [&](unsigned n) { return std::uniform_int_distribution<unsigned>(0, n - 1)(random); };
        FakeMachine machine(test::simple_topology(4, 2));
        std::string last_balancing = "1";
        std::uint64_t admin_pages = 0;
        for (unsigned event = 0; event < 40; ++event) {
            machine.crash_after = pick(3) == 0 ? std::optional<std::size_t>(machine.actions + pick(6)) : std::nullopt;
            try {
                switch (pick(6)) {
                    case 0:
                    case 1: machine.acquire("node=any:1 numa-balancing=off thp=always hugepages=2M=8M wait=no"); break;
                    case 2:
                    case 3:
                        if (!machine.alive.empty())
                            machine.holder_gone(
                                *std::next(machine.alive.begin(), pick(static_cast<unsigned>(machine.alive.size()))));
                        break;
                    case 4:
                        last_balancing = machine.knobs[kBalancing] = pick(2) == 0 ? "2" : "3";
                        machine.handle(core::Tick{});
                        break;
                    default:
                        machine.pools[pool_key(pick(4))].persistent += 2;
                        admin_pages += 2;
                        break;
                }
            } catch (const Crash&) {
                const auto kept = core::replay(machine.journal, machine.reports);
                std::erase_if(machine.alive, [&](const auto& id) { return !kept.leases.contains(id); });
                machine.restart();
            }
            machine.now.boot += model::Micros(100'000);
        }
        machine.crash_after.reset();
        for (const auto& id : std::set(machine.alive)) machine.holder_gone(id);
        machine.handle(core::Shutdown{});
        machine.settle();
        EXPECT_EQ(machine.knobs[kBalancing], last_balancing);
        EXPECT_EQ(machine.knobs[kThp], "madvise");
        std::uint64_t pages = 0;
        for (unsigned node = 0; node < 4; ++node) pages += machine.pools[pool_key(node)].persistent;
        EXPECT_EQ(pages, admin_pages);
        EXPECT_TRUE(core::idle(machine.state));
        EXPECT_TRUE(machine.problems.empty()) << machine.problems.front();
    }
}

}  // namespace
}  // namespace numalease
