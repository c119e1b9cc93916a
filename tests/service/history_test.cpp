#include "service/history.hpp"

#include <gtest/gtest.h>
#include <systemd/sd-event.h>

#include <fstream>

#include "support/fake_root.hpp"

namespace numalease::service {
namespace {

using model::LeaseState;
using model::Micros;
using test::TempDir;

constexpr auto kBoot = "6f9e5f68-bb15-4221-ab3f-7f114ca762c8";

model::Lease lease_of(const std::string& id, LeaseState state) {
    model::Lease lease{.id = id, .state = state, .reason = "its last process is gone"};
    lease.caller.uid = 1001;
    lease.request.command = "llama-server";
    lease.placement = {.cpus = {0, 1}, .nodes = {0}, .cores = 2, .threads = 2};
    lease.queued = {.boot = Micros(100), .real = Micros(1'000'100)};
    lease.started = {.boot = Micros(300), .real = Micros(1'000'300)};
    lease.ended = {.boot = Micros(1000), .real = Micros(1'001'000)};
    return lease;
}

core::State state_of(const std::vector<model::Lease>& leases) {
    core::State state;
    for (const auto& lease : leases) state.leases[lease.id] = lease;
    return state;
}

class HistoryOf : public testing::Test {
protected:
    HistoryOf() {
        sd_event_new(&event_);
        background_ = std::make_unique<Background>(event_);
    }
    ~HistoryOf() override {
        background_.reset();
        sd_event_unref(event_);
    }
    History open() {
        return {directory_.text(), kBoot, background_.get(), [](const model::Lease&) { return 0.5; }};
    }
    /// Everything is written when this returns.
    void flush() { background_ = std::make_unique<Background>(event_); }

    TempDir directory_;
    sd_event* event_ = nullptr;
    std::unique_ptr<Background> background_;
    test::FakeRoot root_;
    Machine machine_{.root = root_.root(), .proc = root_.root(), .gpus = root_.root(), .cgroup2 = "cg"};
    Uses uses_{machine_};
};

TEST_F(HistoryOf, HasALeaseOnceWithWhatItWas) {
    auto history = open();
    const auto active = state_of({lease_of("c1", LeaseState::active)});
    const auto over = state_of({lease_of("c1", LeaseState::ended)});
    history.changed(active, over, uses_);
    history.changed(over, over, uses_);
    flush();
    const auto found = open().newest(10);  // as the next daemon reads it
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found, history.newest(10));
    const model::Dict wanted{{"id", "c1"},
                             {"boot", kBoot},
                             {"uid", 1001U},
                             {"command", "llama-server"},
                             {"class", "normal"},
                             {"cores", 2U},
                             {"nodes", "0"},
                             {"state", "ended"},
                             {"reason", "its last process is gone"},
                             {"queued_usec", std::uint64_t{1'000'100}},
                             {"ended_usec", std::uint64_t{1'001'000}},
                             {"waited_usec", std::uint64_t{200}},
                             {"ran_usec", std::uint64_t{700}},
                             {"node_seconds", std::uint64_t{0}}};
    EXPECT_EQ(found[0], wanted);
}

TEST_F(HistoryOf, HasWhatWaitedInVainAndNotWhatWasRefusedAtOnce) {
    auto history = open();
    auto refused = lease_of("c1", LeaseState::refused);
    refused.started = {};
    history.changed({}, state_of({refused}), uses_);
    EXPECT_TRUE(history.newest(10).empty());
    history.changed(state_of({lease_of("c1", LeaseState::queued)}), state_of({refused}), uses_);
    const auto found = history.newest(10);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(get_number(found[0], "waited_usec"), 900U);
    EXPECT_FALSE(found[0].contains("ran_usec"));
}

TEST_F(HistoryOf, RemembersWhatUsersHaveUsed) {
    using std::chrono::hours;
    const auto ended = [](const std::string& id, unsigned uid, Micros ran) {
        auto lease = lease_of(id, LeaseState::ended);
        lease.caller.uid = uid;
        lease.started.boot = Micros(1000);
        lease.ended = {.boot = Micros(1000) + ran, .real = hours(100)};
        return lease;
    };
    auto part = ended("c3", 1001, hours(5));
    part.caller.parent = "c1";  // counted with the one that it is in
    auto waited = ended("c4", 1003, hours(0));
    waited.started = {};
    const std::vector over{ended("c1", 1001, hours(1)), ended("c2", 1002, hours(2)), part, waited};
    auto history = open();
    auto before = over;
    for (auto& lease : before) lease.state = LeaseState::active;
    history.changed(state_of(before), state_of(over), uses_);
    flush();
    const model::Instant now{.boot = Micros(5), .real = hours(101)};
    const auto never = open().usage(now, model::kNever);
    ASSERT_EQ(never.size(), 2U);
    EXPECT_NEAR(never.at(1001).node_seconds, 1800, 1);
    EXPECT_NEAR(never.at(1002).node_seconds, 3600, 1);
    EXPECT_EQ(never.at(1001).at, now.boot);
    EXPECT_EQ(never.at(1001).served, Micros(0));
    // An hour at half a node, of which the mean age was half an hour at its end; and an hour since.
    EXPECT_NEAR(open().usage(now, hours(1)).at(1001).node_seconds, 1800 * 0.7213 / 2, 1);
    // A clock that went back makes nothing of it more than it was.
    EXPECT_NEAR(open().usage({.boot = now.boot, .real = hours(1)}, hours(1)).at(1001).node_seconds, 1800 * 0.7213, 1);
}

TEST_F(HistoryOf, SaysHowBusyItWasWithItsLastReading) {
    root_.set("cg/a/cpu.stat", "usage_usec 5000000\n");
    auto history = open();
    auto lease = lease_of("c1", LeaseState::active);
    lease.confinement = {.kind = model::ConfinementKind::scope, .cgroup = "/a"};
    lease.confinement.use_before = {.at = Micros(300), .cpu = Micros(1'000'000)};
    const auto active = state_of({lease});
    lease.state = LeaseState::ending;
    const auto ending = state_of({lease});
    uses_.changed(active, ending);
    root_.remove("cg/a/cpu.stat");  // the cgroup goes before the lease is over
    lease.state = LeaseState::ended;
    const auto over = state_of({lease});
    history.changed(ending, over, uses_);
    const auto found = history.newest(1);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(get_number(found[0], "cpu_usec"), 4'000'000U);
    EXPECT_TRUE(found[0].contains("busy_permille"));
}

TEST_F(HistoryOf, OfADiskThatFailsIsStillInMemory) {
    std::ofstream(directory_.text() + "/file") << "x";
    History history(directory_.text() + "/file/none", kBoot, background_.get(),
                    [](const model::Lease&) { return 1.0; });
    history.changed(state_of({lease_of("c1", LeaseState::active)}), state_of({lease_of("c1", LeaseState::ended)}),
                    uses_);
    EXPECT_EQ(history.newest(10).size(), 1U);
}

TEST_F(HistoryOf, IsBoundedInWordsAndCount) {
    auto history = open();
    auto lease = lease_of("c1", LeaseState::ended);
    for (lease.request.command.clear(); lease.request.command.size() < 4000;) lease.request.command += "ü";
    history.changed(state_of({lease_of("c1", LeaseState::active)}), state_of({lease}), uses_);
    history.changed(state_of({lease_of("c2", LeaseState::active)}), state_of({lease_of("c2", LeaseState::ended)}),
                    uses_);
    EXPECT_TRUE(history.newest(0).empty());
    const auto last = history.newest(1);
    ASSERT_EQ(last.size(), 1U);
    EXPECT_EQ(get_text(last[0], "id"), "c2");
    const auto command = get_text(history.newest(2)[1], "command");
    EXPECT_EQ(command.size(), 256U + std::string("…").size());
    EXPECT_TRUE(command.ends_with("ü…"));
}

TEST(Uses, OfASliceAreAtLeastThat) {
    const test::FakeRoot root{{"cg/s/cpu.stat", "usage_usec 7\n"}};
    const Machine machine{.root = root.root(), .proc = root.root(), .gpus = root.root(), .cgroup2 = "cg"};
    Uses uses(machine);
    auto lease = lease_of("c1", LeaseState::active);
    lease.confinement = {.kind = model::ConfinementKind::slice, .cgroup = "/s"};
    lease.confinement.use_before.cpu = Micros(100);  // made anew since
    const auto use = uses.dict_of(lease);
    EXPECT_EQ(get_number(use, "cpu_usec"), 7U);
    EXPECT_TRUE(get_flag(use, "at_least"));
}

TEST(Uses, OfAUnitAreThoseOfItsCgroupWithoutWhatWasBefore) {
    const test::FakeRoot root{{"cg/system.slice/a.service/cpu.stat", "usage_usec 150\n"}};
    const Machine machine{.root = root.root(), .proc = root.root(), .gpus = root.root(), .cgroup2 = "cg"};
    Uses uses(machine);
    auto lease = lease_of("c1", LeaseState::active);
    lease.caller.cgroup = "/system.slice/a.service";
    lease.confinement = {.kind = model::ConfinementKind::unit};
    lease.confinement.use_before.cpu = Micros(100);
    EXPECT_EQ(get_number(uses.dict_of(lease), "cpu_usec"), 50U);
    lease.confinement.kind = model::ConfinementKind::affinity;  // its holders, of whom none is there
    lease.id = "c2";
    EXPECT_TRUE(uses.dict_of(lease).empty());
}

}  // namespace
}  // namespace numalease::service
