#include <gtest/gtest.h>

#include "support/fake_machine.hpp"

namespace numalease {
namespace {

using model::kMiB;
using model::UnitProperty;
using test::FakeMachine;

constexpr model::Bytes kNode = 1024 * kMiB;

/// Two nodes of 1 GiB with 768 MiB free each, of which 256 MiB stay in reserve.
FakeMachine machine(std::string cgroup = "/user.slice/user-1001.slice/session-1.scope") {
    FakeMachine out(test::simple_topology(2, 4));
    out.observed.systemd = true;
    out.cgroup = std::move(cgroup);
    for (auto& [id, memory] : out.observed.memory) memory = {.total = kNode, .free = 768 * kMiB, .clean_cache = 0};
    return out;
}

std::string limit_of(const FakeMachine& at, const std::string& id) {
    const auto* setting = model::find_setting(at.lease(id).confinement.settings, UnitProperty::memory);
    return setting == nullptr ? "none" : model::bytes_text(std::stoull(setting->value));
}

TEST(MemoryLimit, IsWhatTheNodesCanGiveWithoutTheReserve) {
    auto at = machine();
    EXPECT_EQ(limit_of(at, at.acquire("node=0")), "512M");
    auto both = machine();
    EXPECT_EQ(limit_of(both, both.acquire("node=0-1")), "1G");
}

TEST(MemoryLimit, LeavesOutWhatIsPromisedToAnother) {
    auto at = machine();
    at.acquire("node=0 cores=1 memory=200M");
    EXPECT_EQ(limit_of(at, at.acquire("node=0 cores=1")), "312M");
}

TEST(MemoryLimit, FollowsATypedAmountWithAnAllowanceButNeverAnEstimate) {
    auto at = machine();
    EXPECT_EQ(limit_of(at, at.acquire("node=0 cores=1 memory=64M")), "328M");
    EXPECT_EQ(limit_of(at, at.acquire("node=1 cores=1 memory=64M memory-is-estimate=yes")), "512M");
    EXPECT_EQ(limit_of(at, at.acquire("node=1 cores=1 memory-max=100M")), "100M");
}

TEST(MemoryLimit, LetsALeaseOnAFullNodeSaySo) {
    auto at = machine();
    at.observed.memory[0].free = 0;
    EXPECT_EQ(limit_of(at, at.acquire("node=0")), "64M");
}

TEST(MemoryLimit, OfAUnitIsNeverAboveWhatBoundItBefore) {
    auto at = machine("/system.slice/foo.service");
    at.unit[UnitProperty::memory] = std::to_string(300 * kMiB);
    EXPECT_EQ(limit_of(at, at.acquire("node=0")), "none") << "its own is tighter, and stays";
    auto wide = machine("/system.slice/foo.service");
    wide.unit[UnitProperty::memory] = std::to_string(900 * kMiB);
    EXPECT_EQ(limit_of(wide, wide.acquire("node=0")), "512M");
}

TEST(OutOfMemory, IsToldWithItsLimitAndWhyTheLeaseEnded) {
    auto at = machine();
    const auto id = at.acquire("node=0 memory-max=100M");
    at.handle(core::OutOfMemory{.lease = id, .events = {.oom = 1, .oom_kill = 1}});
    const std::string text = "out of memory: 1 process killed at the lease's limit of 100M (MemoryMax=104857600)";
    EXPECT_EQ(at.lease(id).reason.substr(0, text.size()), text);
    at.handle(core::OutOfMemory{.lease = id, .events = {.oom = 2, .oom_kill = 3}});
    EXPECT_EQ(at.lease(id).oom_kills, 3U);
    EXPECT_EQ(at.lease(id).notes.size(), 1U);
    at.holder_gone(id);
    EXPECT_TRUE(at.lease(id).reason.starts_with("out of memory: 3 processes")) << at.lease(id).reason;
}

TEST(OutOfMemory, ThatIsNotItsOwnIsNotSaidToBe) {
    auto at = machine();
    const auto id = at.acquire("node=0");
    at.handle(core::OutOfMemory{.lease = id, .events = {.oom = 0, .oom_kill = 1}});
    EXPECT_EQ(at.lease(id).reason, "out of memory: 1 process killed, not at the lease's own limit");
}

TEST(OutOfMemory, IsCountedFromZeroWhereASliceWasMadeAnew) {
    auto at = machine();
    const auto id = at.acquire("node=0");
    const auto kills = [&](std::uint64_t events) {
        at.handle(core::OutOfMemory{.lease = id, .events = {.oom = events, .oom_kill = events}});
        return at.lease(id).oom_kills;
    };
    EXPECT_EQ(kills(5), 5U);
    EXPECT_EQ(kills(2), 7U) << "two of the new one's";
    EXPECT_EQ(kills(3), 8U);
    EXPECT_EQ(kills(0), 8U);
    EXPECT_EQ(kills(3), 11U);
}

TEST(Runs, OfAUnitThatAskAgainEndTheFormerLeaseAndAreNotBoundByItsMasks) {
    auto at = machine("/system.slice/foo.service");
    auto caller = at.caller();
    caller.invocation = "one";
    at.handle(core::Acquire{test::request("node=0"), caller});
    at.state.leases.at("c1").confinement.whole_unit = true;
    caller.invocation = "two";
    caller.parent = "c1";
    caller.process.pid += 1;
    caller.allowed_cpus = at.lease("c1").placement.cpus;
    at.handle(core::Acquire{test::request("node=1"), caller});
    EXPECT_EQ(at.lease("c1").state, model::LeaseState::ended);
    EXPECT_EQ(at.lease("c1").reason, "the next run of foo.service asks for something else");
    EXPECT_EQ(at.lease("c2").state, model::LeaseState::active);
    EXPECT_EQ(at.lease("c2").caller.parent, "");
    EXPECT_EQ(at.lease("c2").confinement.kind, model::ConfinementKind::unit);
}

}  // namespace
}  // namespace numalease
