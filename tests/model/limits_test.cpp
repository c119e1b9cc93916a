#include "model/limits.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/levers.hpp"

namespace numalease::model {
namespace {

using Names = std::set<std::string>;
using std::chrono::hours;

TEST(Limits, OfTwoTheMoreGenerousFieldCounts) {
    Limits lab{.weight = 2, .cores = 16, .nodes = {}, .memory = kGiB, .time = hours(1), .classes = Names{"batch"}};
    widen(lab, {.weight = 1, .cores = 8, .nodes = 2, .memory = 2 * kGiB, .classes = Names{"service"}});
    EXPECT_EQ(lab, (Limits{.weight = 2,
                           .cores = 16,
                           .nodes = 2,
                           .memory = 2 * kGiB,
                           .time = hours(1),
                           .classes = Names{"batch", "service"}}));
}

TEST(Limits, WhatIsSaidIsNotFilled) {
    Limits own{.weight = 0, .cores = 1, .levers = Names{}};
    fill(own, {.weight = 3, .cores = 8, .gpus = 1, .levers = Names{"thp"}});
    EXPECT_EQ(own, (Limits{.weight = 3, .cores = 1, .gpus = 1, .levers = Names{}}));
    fill(own, {.weight = 7});
    EXPECT_EQ(own.weight, 3U);
}

TEST(Limits, AreShownWhereTheyAreSaid) {
    EXPECT_EQ(to_dict(Limits{.weight = 0}), Dict{});
    EXPECT_EQ(to_dict(Limits{.cores = 4, .memory = kGiB, .time = Micros(5), .policies = Names{"", "auto"}}),
              (Dict{{"weight", 1U},
                    {"cores", 4U},
                    {"memory", kGiB},
                    {"time", std::uint64_t{5}},
                    {"policies", Value::Strings{"", "auto"}}}));
}

TEST(Scheduling, IsShownInMicroseconds) {
    const Scheduling scheduling{
        .half_life = kNever, .aging = Micros(7), .classes = {{"b", {.priority = 3, .time = hours(1)}}}};
    EXPECT_EQ(to_dict(scheduling),
              (Dict{{"half_life", static_cast<std::uint64_t>(kNever.count())},
                    {"aging", std::uint64_t{7}},
                    {"classes", Dict{{"b", Dict{{"priority", 3U}, {"time", std::uint64_t{3'600'000'000}}}}}}}));
}

Request request(std::string_view field, std::string_view text) {
    Request out;
    EXPECT_TRUE(set_field(out, field, text)) << field;
    return out;
}

Names pulled(const Request& request) {
    Names out;
    for (const auto& lever : kernel_levers())
        if (lever.pulled(request)) out.emplace(lever.field);
    return out;
}

TEST(KernelLevers, EachIsPulledByItsOwnField) {
    const std::pair<const char*, const char*> fields[] = {
        {"weights", "0=2"},      {"numa-balancing", "off"}, {"numa-balancing", "on"}, {"thp", "always"},
        {"thp-defrag", "never"}, {"zone-reclaim", "1"},     {"hugepages", "2M=32M"},  {"page-cache", "reclaim"},
        {"page-cache", "drop"},  {"shield", "yes"}};
    for (const auto& [field, text] : fields) EXPECT_EQ(pulled(request(field, text)), Names{field}) << field;
    EXPECT_EQ(pulled(request("mempolicy", "weighted")), Names{"weights"});
    EXPECT_EQ(pulled(request("mempolicy", "local")), Names{"numa-balancing"});
}

TEST(KernelLevers, ARequestThatLeavesTheKernelAlonePullsNone) {
    EXPECT_EQ(pulled({}), Names{});
    for (const auto& [field, text] :
         {std::pair{"numa-balancing", "keep"}, {"page-cache", "evict"}, {"hugepages", "none"}, {"memory-max", "1G"}})
        EXPECT_EQ(pulled(request(field, text)), Names{}) << field;
}

TEST(KernelLevers, AreRequestFields) {
    for (const auto& lever : kernel_levers())
        EXPECT_TRUE(std::ranges::any_of(request_fields(), [&](const auto& it) { return it.name == lever.field; }))
            << lever.field;
    EXPECT_TRUE(is_kernel_lever("thp"));
    EXPECT_FALSE(is_kernel_lever("cores"));
}

}  // namespace
}  // namespace numalease::model
