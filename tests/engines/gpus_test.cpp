#include "engines/gpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/engines.hpp"

namespace numalease::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;
using testing::Pair;

model::Gpu card(const std::string& bus, const std::string& vendor, const std::string& uuid) {
    return {.pci = "0000:" + bus + ":00.0", .uuid = uuid, .vendor = vendor, .name = "card", .nodes = {0}};
}

const std::vector<model::Gpu> kPair{card("81", "nvidia", "GPU-aaaa-1"), card("82", "nvidia", "GPU-aaab-2")};

TEST(GpuWords, NvidiasGoByUuidInBusOrder) {
    const auto words = gpu_words(kPair, {});
    EXPECT_EQ(words.env, (Env{{"NUMA_LEASE_GPUS", "0000:81:00.0,0000:82:00.0"},
                              {"CUDA_VISIBLE_DEVICES", "GPU-aaaa-1,GPU-aaab-2"},
                              {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}));
    EXPECT_THAT(words.warnings, IsEmpty());
}

TEST(GpuWords, AmdsGoByUuidToo) {
    const auto words = gpu_words({card("c1", "amd", "GPU-00000000000000ff"), kPair[0]}, {});
    EXPECT_EQ(words.env.at("ROCR_VISIBLE_DEVICES"), "GPU-00000000000000ff");
    EXPECT_EQ(words.env.at("CUDA_VISIBLE_DEVICES"), "GPU-aaaa-1");
    EXPECT_EQ(words.env.at("NUMA_LEASE_GPUS"), "0000:c1:00.0,0000:81:00.0");
}

TEST(GpuWords, WithoutAllUuidsNothingIsChosenByAnIndex) {
    const auto words = gpu_words({kPair[0], card("82", "nvidia", "")}, {});
    EXPECT_FALSE(words.env.contains("CUDA_VISIBLE_DEVICES"));
    EXPECT_THAT(words.warnings, ElementsAre(HasSubstr("GPU 0000:82:00.0: NVIDIA's driver does not say its UUID, so "
                                                      "CUDA_VISIBLE_DEVICES is not set")));
    const auto other = gpu_words({card("02", "", "")}, {});
    EXPECT_EQ(other.env, (Env{{"NUMA_LEASE_GPUS", "0000:02:00.0"}}));
    EXPECT_THAT(other.warnings, ElementsAre(HasSubstr("no variable chooses it")));
}

TEST(GpuWords, NothingIsSaidWithoutGpus) {
    EXPECT_THAT(gpu_words({}, {{"CUDA_VISIBLE_DEVICES", "0"}}).env, IsEmpty());
    EXPECT_THAT(gpu_words({}, {{"CUDA_VISIBLE_DEVICES", "0"}}).warnings, IsEmpty());
}

struct Own {
    const char* text;
    const char* warning;  ///< nullptr: none
};

TEST(GpuWords, TheUsersOwnStaysAndIsWarnedAboutWhereItAsksForAnother) {
    for (const auto& [text, warning] :
         {Own{"GPU-aaaa-1", nullptr}, Own{"GPU-aaab-2,GPU-aaaa-1", nullptr}, Own{"GPU-aaab", nullptr}, Own{"", nullptr},
          Own{"-1", nullptr}, Own{"GPU-aaaa-1,-1,7", nullptr}, Own{"0", "0 counts in the library's own order"},
          Own{"GPU-aaaa-1,GPU-cccc", "GPU-cccc is not leased"}, Own{"MIG-aaaa", "MIG-aaaa is not leased"}}) {
        const auto words = gpu_words(kPair, {{"CUDA_VISIBLE_DEVICES", text}, {"CUDA_DEVICE_ORDER", "FASTEST_FIRST"}});
        EXPECT_FALSE(words.env.contains("CUDA_VISIBLE_DEVICES")) << text;
        EXPECT_FALSE(words.env.contains("CUDA_DEVICE_ORDER"));
        if (warning == nullptr)
            EXPECT_THAT(words.warnings, IsEmpty()) << text;
        else
            EXPECT_THAT(words.warnings,
                        ElementsAre(testing::AllOf(HasSubstr(warning), HasSubstr("set it to GPU-aaaa-1,GPU-aaab-2"))));
    }
}

TEST(GpuWords, InsideALeaseWhatWasSaidForThatGivesWay) {
    const Env outer{{"NUMA_LEASE_ID", "c1"},
                    {"NUMA_LEASE_GPUS", "0000:81:00.0,0000:82:00.0"},
                    {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
                    {"CUDA_VISIBLE_DEVICES", "GPU-aaaa-1,GPU-aaab-2"}};
    EXPECT_EQ(gpu_words({kPair[1]}, outer).env.at("CUDA_VISIBLE_DEVICES"), "GPU-aaab-2");
    auto own = outer;
    own["CUDA_VISIBLE_DEVICES"] = "GPU-aaaa-1";
    EXPECT_FALSE(gpu_words({kPair[1]}, own).env.contains("CUDA_VISIBLE_DEVICES")) << "the user has chosen";
    EXPECT_THAT(gpu_words({kPair[1]}, own).warnings, ElementsAre(HasSubstr("GPU-aaaa-1 is not leased")));
    auto outside = outer;
    outside.erase("NUMA_LEASE_ID");
    EXPECT_THAT(gpu_words({kPair[1]}, outside).warnings, ElementsAre(HasSubstr("GPU-aaaa-1 is not leased")));
}

TEST(GpuWords, EveryCommandIsToldAndSaysSo) {
    auto facts = test::half();
    facts.gpus = kPair;
    for (const auto* program : {"llama-server", "some-program"}) {
        const auto out = test::told({program}, facts);
        EXPECT_THAT(out.env, IsSupersetOf({Pair("CUDA_VISIBLE_DEVICES", "GPU-aaaa-1,GPU-aaab-2"),
                                           Pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                                           Pair("NUMA_LEASE_GPUS", "0000:81:00.0,0000:82:00.0")}));
        EXPECT_THAT(out.told, HasSubstr("CUDA_VISIBLE_DEVICES=GPU-aaaa-1,GPU-aaab-2"));
        EXPECT_THAT(out.told, Not(HasSubstr("NUMA_LEASE_GPUS")));
    }
    EXPECT_THAT(test::told({"sudo", "llama-server"}, facts).warnings,
                testing::Contains(HasSubstr("drops the variables CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES")));
    EXPECT_THAT(test::told({"env", "CUDA_VISIBLE_DEVICES=1", "llama-server"}, facts).warnings,
                testing::Contains(HasSubstr("CUDA_VISIBLE_DEVICES=1 is yours")));
}

}  // namespace
}  // namespace numalease::client
