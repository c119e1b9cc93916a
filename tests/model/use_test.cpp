#include "model/use.hpp"

#include <gtest/gtest.h>

#include "model/lease.hpp"

namespace numalease::model {
namespace {

TEST(Use, SurvivesTheJournal) {
    const Use use{.at = Micros(1), .cpu = Micros(2), .cpu_pressure = Micros(3), .memory_pressure = Micros(4)};
    Lease lease{.id = "c1"};
    lease.confinement.use_before = use;
    const auto read = lease_from_dict(*unflatten(flatten(journal_dict(lease))));
    ASSERT_TRUE(read) << read.error().detail;
    EXPECT_EQ(read->confinement.use_before, use);
}

TEST(Use, SinceIsTheRiseAndAllOfACounterThatBeganAnew) {
    const Use before{.at = Micros(10), .cpu = Micros(100), .cpu_pressure = Micros(5), .memory_pressure = Micros(50)};
    const Use now{.at = Micros(20), .cpu = Micros(130), .cpu_pressure = Micros(5), .memory_pressure = Micros(7)};
    EXPECT_EQ(since(before, now),
              (Use{.at = Micros(20), .cpu = Micros(30), .cpu_pressure = Micros(0), .memory_pressure = Micros(7)}));
}

TEST(Use, IsAShareOfTheCpusTime) {
    EXPECT_EQ(busy_permille(Micros(50), Micros(100), 4), 125U);
    EXPECT_EQ(busy_permille(Micros(0), Micros(100), 4), 0U);
    EXPECT_EQ(busy_permille(Micros(1), Micros(0), 4), std::nullopt);
    EXPECT_EQ(busy_permille(Micros(1), Micros(-5), 4), std::nullopt);
    EXPECT_EQ(busy_permille(Micros(1), Micros(100), 0), std::nullopt);
    constexpr std::int64_t kYear = 31'536'000'000'000;
    EXPECT_EQ(busy_permille(Micros(kYear), Micros(kYear), 1), 1000U);
}

}  // namespace
}  // namespace numalease::model
