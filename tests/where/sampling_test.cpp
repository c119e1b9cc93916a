#include "where/sampling.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace numalease::client {
namespace {

using model::kGiB;
using model::kMiB;
using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Bytes kPage = 4096;
constexpr std::uint64_t kStart = 0x7f0000000000;

Span span(std::uint64_t start, Bytes size, std::string file = {}) {
    return {start, start + size, "0:0", std::move(file)};
}

/// What the kernel would answer where page n of a mapping is on node n % nodes.
std::vector<int> interleaved(const std::vector<Span>& spans, const std::vector<Pick>& picks, unsigned nodes) {
    std::vector<int> out;
    for (const auto& pick : picks)
        out.push_back(static_cast<int>((pick.address - spans[pick.span].start) / kPage % nodes));
    return out;
}

double share(const Mapping& mapping, unsigned node) {
    return static_cast<double>(mapping.nodes.at(node)) / static_cast<double>(sum_of(mapping.nodes));
}

TEST(Picks, AreEveryPageWhereThereAreFew) {
    const std::vector<Span> spans{span(kStart, 10 * kPage), span(2 * kStart, 3 * kPage)};
    const auto picks = pick_pages(spans, 13 * kPage, 100, kPage);
    std::set<std::uint64_t> addresses;
    for (const auto& pick : picks) addresses.insert(pick.address);
    EXPECT_THAT(addresses, SizeIs(13));
    EXPECT_EQ(*addresses.begin(), kStart);
    EXPECT_EQ(*addresses.rbegin(), 2 * kStart + 2 * kPage);
}

TEST(Picks, StayInsideTheirSpansAndWithinTheirNumber) {
    const std::vector<Span> spans{span(kStart, 3 * kGiB), span(2 * kStart, kPage), span(3 * kStart, kGiB + 5 * kPage)};
    const auto picks = pick_pages(spans, 4 * kGiB, 4096, kPage);
    EXPECT_LE(picks.size(), 4096U);
    EXPECT_GE(picks.size(), 4090U);
    for (const auto& pick : picks) {
        EXPECT_GE(pick.address, spans[pick.span].start);
        EXPECT_LT(pick.address, spans[pick.span].end);
        EXPECT_EQ(pick.address % kPage, 0U);
    }
    EXPECT_EQ(picks, pick_pages(spans, 4 * kGiB, 4096, kPage));
}

TEST(Picks, AreNotSpentOnReservedAddresses) {
    const std::vector<Span> spans{span(kStart, 16384 * kGiB), span(2 * kStart, 4 * kGiB)};
    const auto picks = pick_pages(spans, 4 * kGiB, 4096, kPage);
    const auto on_second = std::ranges::count_if(picks, [](const Pick& pick) { return pick.span == 1; });
    EXPECT_NEAR(static_cast<double>(on_second), 2048, 2);
}

TEST(Picks, AreNoneOfNothing) {
    EXPECT_THAT(pick_pages({}, kGiB, 4096, kPage), IsEmpty());
    EXPECT_THAT(pick_pages({span(kStart, kGiB)}, kGiB, 0, kPage), IsEmpty());
    EXPECT_THAT(pick_pages({span(kStart, kPage)}, 0, 4096, kPage), SizeIs(1));
}

TEST(Estimate, SeesAnInterleavedMemoryAsEven) {
    const std::vector<Span> spans{span(kStart, 64 * kGiB), span(2 * kStart, 16384 * kGiB)};
    const auto picks = pick_pages(spans, 64 * kGiB, 65536, kPage);
    const auto got = estimate(spans, picks, interleaved(spans, picks, 4), {.anonymous = 64 * kGiB}, {});
    ASSERT_THAT(got, SizeIs(2));
    for (const auto& mapping : got)
        for (const auto node : {0U, 1U, 2U, 3U}) EXPECT_NEAR(share(mapping, node), 0.25, 0.01);
}

TEST(Estimate, IsScaledToWhatTheProcessHasOfEachKind) {
    const std::vector<Span> spans{span(kStart, kGiB), span(2 * kStart, kGiB, "/m.gguf"),
                                  span(3 * kStart, kGiB, "/memfd:x (deleted)"),
                                  span(4 * kStart, kGiB, "/anon_hugepage (deleted)")};
    const auto picks = pick_pages(spans, 4 * kGiB, 1024, kPage);
    std::vector<int> nodes;  // half of each is there: the first quarter on node 0, the second on node 2
    for (const auto& pick : picks) {
        const auto quarter = (pick.address - spans[pick.span].start) / (256 * kMiB);
        nodes.push_back(quarter == 0 ? 0 : quarter == 1 ? 2 : -2);
    }
    const auto got = estimate(spans, picks, nodes,
                              {.anonymous = 600 * kMiB, .file = 100 * kMiB, .shared = 300 * kMiB, .hugetlb = kGiB}, {});
    ASSERT_THAT(got, SizeIs(4));
    const auto near = [](const Mapping& it, Bytes size) {
        EXPECT_NEAR(static_cast<double>(sum_of(it.nodes)), static_cast<double>(size), static_cast<double>(size) * 0.02);
        EXPECT_NEAR(share(it, 0), 0.5, 0.02);
        EXPECT_NEAR(share(it, 2), 0.5, 0.02);
    };
    near(got[0], 600 * kMiB);
    near(got[1], 200 * kMiB);  // the two that no path tells apart hold 400M together
    near(got[2], 200 * kMiB);
    near(got[3], kGiB);
    EXPECT_TRUE(got[3].hugetlb);
    EXPECT_EQ(got[0].owned, sum_of(got[0].nodes));
}

TEST(Estimate, KnowsHugePagesByTheirFileSystem) {
    auto file = span(kStart, kGiB, "/mnt/huge/weights");
    file.device = "0:17";
    const auto got = estimate({file}, {{0, kStart}}, {3}, {.hugetlb = kGiB}, {"0:17"});
    ASSERT_THAT(got, SizeIs(1));
    EXPECT_TRUE(got[0].hugetlb);
    EXPECT_EQ(got[0].nodes, (PerNode{{3, kGiB}}));
}

TEST(Estimate, OfPagesThatAreNotThereIsNothing) {
    EXPECT_THAT(estimate({span(kStart, kGiB)}, {{0, kStart}}, {-14}, {.anonymous = kGiB}, {}), IsEmpty());
    EXPECT_THAT(estimate({}, {}, {}, {}, {}), IsEmpty());
}

}  // namespace
}  // namespace numalease::client
