#include <gtest/gtest.h>

#include "model/units.hpp"

namespace numalease::model {
namespace {

TEST(Units, SizesAreIec) {
    EXPECT_EQ(parse_bytes("8G"), 8 * kGiB);
    EXPECT_EQ(parse_bytes("8GiB"), 8 * kGiB);
    EXPECT_EQ(parse_bytes("1.5G"), kGiB + kGiB / 2);
    EXPECT_EQ(parse_bytes("512"), 512U);
    EXPECT_EQ(parse_bytes("16777215T"), 16777215ULL * 1024 * kGiB);
}

TEST(Units, RefusesWhatIsNoSizeOrDoesNotFit) {
    for (const std::string text :
         {"", "G", "8X", "8 G", "-8G", "8GB", "1.G", ".5G", "1.2.3G", "16777216T", "99999999999999999999", "1e3"})
        EXPECT_FALSE(parse_bytes(text)) << text;
}

TEST(Units, SizesPrintWithTheLargestUnit) {
    EXPECT_EQ(bytes_text(8 * kGiB), "8G");
    EXPECT_EQ(bytes_text(kGiB + kGiB / 2), "1.5G");
    EXPECT_EQ(bytes_text(2 * kMiB), "2M");
    EXPECT_EQ(bytes_text(0), "0");
    EXPECT_EQ(bytes_text(1023), "1023");
    EXPECT_EQ(bytes_text(~0ULL).back(), 'T');
}

TEST(Units, TimesAreWrittenAsSystemdWritesThem) {
    EXPECT_EQ(parse_duration("90"), Micros(90'000'000));
    EXPECT_EQ(parse_duration("90s"), Micros(90'000'000));
    EXPECT_EQ(parse_duration("1h 30min"), Micros(5400'000'000));
    EXPECT_EQ(parse_duration("1h30min"), Micros(5400'000'000));
    EXPECT_EQ(parse_duration("250ms"), Micros(250'000));
    EXPECT_EQ(parse_duration("1.5s"), Micros(1'500'000));
    EXPECT_EQ(parse_duration("1d"), std::chrono::days(1));
    EXPECT_EQ(parse_duration("2weeks 1day 1h"), std::chrono::days(15) + std::chrono::hours(1));
    EXPECT_EQ(parse_duration(std::to_string(kNever.count()) + "us"), kNever);
    EXPECT_FALSE(parse_duration(std::to_string(kNever.count() + 1) + "us"));
    for (const std::string text : {"", "s", "5x", "-5s", "1h-", "999999999999999999999s", "300000000000w"})
        EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(Units, TimesPrintWithTwoUnits) {
    EXPECT_EQ(duration_text(Micros(5400'000'000)), "1h 30min");
    EXPECT_EQ(duration_text(Micros(250'000)), "250ms");
    EXPECT_EQ(duration_text(Micros(0)), "0s");
    EXPECT_EQ(duration_text(kNever), "never");
    EXPECT_EQ(duration_text(Micros(-5)), "0s");
}

}  // namespace
}  // namespace numalease::model
