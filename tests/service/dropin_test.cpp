#include <gtest/gtest.h>

#include "service/confine.hpp"

namespace numalease::service {
namespace {

constexpr const char* kHead =
    "# This is a drop-in unit file extension, created via \"systemctl set-property\"\n"
    "# or an equivalent operation. Do not edit.\n[Service]\n";

TEST(Dropin, OursIsAnEmptySettingOrTheLeasedSet) {
    EXPECT_TRUE(is_own_dropin(std::string(kHead) + "AllowedCPUs=\n", "AllowedCPUs", {"0-3,8"}));
    EXPECT_TRUE(is_own_dropin(std::string(kHead) + "AllowedCPUs=0-3 8\n", "AllowedCPUs", {"0-3,8"}));
    EXPECT_TRUE(is_own_dropin(std::string(kHead) + "AllowedCPUs=\nAllowedCPUs=0-3,8", "AllowedCPUs", {"0-3,8"}));
}

TEST(Dropin, AnythingElseInItMakesItSomebodyElses) {
    EXPECT_FALSE(is_own_dropin(std::string(kHead) + "AllowedCPUs=4-7\n", "AllowedCPUs", {"0-3,8"}));
    EXPECT_FALSE(is_own_dropin(std::string(kHead) + "AllowedCPUs=\nCPUWeight=200\n", "AllowedCPUs", {"0-3,8"}));
    EXPECT_FALSE(is_own_dropin(std::string(kHead) + "AllowedCPUsFoo=\n", "AllowedCPUs", {"0-3,8"}));
    EXPECT_FALSE(is_own_dropin(std::string(kHead) + "AllowedMemoryNodes=\n", "AllowedCPUs", {"0-3,8"}));
    EXPECT_FALSE(is_own_dropin("", "AllowedCPUs", {"0-3,8"}));
}

}  // namespace
}  // namespace numalease::service
