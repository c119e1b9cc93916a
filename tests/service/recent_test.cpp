#include "service/recent.hpp"

#include <gtest/gtest.h>

#include <string>

namespace numalease::service {
namespace {

using model::Micros;

TEST(Recent, AsksAgainOnlyWhenTheAnswerIsOld) {
    Recent<int, int> recent{Micros(10)};
    int asked = 0;
    const auto ask = [&] { return ++asked; };
    EXPECT_EQ(recent.get(7, Micros(100), ask), 1);
    EXPECT_EQ(recent.get(7, Micros(109), ask), 1);
    EXPECT_EQ(recent.get(8, Micros(109), ask), 2);  // another key is another question
    EXPECT_EQ(recent.get(7, Micros(110), ask), 3);
    EXPECT_EQ(recent.get(7, Micros(119), ask), 3);
}

TEST(Recent, NeverHoldsMoreThanItMay) {
    Recent<int, int> recent{Micros(10), 2};
    int asked = 0;
    const auto ask = [&] { return ++asked; };
    recent.get(1, Micros(0), ask);
    recent.get(2, Micros(5), ask);
    recent.get(3, Micros(12), ask);  // in the place of 1, which is old
    EXPECT_EQ(recent.get(2, Micros(12), ask), 2);
    recent.get(4, Micros(12), ask);  // none is old: all go
    EXPECT_EQ(recent.get(3, Micros(12), ask), 5);
}

}  // namespace
}  // namespace numalease::service
