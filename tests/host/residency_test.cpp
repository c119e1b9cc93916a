#include "host/residency.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <numeric>

namespace numalease::host {
namespace {

using model::Bytes;
using model::Errc;
using model::kMiB;
using model::Residency;
using model::Result;
using ::testing::HasSubstr;

const Bytes kPage = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));

/// A real file on the disk of the build: what is in memory only is never evicted.
class Residencies : public ::testing::Test {
protected:
    void SetUp() override {
        path_ = std::filesystem::current_path() / ("residency-" + std::to_string(::getpid()));
        file_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        ASSERT_TRUE(file_) << path_;
        auto root = Root::open("/");
        ASSERT_TRUE(root);
        root_ = std::make_unique<Root>(std::move(*root));
    }
    void TearDown() override { ::unlink(path_.c_str()); }

    void fill(Bytes size) const {
        const std::string block(kMiB, 'x');
        for (Bytes at = 0; at < size; at += kMiB)
            ASSERT_EQ(::pwrite(file_.get(), block.data(), block.size(), static_cast<off_t>(at)),
                      static_cast<ssize_t>(kMiB));
        ASSERT_EQ(::fsync(file_.get()), 0);
    }
    void evict() const { ASSERT_EQ(::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED), 0); }
    void touch(Bytes first, Bytes size) const {
        ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_RANDOM);
        std::string into(size, '\0');
        ASSERT_EQ(::pread(file_.get(), into.data(), size, static_cast<off_t>(first)), static_cast<ssize_t>(size));
    }
    [[nodiscard]] Result<Residency> look(std::uint64_t samples = kResidencySamples) const {
        return read_residency(file_.get(), *root_, samples);
    }
    static Bytes on_nodes(const Residency& found) {
        return std::accumulate(found.nodes.begin(), found.nodes.end(), Bytes{0},
                               [](Bytes sum, const auto& it) { return sum + it.second; });
    }

    std::filesystem::path path_;
    UniqueFd file_;
    std::unique_ptr<Root> root_;
};

TEST_F(Residencies, CountWhatIsCachedAndReadNothing) {
    fill(32 * kMiB);
    const auto full = look();
    ASSERT_TRUE(full) << full.error().detail;
    EXPECT_EQ(full->size, 32 * kMiB);
    EXPECT_EQ(full->resident, 32 * kMiB);
    EXPECT_FALSE(full->sampled);
    EXPECT_EQ(on_nodes(*full), 32 * kMiB);
    evict();
    EXPECT_EQ(look()->resident, 0U);
    EXPECT_TRUE(look()->nodes.empty());
    touch(8 * kMiB, kMiB);
    const auto part = look();
    EXPECT_GE(part->resident, kMiB);
    EXPECT_LT(part->resident, 4 * kMiB);  // a large folio may reach a little beyond
    EXPECT_EQ(look()->resident, part->resident);
}

TEST_F(Residencies, AreExactInSumAlsoWhereNodesAreSampled) {
    fill(16 * kMiB);
    evict();
    touch(3 * kMiB, 5 * kMiB);
    const auto exact = look();
    for (const std::uint64_t samples : {1U, 7U, 100U}) {
        const auto sampled = look(samples);
        EXPECT_TRUE(sampled->sampled);
        EXPECT_EQ(sampled->resident, exact->resident) << samples;
        EXPECT_EQ(on_nodes(*sampled), exact->resident) << samples;
    }
    EXPECT_EQ(look()->resident, exact->resident);  // no sample has brought in a page
}

TEST_F(Residencies, CountAPartOfAPageAsAPage) {
    ASSERT_EQ(::write(file_.get(), "abc", 3), 3);
    EXPECT_EQ(look()->size, 3U);
    EXPECT_EQ(look()->resident, kPage);
}

TEST_F(Residencies, OfSparseAndEmptyFilesAreNothing) {
    EXPECT_EQ(look()->resident, 0U);
    ASSERT_EQ(::ftruncate(file_.get(), off_t{1} << 34), 0);
    EXPECT_EQ(look()->size, Bytes{1} << 34U);
    EXPECT_EQ(look()->resident, 0U);
}

TEST_F(Residencies, NameWhoMapsTheFileAndNotWhoLooks) {
    fill(kMiB);
    EXPECT_TRUE(look()->mapped_by.empty());
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const auto* page =
            static_cast<const volatile char*>(::mmap(nullptr, kMiB, PROT_READ, MAP_PRIVATE, file_.get(), 0));
        const char first = *page;
        if (::write(ready[1], &first, 1) == 1) ::pause();
        ::_exit(0);
    }
    char first = 0;
    ASSERT_EQ(::read(ready[0], &first, 1), 1);
    const auto found = look();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    ASSERT_EQ(found->mapped_by.size(), 1U);
    EXPECT_EQ(found->mapped_by[0].pid, child);
    EXPECT_EQ(found->mapped_by[0].command, "test_host");
}

TEST_F(Residencies, OnTmpfsCountToo) {
    const UniqueFd memory(::memfd_create("tmpfs without a mount", MFD_CLOEXEC));
    const std::string block(2 * kPage, 'x');
    ASSERT_EQ(::write(memory.get(), block.data(), block.size()), static_cast<ssize_t>(block.size()));
    const auto found = read_residency(memory.get(), *root_);
    ASSERT_TRUE(found) << found.error().detail;
    EXPECT_GE(found->resident, 2 * kPage);
}

TEST_F(Residencies, RefuseWhatIsNoLocalRegularFileOpenForReading) {
    const auto refusal = [&](int fd) {
        const UniqueFd file(fd);
        EXPECT_TRUE(file);
        return read_residency(file.get(), *root_).error();
    };
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(refusal(ends[0]).code, Errc::invalid_request);
    ::close(ends[1]);
    EXPECT_THAT(refusal(::open("/", O_RDONLY | O_CLOEXEC)).detail, HasSubstr("not a regular file"));
    EXPECT_THAT(refusal(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)).detail, HasSubstr("not open for reading"));
    EXPECT_THAT(refusal(::open(path_.c_str(), O_PATH | O_CLOEXEC)).detail, HasSubstr("not open for reading"));
    const auto elsewhere = refusal(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(elsewhere.code, Errc::unsupported);
    EXPECT_THAT(elsewhere.detail, HasSubstr("only of local file systems"));
    EXPECT_EQ(read_residency(-1, *root_).error().err, EBADF);
}

TEST_F(Residencies, AreNotTakenFromAKernelThatDoesNotTellTheTruth) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
    fill(kMiB);
    ASSERT_EQ(::fchmod(file_.get(), 0644), 0);
    const UniqueFd theirs(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    const pid_t child = ::fork();
    if (child == 0) {
        constexpr uid_t kNobody = 65534;
        if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(1);
        const auto found = read_residency(theirs.get(), *root_);
        ::_exit(!found && found.error().code == Errc::denied ? 0 : 2);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace numalease::host
