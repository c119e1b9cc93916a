#include <gtest/gtest.h>

#include "model/index_set.hpp"

namespace numalease::model {
namespace {

TEST(IndexSet, ParsesAndPrintsTheKernelsListFormat) {
    for (const std::string text : {"", "0", "0-3", "0-3,8", "0,2,4", "0-2,33-34,45,72-73", "63-64", "8191"})
        EXPECT_EQ(CpuSet::parse(text).value().text(), text);
    EXPECT_EQ(CpuSet::parse("3,1,2,2").value().text(), "1-3");
}

TEST(IndexSet, RefusesMalformedLists) {
    for (const std::string text : {"0-", "-1", "3-1", "0,,2", ",", "0,", " 0", "0 ", "+1", "0x3", "a", "0-3-5", "8192",
                                   "99999999999", "0-99999999999", "1e3"}) {
        const auto parsed = CpuSet::parse(text);
        ASSERT_FALSE(parsed) << text;
        EXPECT_EQ(parsed.error().code, Errc::invalid_request);
        EXPECT_NE(parsed.error().detail.find(text.substr(0, 4)), std::string::npos) << parsed.error().detail;
    }
}

TEST(IndexSet, IsEqualByValueWhateverItHeldBefore) {
    CpuSet set{1, 500};
    set.remove(500);
    EXPECT_EQ(set, (CpuSet{1}));
    EXPECT_EQ((CpuSet(CpuSet{1, 500} & CpuSet{1, 2})), (CpuSet{1}));
    EXPECT_EQ((CpuSet(CpuSet{1, 500} - CpuSet{500})), (CpuSet{1}));
    EXPECT_TRUE((CpuSet{7} - CpuSet{7}).empty());
}

TEST(IndexSet, CoversIntersectsAndCountsAcrossWords) {
    const CpuSet big = IndexSet::range(0, 200);
    EXPECT_EQ(big.size(), 201U);
    EXPECT_TRUE(big.covers(CpuSet{64, 128, 200}));
    EXPECT_FALSE(big.covers(CpuSet{201}));
    EXPECT_TRUE(big.intersects(CpuSet{200, 900}));
    EXPECT_FALSE(big.intersects(CpuSet{900}));
    EXPECT_EQ((CpuSet{900, 70}).first(), 70U);
}

TEST(IndexSet, MasksGoToSystemdLittleEndianAndBack) {
    const CpuSet set{0, 9, 65};
    const std::vector<std::uint8_t> mask{1, 2, 0, 0, 0, 0, 0, 0, 2};
    EXPECT_EQ(set.bytes(), mask);
    EXPECT_EQ(CpuSet(CpuSet::from_bytes(mask)), set);
    EXPECT_TRUE(CpuSet{}.bytes().empty());
}

}  // namespace
}  // namespace numalease::model
