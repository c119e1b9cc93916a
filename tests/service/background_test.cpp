#include "service/background.hpp"

#include <gtest/gtest.h>

#include <future>

namespace numalease::service {
namespace {

TEST(Background, DoesOneThingAfterTheOtherAndTheRestOnTheLoop) {
    sd_event* event = nullptr;
    ASSERT_GE(sd_event_new(&event), 0);
    std::vector<int> done;
    {
        Background background(event);
        const auto loop = std::this_thread::get_id();
        for (int i = 0; i < 3; ++i)
            background.post([&, i]() -> Background::Then {
                EXPECT_NE(std::this_thread::get_id(), loop);
                return [&, i] {
                    EXPECT_EQ(std::this_thread::get_id(), loop);
                    done.push_back(i);
                };
            });
        while (done.size() < 3) ASSERT_GE(sd_event_run(event, UINT64_MAX), 0);
    }
    EXPECT_EQ(done, (std::vector{0, 1, 2}));
    sd_event_unref(event);
}

TEST(Background, FinishesWhatItHasAndTakesNoMoreThanItCan) {
    sd_event* event = nullptr;
    ASSERT_GE(sd_event_new(&event), 0);
    std::atomic<int> run = 0;
    int taken = 0;
    std::promise<void> gate;
    std::promise<void> begun;
    const auto opened = gate.get_future();
    {
        Background background(event);
        background.post([&]() -> Background::Then {
            begun.set_value();
            opened.wait();
            return {};
        });
        begun.get_future().wait();
        constexpr int kMore = 5000;
        for (int i = 0; i < kMore; ++i)
            taken += background.post([&]() -> Background::Then {
                ++run;
                return {};
            })
                         ? 1
                         : 0;
        EXPECT_LT(taken, kMore);
        EXPECT_GT(taken, 0);
        gate.set_value();
    }
    EXPECT_EQ(run, taken);
    sd_event_unref(event);
}

}  // namespace
}  // namespace numalease::service
