#include "host/process.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::Errc;
using test::FakeRoot;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A child that waits until it is killed. Named `name` before the constructor returns.
class Child {
public:
    explicit Child(const char* name = "waiting") {
        int ready[2];
        if (::pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::prctl(PR_SET_NAME, name);
            if (::write(ready[1], "x", 1) != 1) ::_exit(1);
            while (true) ::pause();
        }
        char c = 0;
        if (::read(ready[0], &c, 1) != 1) throw std::runtime_error("child");
        ::close(ready[0]);
        ::close(ready[1]);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() { end(); }

    [[nodiscard]] int pid() const { return pid_; }
    void kill() const { ::kill(pid_, SIGKILL); }
    void end() {
        if (pid_ <= 0) return;
        kill();
        ::waitpid(std::exchange(pid_, 0), nullptr, 0);
    }

private:
    int pid_ = 0;
};

Root proc() { return std::move(*Root::open("/proc")); }

bool wait_for_death(int pidfd) {
    pollfd poll{.fd = pidfd, .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, 10'000) == 1;
}

TEST(Pidfd, KnowsItsProcessUntilItIsGone) {
    Child child;
    const auto fd = open_pidfd(child.pid());
    ASSERT_TRUE(fd);
    EXPECT_NE(::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(pid_of_pidfd(fd->get()), child.pid());
    EXPECT_TRUE(pidfd_alive(fd->get()));
    child.kill();
    ASSERT_TRUE(wait_for_death(fd->get()));
    EXPECT_FALSE(pidfd_alive(fd->get())) << "dead though not reaped";
    const int pid = child.pid();
    child.end();
    EXPECT_EQ(pid_of_pidfd(fd->get()), -1);
    EXPECT_EQ(open_pidfd(pid).error().err, ESRCH);
}

TEST(Process, IsFoundBehindAHostileName) {
    const FakeRoot fake{{"77/stat",
                         "77 (a) S 1) R 9\n(x) S 42 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 8192 9 "
                         "18446744073709551615\n"}};
    EXPECT_EQ(read_start_time(fake.root(), 77).value(), 123456U);
    EXPECT_EQ(read_parent(fake.root(), 77), 42);
    EXPECT_TRUE(is_alive(fake.root(), {.pid = 77, .start_time = 123456}));
    EXPECT_FALSE(is_alive(fake.root(), {.pid = 77, .start_time = 123457})) << "the number was used again";
    EXPECT_FALSE(is_alive(fake.root(), {.pid = 78, .start_time = 123456}));
}

TEST(Process, AShortOrForeignStatIsAnError) {
    const FakeRoot fake{{"77/stat", "77 (x) S 42\n"}, {"78/stat", "nonsense"}, {"79/stat", ""}};
    for (const int pid : {77, 78, 79}) {
        EXPECT_FALSE(read_start_time(fake.root(), pid)) << pid;
        EXPECT_FALSE(is_alive(fake.root(), {.pid = pid, .start_time = 0})) << pid;
    }
    EXPECT_EQ(read_parent(fake.root(), 78), 0);
    EXPECT_EQ(read_parent(fake.root(), 80), 0);
}

TEST(Process, AZombieIsNotAlive) {
    const Child child;
    const auto fd = open_pidfd(child.pid());
    const auto start = read_start_time(proc(), child.pid());
    ASSERT_TRUE(fd);
    ASSERT_TRUE(start);
    const model::Process process{.pid = child.pid(), .start_time = *start};
    EXPECT_TRUE(is_alive(proc(), process));
    child.kill();
    ASSERT_TRUE(wait_for_death(fd->get()));
    EXPECT_FALSE(is_alive(proc(), process));
}

TEST(Caller, IsReadFromTheKernel) {
    const Child child("l\x1b[31m a\n)x");
    const auto fd = open_pidfd(child.pid());
    ASSERT_TRUE(fd);
    const auto caller = read_caller(proc(), child.pid(), fd->get(), ::geteuid());
    ASSERT_TRUE(caller) << caller.error().detail;
    EXPECT_EQ(caller->uid, ::geteuid());
    EXPECT_EQ(caller->gid, ::getegid());
    EXPECT_EQ(caller->process.pid, child.pid());
    EXPECT_EQ(caller->process.start_time, read_start_time(proc(), child.pid()).value());
    EXPECT_EQ(caller->command, "l?[31m a?)x") << "no control character reaches a log or a terminal";
    EXPECT_FALSE(caller->allowed_cpus.empty());
    EXPECT_FALSE(caller->allowed_nodes.empty());
    EXPECT_EQ(read_parent(proc(), child.pid()), ::getpid());
}

TEST(Caller, OfAnotherUidIsDenied) {
    const Child child;
    const auto fd = open_pidfd(child.pid());
    const auto caller = read_caller(proc(), child.pid(), fd->get(), ::geteuid() + 1);
    ASSERT_FALSE(caller);
    EXPECT_EQ(caller.error().code, Errc::denied);
}

TEST(Caller, MustBeTheProcessBehindThePidfd) {
    const Child one;
    const Child other;
    const auto fd = open_pidfd(other.pid());
    EXPECT_EQ(read_caller(proc(), one.pid(), fd->get(), ::geteuid()).error().code, Errc::denied);
}

TEST(Caller, ThatDiedIsDenied) {
    const Child child;
    const auto fd = open_pidfd(child.pid());
    child.kill();
    ASSERT_TRUE(wait_for_death(fd->get()));
    EXPECT_EQ(read_caller(proc(), child.pid(), fd->get(), ::geteuid()).error().code, Errc::denied);
}

TEST(Caller, CannotBeInitNorTheDaemonItself) {
    const auto self = open_pidfd(::getpid());
    for (const int pid : {-1, 0, 1, ::getpid()})
        EXPECT_EQ(read_caller(proc(), pid, self->get(), ::geteuid()).error().code, Errc::denied) << pid;
}

TEST(Cgroup, TheUnifiedLineIsTheOneThatCounts) {
    const FakeRoot fake{{"77/cgroup", "12:cpuset:/other\n1:name=systemd:/x\n0::/user.slice/a b.scope\n"},
                        {"78/cgroup", "1:name=systemd:/x\n"}};
    EXPECT_EQ(read_cgroup(fake.root(), 77).value(), "/user.slice/a b.scope");
    EXPECT_EQ(read_cgroup(fake.root(), 78).error().code, Errc::unsupported);
}

TEST(Cgroup, TheMountIsFoundWhateverItsPlaceAndName) {
    const FakeRoot root{{"sys/fs/cgroup/unified/cgroup.procs", ""}, {"mnt/a b/cgroup.procs", ""}};
    const FakeRoot fake{{"self/mountinfo",
                         "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
                         "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                         "41 31 0:38 / /sys/fs/cgroup/unified rw shared:4 master:1 - cgroup2 cgroup2 rw\n"}};
    EXPECT_EQ(find_cgroup2(root.root(), fake.root()), "sys/fs/cgroup/unified");
    fake.set("self/mountinfo", "41 31 0:38 / /mnt/a\\040b rw - cgroup2 none rw\n");
    EXPECT_EQ(find_cgroup2(root.root(), fake.root()), "mnt/a b");
    fake.set("self/mountinfo", "41 31 0:38 / /mnt/gone rw - cgroup2 none rw\n");
    EXPECT_EQ(find_cgroup2(root.root(), fake.root()), "");
}

TEST(Cgroup, ItsFactsAreReadFromItsFiles) {
    const FakeRoot root{{"cg/a/cgroup.procs", "5\n6\n"},
                        {"cg/a/cgroup.events", "populated 1\nfrozen 0\n"},
                        {"cg/a/cpuset.cpus.effective", "0-3,8\n"},
                        {"cg/a/cpuset.mems.effective", "1\n"},
                        {"cg/a/memory.current", "4096\n"},
                        {"cg/a/memory.numa_stat", "anon N0=4096 N1=8192\nfile N0=100 N1=0\nkernel_stack N0=7 N1=7\n"},
                        {"cg/a/b/cgroup.procs", "7\n"}};
    const auto facts = read_cgroup_facts(root.root(), "cg", "/a");
    ASSERT_TRUE(facts);
    EXPECT_EQ(facts->effective_cpus.text(), "0-3,8");
    EXPECT_EQ(facts->effective_nodes.text(), "1");
    EXPECT_TRUE(facts->populated);
    EXPECT_EQ(facts->pids, (std::vector<int>{5, 6, 7}));
    EXPECT_EQ(facts->memory_current, 4096U);
    EXPECT_EQ(read_memory_by_node(root.root(), "cg", "/a").value(),
              (std::map<unsigned, model::Bytes>{{0, 4196}, {1, 8192}}));
    EXPECT_EQ(read_cgroup_facts(root.root(), "cg", "/gone").error().code, Errc::unsupported);
    EXPECT_EQ(read_memory_by_node(root.root(), "cg", "/a/b").error().code, Errc::unsupported);
}

TEST(Cgroup, IsChargedForSharedMemoryAsForWhatNoFileHolds) {
    const FakeRoot root{{"cg/a/memory.numa_stat",
                         "anon N0=4096 N3=8192\nfile N0=1000 N3=0\nfile_mapped N0=500 N3=0\nshmem N0=300 N3=0\n"
                         "pgfault N0=\nN5\n\nanon_thp N0=1 N9999=7\n"},
                        {"cg/b/cgroup.procs", ""}};
    const auto charged = read_charged(root.root(), "cg", "/a");
    ASSERT_TRUE(charged);
    EXPECT_EQ(*charged, (model::ChargedByNode{{0, {.anonymous = 4396, .file = 700, .mapped = 200}},
                                              {3, {.anonymous = 8192, .file = 0, .mapped = 0}}}));
    EXPECT_EQ(read_charged(root.root(), "cg", "/b").error().detail, "its cgroup /b has no memory.numa_stat");
    EXPECT_EQ(read_charged(root.root(), "cg", "/gone").error().code, Errc::unsupported);
}

TEST(TrackingCgroup, IsPopulatedUntilItsLastProcessIsGone) {
    const auto root = Root::open("/");
    const auto cgroup2 = find_cgroup2(*root, proc());
    if (cgroup2.empty()) GTEST_SKIP() << "no cgroup v2 is mounted here";
    const auto own = read_cgroup(proc(), ::getpid());
    ASSERT_TRUE(own);
    Child child;
    const auto name = "numalease-test-" + std::to_string(child.pid());
    const auto made = make_tracking_cgroup(*root, cgroup2, *own, name, child.pid());
    if (!made) GTEST_SKIP() << made.error().detail;
    EXPECT_EQ(read_cgroup(proc(), child.pid()).value(), *made);
    const auto facts = read_cgroup_facts(*root, cgroup2, *made);
    ASSERT_TRUE(facts);
    EXPECT_TRUE(facts->populated);
    EXPECT_THAT(facts->pids, Contains(child.pid()));
    EXPECT_EQ(remove_tracking_cgroup(*root, cgroup2, *made).error().err, EBUSY);

    // cgroup.events raises POLLPRI when the last one goes.
    const auto events = root->open_below(cgroup2 + *made + "/cgroup.events", O_RDONLY);
    ASSERT_TRUE(events);
    child.end();
    while (read_cgroup_facts(*root, cgroup2, *made)->populated) {
        pollfd poll{.fd = events->get(), .events = POLLPRI, .revents = 0};
        ASSERT_EQ(::poll(&poll, 1, 10'000), 1);
    }
    EXPECT_TRUE(remove_tracking_cgroup(*root, cgroup2, *made));
    EXPECT_EQ(read_cgroup_facts(*root, cgroup2, *made).error().code, Errc::unsupported);
    EXPECT_TRUE(remove_tracking_cgroup(*root, cgroup2, *made)) << "gone already is as good";
}

TEST(TrackingCgroup, IsRemovedWithEmptyOnesBelow) {
    const auto root = Root::open("/");
    const auto cgroup2 = find_cgroup2(*root, proc());
    if (cgroup2.empty()) GTEST_SKIP() << "no cgroup v2 is mounted here";
    Child child;
    const auto own = read_cgroup(proc(), ::getpid()).value();
    const auto made =
        make_tracking_cgroup(*root, cgroup2, own, "numalease-test-n" + std::to_string(child.pid()), child.pid());
    if (!made) GTEST_SKIP() << made.error().detail;
    const auto inner = make_tracking_cgroup(*root, cgroup2, *made, "inner.d", child.pid());
    ASSERT_TRUE(inner) << inner.error().detail;
    EXPECT_THAT(read_cgroup_facts(*root, cgroup2, *made)->pids, Contains(child.pid())) << "those below count";
    child.end();
    EXPECT_TRUE(remove_tracking_cgroup(*root, cgroup2, *made));
    EXPECT_THAT(root->list(cgroup2 + own), Not(Contains(HasSubstr("numalease-test-n"))));
}

TEST(TrackingCgroup, HasNoNameThatLeadsElsewhere) {
    const FakeRoot fake{{"cg/cgroup.procs", ""}};
    for (const char* name : {"", "..", ".", "a/b"})
        EXPECT_FALSE(make_tracking_cgroup(fake.root(), "cg", "/", name, 2)) << name;
    EXPECT_FALSE(remove_tracking_cgroup(fake.root(), "cg", "/")) << "the root of the tree is not ours";
    EXPECT_EQ(make_tracking_cgroup(fake.root(), "", "/", "x", 2).error().code, Errc::unsupported);
}

}  // namespace
}  // namespace numalease::host
