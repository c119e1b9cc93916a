#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/engine.hpp"

namespace numalease::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Container : public testing::TestWithParam<Argv> {};

TEST_P(Container, ThatWouldLeaveTheLeaseIsRefusedOnOneLineWithWhatToUse) {
    const auto refusal = container_refusal(GetParam());
    ASSERT_TRUE(refusal);
    EXPECT_THAT(*refusal, AllOf(HasSubstr("would confine only the client"), HasSubstr("; use instead: "),
                                HasSubstr("numa-leasectl run -- "), Not(HasSubstr("\n"))));
}

INSTANTIATE_TEST_SUITE_P(
    Commands, Container,
    testing::Values(Argv{"docker", "run", "-it", "image"}, Argv{"/usr/bin/docker", "container", "run", "image"},
                    Argv{"env", "A=1", "docker", "run", "image"}, Argv{"sudo", "-u", "root", "nerdctl", "run", "image"},
                    Argv{"docker", "--context", "x", "-H", "tcp://h", "run", "image"},
                    Argv{"docker", "compose", "up", "-d"}, Argv{"docker", "compose", "-f", "x.yml", "up"},
                    Argv{"docker-compose", "up"}, Argv{"docker-compose", "-p", "run", "up"},
                    Argv{"podman", "run", "image"}, Argv{"podman", "run", "--cgroups=enabled", "image"},
                    Argv{"podman", "start", "x"}, Argv{"docker", "exec", "x", "llama-bench"},
                    Argv{"docker", "compose", "run", "x"}, Argv{"podman", "compose", "up"}));

TEST(Container, OthersMayRun) {
    for (const Argv& argv :
         {Argv{}, Argv{"podman", "run", "--cgroups=split", "image"},
          Argv{"podman", "run", "--cgroups", "split", "image"}, Argv{"docker", "ps"}, Argv{"docker", "compose", "ps"},
          Argv{"docker"}, Argv{"docker", "--version"}, Argv{"docker", "inspect", "run"},
          Argv{"llama-server", "docker", "run"}, Argv{"sh", "-c", "docker run x"}})
        EXPECT_EQ(container_refusal(argv), std::nullopt) << testing::PrintToString(argv);
}

TEST(Container, PodmanIsToldOfSplitAndDockerOfItsOwnSets) {
    EXPECT_THAT(*container_refusal({"podman", "run", "x"}), HasSubstr("podman run --cgroups=split"));
    EXPECT_THAT(*container_refusal({"docker", "run", "x"}),
                HasSubstr("docker run --cgroup-parent=numalease-NAME.slice … (numa-leasectl show NAME --as docker)"));
    EXPECT_THAT(*container_refusal({"docker", "compose", "up"}), HasSubstr("cgroup_parent: numalease-NAME.slice"));
    EXPECT_THAT(*container_refusal({"docker", "run", "x"}),
                HasSubstr("--cpuset-cpus=$NUMA_LEASE_CPUS --cpuset-mems=$NUMA_LEASE_NODES"));
}

}  // namespace
}  // namespace numalease::client
