#include "where/numa_maps.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace numalease::client {
namespace {

using model::kGiB;
using model::kKiB;
using model::kMiB;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr Bytes kPage = 4 * kKiB;

struct NumaMapsRow {
    const char* line;
    Mapping expected;
    Kind kind;
};

// Linux 6.18 on one node; numa(7); the kernel's own mailing list for the policies with blanks; a bug report for huge
// text.
const NumaMapsRow kNumaMaps[] = {
    {"7f39fcbea000 default file=/usr/lib/locale/C.utf8/LC_CTYPE mapped=32 mapmax=22 N0=32 kernelpagesize_kB=4",
     {0x7f39fcbea000, "default", "/usr/lib/locale/C.utf8/LC_CTYPE", false, {{0, 32 * kPage}}, 0},
     Kind::file},
    {"55ec06e1d000 default heap anon=4 dirty=4 active=0 N0=4 kernelpagesize_kB=4",
     {0x55ec06e1d000, "default", "", false, {{0, 4 * kPage}}, 4 * kPage},
     Kind::anonymous},
    {"7f39fce1a000 default file=/usr/lib/x86_64-linux-gnu/libc.so.6 anon=4 dirty=4 mapped=7 N0=3 N2=4 "
     "kernelpagesize_kB=4",
     {0x7f39fce1a000,
      "default",
      "/usr/lib/x86_64-linux-gnu/libc.so.6",
      false,
      {{0, 3 * kPage}, {2, 4 * kPage}},
      4 * kPage},
     Kind::file},
    {"7f39fce3a000 default", {0x7f39fce3a000, "default", "", false, {}, 0}, Kind::anonymous},
    {"7fff3369d000 default mapped=1 mapmax=35 active=0 N3=1 kernelpagesize_kB=4",
     {0x7fff3369d000, "default", "", false, {{3, kPage}}, 0},
     Kind::anonymous},
    {"7f4dc1200000 bind=static:3 file=/anon_hugepage\\040(deleted) huge anon=1 dirty=1 N3=1 kernelpagesize_kB=2048",
     {0x7f4dc1200000, "bind=static:3", "/anon_hugepage (deleted)", true, {{3, 2 * kMiB}}, 2 * kMiB},
     Kind::hugetlb},
    {"7f0ca4600000 default file=/SYSV00000000\\040(deleted) huge dirty=5 N1=5 kernelpagesize_kB=2048",
     {0x7f0ca4600000, "default", "/SYSV00000000 (deleted)", true, {{1, 10 * kMiB}}, 0},
     Kind::hugetlb},
    {"0176a000 weighted interleave:0-1 heap anon=65793 dirty=65793 active=0 N0=32897 N1=32896 kernelpagesize_kB=4",
     {0x176a000, "weighted interleave:0-1", "", false, {{0, 32897 * kPage}, {1, 32896 * kPage}}, 65793 * kPage},
     Kind::anonymous},
    {"7f0000000000 prefer (many):1,3 stack anon=3 dirty=3 N3=3 kernelpagesize_kB=4",
     {0x7f0000000000, "prefer (many):1,3", "", false, {{3, 3 * kPage}}, 3 * kPage},
     Kind::anonymous},
    {"7f0000000000 interleave=relative:0-3 file=/memfd:weights\\040(deleted) dirty=2 N0=1 N1=1 kernelpagesize_kB=64",
     {0x7f0000000000,
      "interleave=relative:0-3",
      "/memfd:weights (deleted)",
      false,
      {{0, 64 * kKiB}, {1, 64 * kKiB}},
      0},
     Kind::shared},
    // Another process chose the name: a blank, a newline, "=" and words of the format in it.
    {"7f0000000000 default file=/tmp/a\\040N1\\0759\\012huge mapped=1 N0=1 kernelpagesize_kB=4",
     {0x7f0000000000, "default", "/tmp/a N1=9\nhuge", false, {{0, kPage}}, 0},
     Kind::file},
};

TEST(NumaMaps, AreReadAsTheKernelWritesThem) {
    for (const auto& [line, expected, kind] : kNumaMaps) {
        const auto got = parse_numa_maps_line(line);
        ASSERT_TRUE(got.has_value()) << line;
        EXPECT_EQ(*got, expected) << line;
        EXPECT_EQ(kind_of(*got), kind) << line;
    }
}

TEST(NumaMaps, OfOtherLinesNothingIsMade) {
    for (const auto* line : {"", " ", "7f00", "xyz default N0=1", "7f00 N0=1 kernelpagesize_kB=4", "-1 default"})
        EXPECT_EQ(parse_numa_maps_line(line), std::nullopt) << line;
}

TEST(NumaMaps, NumbersThatAreTooLargeNeitherWrapNorMakeNodes) {
    const auto got = parse_numa_maps_line(
        "7f00 default anon=18446744073709551615 N0=18446744073709551615 N1=1 N1024=1 N2=99999999999999999999 "
        "N4294967296=1 kernelpagesize_kB=4");
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->nodes, (PerNode{{0, ~Bytes{0}}, {1, kPage}}));
    EXPECT_EQ(got->owned, ~Bytes{0});
}

TEST(NumaMaps, ALineOfAMegabyteIsReadInOnePass) {
    const auto got =
        parse_numa_maps_line("7f00 default file=/" + std::string(kMiB, '\\') + " N0=1 kernelpagesize_kB=4");
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->file.size(), kMiB + 1);
    EXPECT_EQ(sum_of(got->nodes), kPage);
}

TEST(Maps, KeepWhatMayHoldPages) {
    EXPECT_EQ(parse_maps_line("557f8b085000-557f8b087000 r--p 00000000 fe:00 247134                     /usr/bin/a b"),
              (Span{0x557f8b085000, 0x557f8b087000, "254:0", "/usr/bin/a b"}));
    EXPECT_EQ(parse_maps_line("7f0000000000-7f0000400000 rw-s 00000000 00:11 1234       /mnt/huge/x\\012y (deleted)"),
              (Span{0x7f0000000000, 0x7f0000400000, "0:17", "/mnt/huge/x\ny (deleted)"}));
    EXPECT_EQ(parse_maps_line("7f39fce3a000-7f39fce3e000 rw-p 00000000 00:00 0 "),
              (Span{0x7f39fce3a000, 0x7f39fce3e000, "0:0", ""}));
    EXPECT_EQ(parse_maps_line("55ec06e1d000-55ec06e3e000 rw-p 00000000 00:00 0                          [heap]"),
              (Span{0x55ec06e1d000, 0x55ec06e3e000, "0:0", ""}));
    EXPECT_EQ(parse_maps_line("7f39fce3a000-7f39fce3e000 rw-p 00000000 00:00 0      [anon:a name]"),
              (Span{0x7f39fce3a000, 0x7f39fce3e000, "0:0", ""}));
}

TEST(Maps, LeaveOutReservedSpaceAndTheKernelsOwn) {
    for (const auto* line : {"7f0000000000-7fff00000000 ---p 00000000 00:00 0 ",
                             "7ffd8e7f6000-7ffd8e7f8000 r-xp 00000000 00:00 0   [vdso]",
                             "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0       [vsyscall]",
                             "2000-1000 rw-p 00000000 00:00 0 ", "1000-zzzz rw-p 00000000 00:00 0 ", "1000 rw-p", ""})
        EXPECT_EQ(parse_maps_line(line), std::nullopt) << line;
}

TEST(Status, IsReadByName) {
    const auto got = parse_status(
        "Name:\tllama server\nUid:\t1001\t1001\t1001\t1001\nVmSwap:\t      12 kB\nRssAnon:\t     116 kB\n"
        "RssFile:\t      64 kB\nRssShmem:\t       4 kB\nHugetlbPages:\t    2048 kB\nMems_allowed_list:\t0-1,3\n");
    EXPECT_EQ(got, (ProcessStatus{"llama server", 1001, 116 * kKiB, 64 * kKiB, 4 * kKiB, 2 * kMiB, 12 * kKiB,
                                  model::NodeSet{0, 1, 3}}));
    EXPECT_EQ(got.resident(), 184 * kKiB);
}

TEST(Status, OfAKernelThreadHasNoMemory) { EXPECT_EQ(parse_status("Name:\tkthreadd\n").resident(), 0U); }

TEST(Stat, FieldsAreCountedFromBehindTheName) {
    const auto* text =
        "15 (a) b (c)) S 1 15 15 0 -1 4194304 138 0 0 0 0 0 0 0 20 0 1 0 8675309 2883584 220 18446744073709551615 1 1 "
        "0 0 "
        "0 0 0 0 0 0 0 0 17 5 0 0 0 0 0\n";
    EXPECT_EQ(stat_field(text, kStatStartTime), 8675309U);
    EXPECT_EQ(stat_field(text, kStatProcessor), 5U);
    EXPECT_EQ(stat_field(text, 99), std::nullopt);
    EXPECT_EQ(stat_field("15 no name", kStatProcessor), std::nullopt);
}

TEST(NumaStat, HasARowForEachKind) {
    const auto got = parse_numa_stat("anon N0=1048576 N1=0\nfile N0=4096 N3=8192\nanon_thp N1=2097152\njunk\n");
    EXPECT_EQ(got.at("anon"), (PerNode{{0, kMiB}, {1, 0}}));
    EXPECT_EQ(got.at("file"), (PerNode{{0, 4096}, {3, 8192}}));
    EXPECT_EQ(got.at("anon_thp"), (PerNode{{1, 2 * kMiB}}));
    EXPECT_FALSE(got.contains("junk"));
}

TEST(SmapsRollup, TellsTransparentHugePages) {
    EXPECT_EQ(
        parse_transparent_huge("556b-7ffd ---p 00000000 00:00 0   [rollup]\nRss: 1 kB\nAnonHugePages:   2048 kB\n"),
        2 * kMiB);
    EXPECT_EQ(parse_transparent_huge("Rss: 1 kB\n"), 0U);
}

TEST(Cgroup, IsTheUnifiedOne) {
    EXPECT_EQ(parse_cgroup("4:memory:/a\n0::/user.slice/x.scope\n"), "/user.slice/x.scope");
    EXPECT_EQ(parse_cgroup("4:memory:/a\n"), "");
}

TEST(Mounts, AreFoundBehindAnyNumberOfFields) {
    EXPECT_THAT(parse_mounts("41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 master:1 - cgroup2 cgroup2 rw\n"
                             "42 31 0:17 / /mnt/my\\040huge rw - hugetlbfs none rw\nno mount\n"),
                ElementsAre(Mount{"0:38", "/sys/fs/cgroup", "cgroup2"}, Mount{"0:17", "/mnt/my huge", "hugetlbfs"}));
    EXPECT_THAT(parse_mounts(""), IsEmpty());
}

}  // namespace
}  // namespace numalease::client
