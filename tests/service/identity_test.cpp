#include "service/identity.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace numalease::service {
namespace {

using model::LeaseState;
using model::Process;

void add(core::State& state, const std::string& id, LeaseState lease_state, const std::string& cgroup, Process holder) {
    auto& lease = state.leases[id];
    lease.id = id;
    lease.state = lease_state;
    lease.confinement.cgroup = cgroup;
    lease.holders = {holder};
}

TEST(Identity, TheDeepestCgroupThatHoldsTheCallerIsItsParent) {
    core::State state;
    add(state, "c1", LeaseState::active, "/a", {.pid = 10, .start_time = 1});
    add(state, "c2", LeaseState::active, "/a/b", {.pid = 11, .start_time = 1});
    EXPECT_EQ(find_parent(state, "/a/b/c", {}), "c2");
    EXPECT_EQ(find_parent(state, "/a", {}), "c1");
    EXPECT_EQ(find_parent(state, "/ab", {}), "");
    EXPECT_EQ(find_parent(state, "/", {}), "");
}

TEST(Identity, WithoutACgroupTheNearestAncestorThatHoldsALeaseIsTheParent) {
    core::State state;
    add(state, "c1", LeaseState::active, "", {.pid = 10, .start_time = 1});
    add(state, "c2", LeaseState::active, "", {.pid = 20, .start_time = 2});
    const Process self{.pid = 30, .start_time = 3};
    EXPECT_EQ(find_parent(state, "/", {self, {.pid = 20, .start_time = 2}, {.pid = 10, .start_time = 1}}), "c2");
    EXPECT_EQ(find_parent(state, "/", {self, {.pid = 10, .start_time = 1}}), "c1");
}

TEST(Identity, AReusedPidIsNoParent) {
    core::State state;
    add(state, "c1", LeaseState::active, "", {.pid = 10, .start_time = 1});
    EXPECT_EQ(find_parent(state, "/", {{.pid = 10, .start_time = 99}}), "");
}

TEST(Identity, OnlyAnActiveLeaseIsAParent) {
    for (const auto lease_state : {LeaseState::queued, LeaseState::preparing, LeaseState::ending, LeaseState::ended}) {
        core::State state;
        add(state, "c1", lease_state, "/a", {.pid = 10, .start_time = 1});
        EXPECT_EQ(find_parent(state, "/a", {{.pid = 10, .start_time = 1}}), "");
    }
}

TEST(Identity, ALeaseInTheRootCgroupHoldsNotTheWholeMachine) {
    core::State state;
    add(state, "c1", LeaseState::active, "/", {.pid = 10, .start_time = 1});
    EXPECT_EQ(find_parent(state, "/system.slice/other.service", {}), "");
}

TEST(Identity, APeerIsWhoTheKernelSays) {
    int pair[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const auto peer = read_peer(pair[0]);
    ASSERT_TRUE(peer) << peer.error().detail;
    EXPECT_EQ(peer->pid, getpid());
    EXPECT_EQ(peer->uid, geteuid());
    EXPECT_TRUE(host::pidfd_alive(peer->pidfd.get()));
    close(pair[0]);
    close(pair[1]);
}

}  // namespace
}  // namespace numalease::service
