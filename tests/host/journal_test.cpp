#include "host/journal.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "host/threads.hpp"
#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using model::Errc;
using model::Record;
using test::FakeRoot;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kBoot = "6f9e5f68-bb15-4221-ab3f-7f114ca762c8";
const std::string kOtherBoot = "11111111-2222-3333-4444-555555555555";

Record record(const std::string& key, const std::string& value) {
    return {.type = "row", .key = key, .body = {{"prior", value}, {"wants", model::Dict{{"c1", "0"}}}}};
}

std::vector<Record> some_records() {
    return {record("numa_balancing", "1"),
            record("hugepages/2M/node0", "12"),
            {.type = "lease", .key = "c1", .body = {{"reason", "a b=c %\n"}}},
            {.type = "lease", .key = "c1", .gone = true}};
}

class JournalFile : public ::testing::Test {
protected:
    [[nodiscard]] Journal open(const std::string& boot = kBoot) {
        auto journal = Journal::open(directory_.text(), boot, found_);
        if (!journal) throw std::runtime_error(journal.error().detail);
        return std::move(*journal);
    }
    [[nodiscard]] std::string text() const { return read("journal"); }
    [[nodiscard]] std::string read(const std::string& name) const {
        std::ostringstream out;
        out << std::ifstream(directory_.path() / name, std::ios::binary).rdbuf();
        return out.str();
    }
    void put(const std::string& content, const std::string& name = "journal") const {
        std::ofstream(directory_.path() / name, std::ios::binary | std::ios::trunc) << content;
    }
    [[nodiscard]] bool exists(const std::string& name) const {
        return std::filesystem::exists(directory_.path() / name);
    }

    TempDir directory_;
    Journal::Found found_;
};

TEST(JournalLine, BeginsWithTheChecksumOfTheRest) {
    // The check value of CRC-32 (IEEE) over "123456789" is cbf43926; a line's sum is over what follows it.
    const auto line = journal_line(1, record("numa_balancing", "1"));
    EXPECT_THAT(line, HasSubstr(" 1 row numa_balancing prior=1 wants.c1=0"));
    EXPECT_EQ(parse_journal_line(line, 1).value(), record("numa_balancing", "1"));
    EXPECT_EQ(parse_journal_line("cbf43926 123456789", 123456789).error().detail, "no sequence number")
        << "the sum itself is right";
}

TEST(JournalLine, IsRefusedOutOfSequenceOrDamaged) {
    const auto line = journal_line(7, record("numa_balancing", "1"));
    EXPECT_TRUE(parse_journal_line(line, 7));
    EXPECT_FALSE(parse_journal_line(line, 8));
    EXPECT_FALSE(parse_journal_line("", 1));
    EXPECT_FALSE(parse_journal_line("0", 1));
    EXPECT_FALSE(parse_journal_line("00000000 ", 1));
    EXPECT_FALSE(parse_journal_line(line + " ", 7));
}

TEST_F(JournalFile, GivesBackWhatWasAppended) {
    open().append(some_records()).value();
    auto again = open();
    EXPECT_EQ(found_.records, some_records());
    EXPECT_THAT(found_.warnings, IsEmpty());
    again.append({record("thp_enabled", "madvise")}).value();
    [[maybe_unused]] const auto third = open();
    EXPECT_EQ(found_.records.size(), 5U);
}

TEST_F(JournalFile, IsReadableWithCat) {
    open().append(some_records()).value();
    EXPECT_THAT(text(), ::testing::StartsWith("numa-lease-journal 1 boot=" + kBoot + "\n"));
    for (const char c : text()) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
}

TEST_F(JournalFile, MakesItsDirectory) {
    Journal::Found found;
    EXPECT_TRUE(Journal::open(directory_.text() + "/run", kBoot, found));
    EXPECT_TRUE(exists("run/journal"));
}

TEST_F(JournalFile, SurvivesACutAtEveryByte) {
    open().append(some_records()).value();
    const auto whole = text();
    const auto written = some_records();
    for (std::size_t size = 0; size <= whole.size(); ++size) {
        put(whole.substr(0, size));
        const auto peeked = Journal::peek(directory_.text(), kBoot);
        auto journal = open();
        ASSERT_LE(found_.records.size(), written.size());
        EXPECT_TRUE(std::equal(found_.records.begin(), found_.records.end(), written.begin())) << size;
        EXPECT_EQ(peeked.records, found_.records) << size;
        const bool at_line_end = size > 0 && whole[size - 1] == '\n';
        EXPECT_EQ(found_.warnings.empty(), at_line_end) << "a cut is told at " << size;
        // What is appended after the cut is found next time.
        const auto kept = found_.records.size();
        journal.append({record("thp_enabled", "never")}).value();
        [[maybe_unused]] const auto next = open();
        ASSERT_EQ(found_.records.size(), kept + 1) << size;
        EXPECT_EQ(found_.records.back().key, "thp_enabled");
    }
}

TEST_F(JournalFile, SurvivesAFlippedBitInEveryByte) {
    open().append(some_records()).value();
    const auto whole = text();
    const auto written = some_records();
    for (std::size_t at = 0; at < whole.size(); ++at) {
        for (const unsigned bit : {0U, 5U, 7U}) {
            auto flipped = whole;
            flipped[at] = static_cast<char>(static_cast<unsigned char>(flipped[at]) ^ (1U << bit));
            put(flipped);
            [[maybe_unused]] const auto journal = open();
            ASSERT_LT(found_.records.size(), written.size()) << at << " bit " << bit;
            EXPECT_TRUE(std::equal(found_.records.begin(), found_.records.end(), written.begin())) << at;
            EXPECT_FALSE(found_.warnings.empty()) << at;
        }
    }
}

TEST_F(JournalFile, TrustsNothingBehindAGap) {
    open().append(some_records()).value();
    auto whole = text();
    const auto second = whole.find('\n', whole.find('\n') + 1) + 1;
    whole.erase(second, whole.find('\n', second) + 1 - second);
    put(whole);
    [[maybe_unused]] const auto journal = open();
    EXPECT_EQ(found_.records.size(), 1U);
    EXPECT_THAT(found_.warnings, ElementsAre(HasSubstr("number 3 where 2 was due")));
}

TEST_F(JournalFile, OfAnotherBootIsSetAside) {
    open(kOtherBoot).append(some_records()).value();
    const auto before = text();
    auto journal = open(kBoot);
    EXPECT_THAT(found_.records, IsEmpty());
    EXPECT_THAT(found_.warnings, ElementsAre(HasSubstr("before the last boot")));
    EXPECT_EQ(read("journal.old"), before);
    EXPECT_TRUE(journal.append(some_records()));
}

TEST_F(JournalFile, ThatIsNoneIsSetAside) {
    put("#!/bin/sh\necho hello\n");
    [[maybe_unused]] const auto journal = open();
    EXPECT_THAT(found_.records, IsEmpty());
    EXPECT_THAT(found_.warnings, ElementsAre(HasSubstr("not a journal")));
    EXPECT_EQ(read("journal.foreign"), "#!/bin/sh\necho hello\n");
}

TEST_F(JournalFile, OfANewerVersionIsSetAside) {
    put("numa-lease-journal 2 boot=" + kBoot + " more=1\nsomething new\n");
    [[maybe_unused]] const auto journal = open();
    EXPECT_THAT(found_.warnings, ElementsAre(HasSubstr("newer numa-leased")));
    EXPECT_TRUE(exists("journal.newer"));
}

TEST_F(JournalFile, IsNeverWrittenThroughALink) {
    put("precious", "elsewhere");
    std::filesystem::create_symlink(directory_.path() / "elsewhere", directory_.path() / "journal");
    open().append(some_records()).value();
    EXPECT_EQ(read("elsewhere"), "precious");
    EXPECT_EQ(found_.warnings.size(), 1U);
}

TEST_F(JournalFile, MayBeADirectoryOrAFifo) {
    std::filesystem::create_directory(directory_.path() / "journal");
    EXPECT_TRUE(open().append(some_records()));
    std::filesystem::remove_all(directory_.path() / "journal");
    std::filesystem::remove_all(directory_.path() / "journal.foreign");
    ASSERT_EQ(::mkfifo((directory_.path() / "journal").c_str(), 0600), 0);
    EXPECT_TRUE(open().append(some_records()));
}

TEST_F(JournalFile, PeekChangesNothing) {
    open(kOtherBoot).append(some_records()).value();
    const auto before = text();
    const auto found = Journal::peek(directory_.text(), kBoot);
    EXPECT_THAT(found.records, IsEmpty());
    EXPECT_EQ(found.warnings.size(), 1U);
    EXPECT_EQ(text(), before);
    EXPECT_FALSE(exists("journal.old"));
    EXPECT_THAT(Journal::peek(directory_.text() + "/none", kBoot).warnings, IsEmpty());
}

TEST_F(JournalFile, CompactsToTheSnapshot) {
    auto journal = open();
    EXPECT_FALSE(journal.wants_compaction(1));
    for (int i = 0; i < 300; ++i) journal.append({record("numa_balancing", std::to_string(i))}).value();
    EXPECT_TRUE(journal.wants_compaction(1));
    EXPECT_FALSE(journal.wants_compaction(200));
    journal.compact({record("numa_balancing", "299")}).value();
    EXPECT_FALSE(journal.wants_compaction(1));
    journal.append({record("thp_enabled", "never")}).value();
    [[maybe_unused]] const auto next = open();
    EXPECT_THAT(found_.records, ElementsAre(record("numa_balancing", "299"), record("thp_enabled", "never")));
    EXPECT_FALSE(exists("journal.new"));
}

Record lease_with_masks(std::size_t count) {
    model::Lease lease{.id = "c1", .state = model::LeaseState::active};
    for (std::size_t i = 0; i < count; ++i)
        lease.confinement.masks.push_back(
            {.pid = 4'000'000, .thread = {.pid = 4'000'000, .start_time = 123'456'789}, .cpus = {0, 2, 4, 6}});
    return {.type = "lease", .key = lease.id, .body = journal_dict(lease)};
}

TEST_F(JournalFile, ReadsALeaseWithAsManyMasksAsAreKept) {
    open().append({lease_with_masks(kMostThreadMasks)}).value();
    open().append(some_records()).value();
    [[maybe_unused]] const auto next = open();
    EXPECT_THAT(found_.warnings, IsEmpty());
    ASSERT_EQ(found_.records.size(), 1 + some_records().size());
    EXPECT_EQ(model::lease_from_dict(found_.records[0].body).value().confinement.masks.size(), kMostThreadMasks);
}

TEST_F(JournalFile, RefusesARecordThatItWouldNotRead) {
    auto journal = open();
    const auto too_many = lease_with_masks(model::kFlatMaxLeaves / 4);
    const auto done = journal.append({too_many});
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().detail, HasSubstr("lease c1 could not be read back"));
    EXPECT_FALSE(journal.compact({too_many}));
    journal.append(some_records()).value();
    [[maybe_unused]] const auto next = open();
    EXPECT_EQ(found_.records, some_records());
    EXPECT_THAT(found_.warnings, IsEmpty());
}

TEST_F(JournalFile, IsCompactedBeforeItIsTooLargeToBeRead) {
    const std::string text(1U << 20U, 'x');
    auto journal = open();
    std::size_t lines = 0;
    for (; !journal.wants_compaction(100); ++lines) journal.append({record("numa_balancing", text)}).value();
    EXPECT_EQ(lines, 16U);
    std::vector<Record> snapshot;
    for (std::size_t i = 0; i < lines; ++i) snapshot.push_back(record("numa_balancing", text));
    journal.compact(snapshot).value();
    EXPECT_FALSE(journal.wants_compaction(100)) << "it would be as large again";
    while (journal.append({record("numa_balancing", text)})) ASSERT_LT(++lines, 64U);
    EXPECT_EQ(lines, 63U);
    [[maybe_unused]] const auto next = open();
    EXPECT_EQ(found_.records.size(), lines);
}

TEST_F(JournalFile, IgnoresAHalfWrittenCompaction) {
    open().append(some_records()).value();
    put("numa-lease-jour", "journal.new");
    auto journal = open();
    EXPECT_EQ(found_.records, some_records());
    EXPECT_TRUE(journal.compact(some_records()));
}

TEST_F(JournalFile, SaysThatItWasRemoved) {
    auto journal = open();
    std::filesystem::remove(directory_.path() / "journal");
    const auto done = journal.append(some_records());
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().detail, HasSubstr("removed"));
}

TEST_F(JournalFile, ADirectoryThatIsNoneIsAnError) {
    put("", "file");
    Journal::Found found;
    const auto journal = Journal::open(directory_.text() + "/file", kBoot, found);
    ASSERT_FALSE(journal);
    EXPECT_EQ(journal.error().code, Errc::io);
    EXPECT_EQ(journal.error().err, ENOTDIR);
}

/// A mount namespace of our own. Where the root is no mount point (a chroot), nothing is shared that could leak.
bool own_mounts() {
    if (::unshare(CLONE_NEWNS) != 0) return false;
    return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 || errno == EINVAL;
}

/// Runs in a child, which may change limits and mounts without harm. True where `body` returned true.
bool in_child(const std::function<bool()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body() ? 0 : 1);
    int status = 0;
    return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Appends until the disk is full, then expects that the file is cut back and goes on where there is room again.
bool survives_a_full_disk(const std::string& directory, const std::function<void()>& make_room) {
    Journal::Found found;
    auto journal = Journal::open(directory, kBoot, found);
    if (!journal) return false;
    std::size_t kept = 0;
    model::Result<void> done;
    while ((done = journal->append({record("numa_balancing", std::string(500, '1'))}))) ++kept;
    if (kept == 0 || done.error().code != Errc::io || (done.error().err != ENOSPC && done.error().err != EFBIG))
        return false;
    if (Journal::peek(directory, kBoot).records.size() != kept || !Journal::peek(directory, kBoot).warnings.empty())
        return false;
    make_room();
    if (!journal->append({record("thp_enabled", "never")})) return false;
    const auto after = Journal::peek(directory, kBoot);
    return after.warnings.empty() && after.records.size() == kept + 1 && after.records.back().key == "thp_enabled";
}

TEST_F(JournalFile, IsCutBackWhenTheDiskIsFull) {
    const auto directory = directory_.text();
    if (::geteuid() == 0) {
        EXPECT_TRUE(in_child([&] {
            if (!own_mounts()) return false;
            if (::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=16k") != 0) return false;
            return survives_a_full_disk(directory,
                                        [&] { ::mount("tmpfs", directory.c_str(), "tmpfs", MS_REMOUNT, "size=64k"); });
        }));
        return;
    }
    EXPECT_TRUE(in_child([&] {
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{.rlim_cur = 10'000, .rlim_max = RLIM_INFINITY};
        ::getrlimit(RLIMIT_FSIZE, &limit);
        const rlimit small{.rlim_cur = 10'000, .rlim_max = limit.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &small);
        return survives_a_full_disk(directory, [&] { ::setrlimit(RLIMIT_FSIZE, &limit); });
    }));
}

TEST_F(JournalFile, AReadOnlyDirectoryIsAnError) {
    if (::geteuid() != 0) {
        ASSERT_EQ(::chmod(directory_.text().c_str(), 0500), 0);
        Journal::Found found;
        EXPECT_EQ(Journal::open(directory_.text(), kBoot, found).error().err, EACCES);
        ::chmod(directory_.text().c_str(), 0700);
        return;
    }
    const auto directory = directory_.text();
    EXPECT_TRUE(in_child([&] {
        if (!own_mounts()) return false;
        if (::mount("tmpfs", directory.c_str(), "tmpfs", MS_RDONLY, nullptr) != 0) return false;
        Journal::Found found;
        const auto journal = Journal::open(directory, kBoot, found);
        return !journal && journal.error().code == Errc::io && journal.error().err == EROFS;
    }));
}

TEST_F(JournalFile, OfVersionOneIsReadByEveryLaterVersion) {
    // A fixture that is never written again: once there is a version 2, this is what an upgrade finds in /run.
    std::filesystem::copy_file(std::filesystem::path(NUMALEASE_FIXTURES) / "journal-v1", directory_.path() / "journal");
    [[maybe_unused]] const auto journal = open();
    EXPECT_THAT(found_.warnings, IsEmpty());
    EXPECT_EQ(found_.records, some_records());
}

TEST(BootId, IsReadAndChecked) {
    const FakeRoot fake{{"proc/sys/kernel/random/boot_id", kBoot + "\n"}};
    EXPECT_EQ(read_boot_id(fake.root()).value(), kBoot);
    fake.set("proc/sys/kernel/random/boot_id", "x y\n");
    EXPECT_EQ(read_boot_id(fake.root()).error().code, Errc::io);
}

TEST(Locks, TheSecondDaemonIsToldWhoHoldsTheFirst) {
    const FakeRoot fake{{"sys/kernel/mm/x", ""}};
    const TempDir runtime;
    const auto first = take_locks(fake.root(), runtime.text());
    ASSERT_TRUE(first) << first.error().detail;
    const auto second = take_locks(fake.root(), runtime.text());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Errc::already_running);
    EXPECT_THAT(second.error().detail, HasSubstr("PID " + std::to_string(::getpid())));
}

TEST(Locks, AnotherRuntimeDirectoryDoesNotGetAround) {
    const FakeRoot fake{{"sys/kernel/mm/x", ""}};
    const TempDir runtime;
    const TempDir other;
    {
        const auto first = take_locks(fake.root(), runtime.text());
        ASSERT_TRUE(first);
        fake.set("proc/locks", [] {
            std::ostringstream text;
            text << std::ifstream("/proc/locks").rdbuf();
            return text.str();
        }());
        const auto second = take_locks(fake.root(), other.text());
        ASSERT_FALSE(second);
        EXPECT_EQ(second.error().code, Errc::already_running);
        EXPECT_THAT(second.error().detail, HasSubstr("sys/kernel/mm"));
        EXPECT_THAT(second.error().detail, HasSubstr("PID " + std::to_string(::getpid())));
    }
    EXPECT_TRUE(take_locks(fake.root(), other.text())) << "free again once the holder is gone";
}

TEST(Locks, TheKernelsOwnDirectoryCanBeLocked) {
    const auto root = Root::open("/");
    const auto fd = root->open_below("sys/kernel/mm", O_RDONLY | O_DIRECTORY);
    if (!fd) GTEST_SKIP() << fd.error().detail;
    const bool taken = ::flock(fd->get(), LOCK_SH | LOCK_NB) == 0;
    EXPECT_TRUE(taken || errno == EWOULDBLOCK);
}

}  // namespace
}  // namespace numalease::host
