#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "launch/enter.hpp"
#include "model/topology.hpp"

namespace numalease::client {
namespace {

using model::Mempolicy;
using testing::HasSubstr;

model::Request with(Mempolicy mempolicy) {
    model::Request request;
    request.mempolicy = mempolicy;
    return request;
}

TEST(MemoryPolicyOf, AutoBindsOneNodeAndInterleavesSeveral) {
    EXPECT_EQ(memory_policy({}, {2}, 4), (MemoryPolicy{Mempolicy::bind, {2}}));
    EXPECT_EQ(memory_policy({}, {0, 2}, 4), (MemoryPolicy{Mempolicy::interleave, {0, 2}}));
}

TEST(MemoryPolicyOf, AutoSetsNothingOnAMachineWithOneNode) { EXPECT_EQ(memory_policy({}, {0}, 1), std::nullopt); }

TEST(MemoryPolicyOf, ATypedOneIsObeyedOnOneNodeToo) {
    EXPECT_EQ(memory_policy(with(Mempolicy::bind), {0}, 1), (MemoryPolicy{Mempolicy::bind, {0}}));
    EXPECT_EQ(memory_policy(with(Mempolicy::weighted), {0, 1}, 2), (MemoryPolicy{Mempolicy::weighted, {0, 1}}));
}

TEST(MemoryPolicyFailure, NamesCallCauseAskedAndAllowed) {
    const auto text = memory_policy_failure({Mempolicy::bind, {1}}, EPERM, "0");
    EXPECT_THAT(text, HasSubstr("set_mempolicy(bind)"));
    EXPECT_THAT(text, HasSubstr("CAP_SYS_NICE"));
    EXPECT_THAT(text, HasSubstr("asked nodes 1, allowed 0"));
    EXPECT_THAT(memory_policy_failure({Mempolicy::weighted, {0}}, EINVAL, "0"), HasSubstr("Linux 6.9"));
    EXPECT_THAT(memory_policy_failure({Mempolicy::bind, {0}}, ENOSYS, "0"), HasSubstr("NUMA"));
}

model::Topology machine() {
    model::Topology topology;
    topology.nodes = {{.id = 0}, {.id = 1}};
    topology.online = {0, 1, 2, 3};
    return topology;
}

TEST(FactsOf, KnowTheWholeMachineFromAPart) {
    const auto topology = to_dict(machine());
    EXPECT_FALSE(facts_of("c1", {.cpus = {0, 1}, .nodes = {0}}, {}, topology).whole_machine);
    EXPECT_TRUE(facts_of("c1", {.cpus = {0, 1, 2, 3}, .nodes = {0, 1}}, {}, topology).whole_machine);
}

TEST(FactsOf, CoreCpusAreOneThreadOfEachLeasedCoreOrAllWhereAllAreTold) {
    auto topology = machine();
    topology.cores = {{.id = 0, .cpus = {0, 4}}, {.id = 1, .cpus = {1, 5}}, {.id = 2, .cpus = {2, 6}}};
    const auto of = [&](model::CpuSet cpus, unsigned threads) {
        return facts_of("c1", {.cpus = std::move(cpus), .nodes = {0}, .cores = 2, .threads = threads}, {},
                        to_dict(topology))
            .core_cpus.text();
    };
    EXPECT_EQ(of({1, 2, 5, 6}, 2), "1-2");
    EXPECT_EQ(of({1, 2, 5, 6}, 4), "1-2,5-6");
    EXPECT_EQ(of({5, 6}, 2), "5-6");  // a caller who may use no whole core
    topology.cores.clear();
    EXPECT_EQ(of({1, 2, 5, 6}, 2), "1-2,5-6");
}

TEST(FactsOf, OnlyACgroupContains) {
    const auto topology = to_dict(machine());
    const auto contained = [&](model::ConfinementKind kind, model::CpuSet effective) {
        return facts_of("c1", {.cpus = {0}}, {.kind = kind, .effective_cpus = effective}, topology).contained;
    };
    EXPECT_TRUE(contained(model::ConfinementKind::scope, {0}));
    EXPECT_TRUE(contained(model::ConfinementKind::unit, {0}));
    EXPECT_FALSE(contained(model::ConfinementKind::affinity, {0}));
    EXPECT_FALSE(contained(model::ConfinementKind::scope, {}));
}

TEST(FactsOf, SeeGapsInNodeNumbers) {
    auto topology = machine();
    EXPECT_FALSE(facts_of("c1", {}, {}, to_dict(topology)).node_numbers_have_gaps);
    topology.nodes[1].id = 8;
    EXPECT_TRUE(facts_of("c1", {}, {}, to_dict(topology)).node_numbers_have_gaps);
}

/// Exit status of a child that enters the command; what it prints to standard output goes to `out`.
class Entering : public testing::Test {
protected:
    int enter_in_child(Argv command, bool affinity = false) {
        int ends[2];
        EXPECT_EQ(pipe(ends), 0);
        const pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], STDOUT_FILENO);
            close(STDERR_FILENO);
            cpu_set_t own;
            sched_getaffinity(0, sizeof own, &own);
            unsigned first = 0;
            while (!CPU_ISSET(first, &own)) ++first;
            Entry entry{.library = library_, .command = std::move(command), .set_affinity = affinity, .quiet = true};
            entry.facts = {.id = "c9", .cpus = {first}, .nodes = {0}, .cores = 1, .threads = 1, .machine_nodes = 1};
            _exit(enter(entry));
        }
        close(ends[1]);
        char part[512];
        for (ssize_t got = 0; (got = read(ends[0], part, sizeof part)) > 0;)
            out_.append(part, static_cast<std::size_t>(got));
        close(ends[0]);
        int status = 0;
        waitpid(child, &status, 0);
        pid_ = child;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }

    policies::Library library_;
    std::string out_;
    pid_t pid_ = 0;
};

TEST_F(Entering, BecomesTheCommandUnderTheSamePid) {
    EXPECT_EQ(enter_in_child({"sh", "-c", "echo $$; exit 37"}), 37);
    EXPECT_EQ(out_, std::to_string(pid_) + "\n");
}

TEST_F(Entering, ExportsTheLease) {
    EXPECT_EQ(enter_in_child({"sh", "-c", "echo $NUMA_LEASE_ID $NUMA_LEASE_NODES $NUMA_LEASE_THREADS"}), 0);
    EXPECT_EQ(out_, "c9 0 1\n");
}

TEST_F(Entering, SetsTheAffinityWhereNothingElseHolds) {
    EXPECT_EQ(enter_in_child({"sh", "-c", "nproc"}, true), 0);
    EXPECT_EQ(out_, "1\n");
}

TEST_F(Entering, AMissingCommandIs127) { EXPECT_EQ(enter_in_child({"/nonexistent/engine"}), 127); }

TEST_F(Entering, ACommandThatIsNoProgramIs126) { EXPECT_EQ(enter_in_child({"/etc"}), 126); }

}  // namespace
}  // namespace numalease::client
