#include "service/squatters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service/manager.hpp"

namespace numalease::service {
namespace {

using model::LeaseState;
using testing::HasSubstr;

std::string name_of(unsigned uid) { return "user" + std::to_string(uid); }

host::BusyProcess process_on(int pid, std::vector<unsigned> cpus, unsigned percent,
                             const std::string& cgroup = "/other") {
    host::BusyProcess out{.pid = pid, .uid = 7, .command = "stress", .cgroup = cgroup};
    out.ancestry = {{.pid = pid, .start_time = 1}, {.pid = 2, .start_time = 1}};
    for (const auto cpu : cpus) out.threads.push_back({.pid = pid, .cpu = cpu, .percent = percent});
    return out;
}

core::State two_leases() {
    core::State state;
    model::Lease scope{.id = "c1", .state = LeaseState::active};
    scope.placement.cpus = {0, 1};
    scope.confinement = {.kind = model::ConfinementKind::scope, .cgroup = "/user.slice/c1.scope"};
    model::Lease unit{.id = "c2", .state = LeaseState::active};
    unit.placement.cpus = {2, 3};
    unit.caller.cgroup = "/system.slice/a.service";
    unit.confinement = {.kind = model::ConfinementKind::unit};
    unit.holders = {{.pid = 50, .start_time = 1}};
    state.leases.add(scope);
    state.leases.add(unit);
    return state;
}

TEST(Squatters, AreProcessesOfNoLeaseOnTheCpusOfOne) {
    auto holders_child = process_on(51, {0}, 90);
    holders_child.ancestry.push_back({.pid = 50, .start_time = 1});
    const auto found = squatters_of(
        two_leases(), {process_on(10, {0, 1, 7}, 60), process_on(11, {1, 2}, 90),
                       process_on(12, {0}, 90, "/user.slice/c1.scope/below"),
                       process_on(13, {0}, 90, "/system.slice/a.service"), process_on(14, {7}, 90), holders_child});
    ASSERT_EQ(found.size(), 3U);
    EXPECT_EQ(found[0], (model::Dict{{"lease", "c1"},
                                     {"pid", 10U},
                                     {"uid", 7U},
                                     {"command", "stress"},
                                     {"threads", 2U},
                                     {"percent", 120U},
                                     {"cpus", "0-1"}}));
    EXPECT_EQ(get_number(found[1], "pid"), 11U);
    EXPECT_EQ(get_text(found[1], "lease") + get_text(found[2], "lease"), "c1c2");
}

TEST(Squatters, OfALeaseThatIsOverAreNone) {
    auto state = two_leases();
    for (const auto* id : {"c1", "c2"}) state.leases.edit(id).state = LeaseState::ended;
    EXPECT_TRUE(squatters_of(state, {process_on(10, {0}, 90)}).empty());
}

TEST(Squatters, AreNamedUpToFive) {
    std::vector<host::BusyProcess> busy;
    for (int pid = 10; pid < 17; ++pid) busy.push_back(process_on(pid, {0}, 30U + static_cast<unsigned>(pid)));
    const auto found = squatters_of(two_leases(), busy);
    const auto text = squatters_text(found, "c1", name_of);
    EXPECT_THAT(text, HasSubstr("without a lease: stress (pid 16, user7), 46 % of a CPU on CPUs 0; stress (pid 15"));
    EXPECT_THAT(text, HasSubstr("; and 2 more"));
    EXPECT_EQ(text.find("pid 11"), std::string::npos);
    EXPECT_EQ(squatters_text(found, "c2", name_of), "");
}

TEST(Asked, TextIsOneHarmlessLine) {
    for (const std::string text : {"are you done?", "größer, 要らない？", "–"}) EXPECT_TRUE(check_asked(text)) << text;
    for (const std::string text : {"", "a\nb", "\x1b[2J", "a\x7f",
                                   "\xc2\x9b"
                                   "2J",
                                   "\xe2\x80\xae"
                                   "abc",
                                   "\xe2\x81\xa6", "\xe2\x80\xa8"})
        EXPECT_FALSE(check_asked(text)) << text;
    std::string most;
    for (int i = 0; i < 500; ++i) most += "ü";
    EXPECT_TRUE(check_asked(most));
    EXPECT_FALSE(check_asked(most + "x"));
}

}  // namespace
}  // namespace numalease::service
