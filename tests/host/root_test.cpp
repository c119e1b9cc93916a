#include "host/root.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::Errc;
using test::FakeRoot;

TEST(Root, ReadsWhatAFileHolds) {
    const FakeRoot fake{{"proc/sys/kernel/numa_balancing", "1\n"}};
    const auto text = fake.root().read("proc/sys/kernel/numa_balancing");
    ASSERT_TRUE(text);
    EXPECT_EQ(*text, "1\n");
}

TEST(Root, CallsAMissingFileUnsupportedAndNamesIt) {
    const FakeRoot fake;
    const auto text = fake.root().read("proc/sys/kernel/numa_balancing");
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, Errc::unsupported);
    EXPECT_EQ(text.error().err, ENOENT);
    EXPECT_NE(text.error().detail.find("proc/sys/kernel/numa_balancing: No such file"), std::string::npos);
    EXPECT_EQ(fake.root().write("proc/none", "1").error().code, Errc::unsupported);
}

TEST(Root, RefusesAFileLongerThanTheLimitInsteadOfCuttingIt) {
    const FakeRoot fake{{"exact", "12345678"}, {"longer", "123456789"}};
    EXPECT_EQ(fake.root().read("exact", 8).value(), "12345678");
    const auto longer = fake.root().read("longer", 8);
    ASSERT_FALSE(longer);
    EXPECT_EQ(longer.error().code, Errc::io);
}

TEST(Root, ReadsAFileOfManyBlocks) {
    const std::string text(100'000, 'x');
    const FakeRoot fake{{"big", text}};
    EXPECT_EQ(fake.root().read("big").value(), text);
}

TEST(Root, WritesTheWholeTextAndNothingOfTheOld) {
    const FakeRoot fake{{"knob", "a longer old value\n"}};
    ASSERT_TRUE(fake.root().write("knob", "0"));
    EXPECT_EQ(fake.get("knob"), "0");
}

TEST(Root, KeepsTheKernelsErrno) {
    const auto machine = Root::open("/");
    ASSERT_TRUE(machine);
    const auto done = machine->write("dev/full", "1");
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, Errc::io);
    EXPECT_EQ(done.error().err, ENOSPC);
}

TEST(Root, NeverLeadsOutOfItself) {
    const FakeRoot fake{{"inside", "inside"}, {"etc/hostname", "fake"}};
    std::filesystem::create_symlink("/etc/hostname", fake.path("absolute"));
    std::filesystem::create_symlink("../../../../../../etc/hostname", fake.path("climbing"));
    EXPECT_EQ(fake.root().read("absolute").value(), "fake");
    EXPECT_EQ(fake.root().read("climbing").value(), "fake");
    EXPECT_EQ(fake.root().read("../../../../../../etc/hostname").value(), "fake");
    EXPECT_EQ(fake.root().read("/inside").value(), "inside");
}

TEST(Root, ListsNamesInOrderAndNothingWhereThereIsNothing) {
    const FakeRoot fake{{"d/b", ""}, {"d/a", ""}, {"d/c/x", ""}};
    EXPECT_EQ(fake.root().list("d"), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_TRUE(fake.root().list("none").empty());
}

TEST(Root, KnowsWhetherItIsThisMachine) {
    const FakeRoot fake;
    EXPECT_FALSE(fake.root().is_this_machine());
    EXPECT_TRUE(Root::open("/./")->is_this_machine());
    EXPECT_EQ(Root::open("/")->full_path("proc/stat"), "/proc/stat");
}

TEST(Root, OpensFilesCloseOnExec) {
    const FakeRoot fake{{"file", ""}};
    const auto root = fake.root();
    const auto fd = root.open_below("file", O_RDONLY);
    ASSERT_TRUE(fd);
    EXPECT_NE(::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(::fcntl(root.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

}  // namespace
}  // namespace numalease::host
