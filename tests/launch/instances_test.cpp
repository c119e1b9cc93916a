#include "engines/engine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/engines.hpp"

namespace numalease::client {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Key;
using testing::Not;
using testing::Pair;

using namespace test;

LeaseFacts instance(unsigned index) {
    auto facts = half();
    facts.nodes = model::NodeSet{index + 2};
    facts.index = index;
    facts.instances = 2;
    return facts;
}

TEST(Instances, EachServerIsToldAPortOfItsOwn) {
    EXPECT_THAT(told({"llama-server"}, instance(0)).env, Contains(Pair("LLAMA_ARG_PORT", "8080")));
    EXPECT_THAT(told({"llama-server"}, instance(1)).env, Contains(Pair("LLAMA_ARG_PORT", "8081")));
    EXPECT_THAT(told({"sudo", "llama-server", "-m", "x"}, instance(1)).argv,
                ElementsAre("sudo", "llama-server", "--numa", "numactl", "--port", "8081", "-t", "8", "-m", "x"));
    EXPECT_THAT(told({"vllm", "serve", "m"}, instance(1)).argv, ElementsAre("vllm", "serve", "--port", "8001", "m"));
}

TEST(Instances, OneAloneAndWhatIsNoServerAreToldNone) {
    EXPECT_THAT(told({"llama-server"}).env, Not(Contains(Key("LLAMA_ARG_PORT"))));
    EXPECT_THAT(told({"llama-cli"}, instance(1)).env, Not(Contains(Key("LLAMA_ARG_PORT"))));
    EXPECT_THAT(told({"vllm", "bench"}, instance(1)).argv, ElementsAre("vllm", "bench"));
}

TEST(Instances, TheUsersWordsMayCountThem) {
    const Argv argv{"llama-server",         "--port", "${9000+index}", "--log-file",
                    "${node}-${index}.log", "-a",     "${port+index}"};
    const auto out = adapt(shipped(), nullptr, argv, {}, instance(1), true);
    EXPECT_THAT(out.argv, ElementsAre("llama-server", "--port", "9001", "--log-file", "3-1.log", "-a", "8081"));
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_PORT"))));
    EXPECT_THAT(adapt(shipped(), nullptr, {"sh", "${port+index}", "${index}"}, {}, half(), true).argv,
                ElementsAre("sh", "${port+index}", "0"))
        << "an unknown program has no port";
}

// ── huge pages ────────────────────────────────────────────────────────────────────────────────────────────────────

LeaseFacts with_pages() {
    auto facts = half();
    facts.huge_pages = true;
    return facts;
}

TEST(HugePages, MallocIsToldToTakeThemWhereTheWeightsComeFromIt) {
    const auto tunable = Contains(Pair("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2"));
    for (const Argv& argv :
         {Argv{"llama-cli", "--load-mode", "none"}, Argv{"llama-cli", "-lm", "dio"}, Argv{"llama-server", "--no-mmap"},
          Argv{"llama-cli", "--mmap", "-lm", "none"}, Argv{"llama-bench", "-mmp", "0"}}) {
        const auto out = told(argv, with_pages());
        EXPECT_THAT(out.env, tunable) << testing::PrintToString(argv);
        EXPECT_THAT(out.warnings, IsEmpty());
        EXPECT_THAT(out.told, HasSubstr("GLIBC_TUNABLES=glibc.malloc.hugetlb=2"));
    }
    EXPECT_THAT(told({"llama-cli"}, with_pages(), {{"LLAMA_ARG_NO_MMAP", "1"}}).env, tunable);
    EXPECT_THAT(told({"llama-cli"}, with_pages(), {{"LLAMA_ARG_LOAD_MODE", "none"}}).env, tunable);
    const auto& socket = shipped().policies.at("single-socket");
    EXPECT_THAT(told({"llama-cli"}, with_pages(), {}, &socket).env, tunable) << "by the policy's own variable";
    EXPECT_THAT(told({"llama-cli", "--no-mmap"}).env, Not(Contains(Key("GLIBC_TUNABLES")))) << "the lease has none";
}

TEST(HugePages, AMappedModelNeverUsesThemAndThatIsSaid) {
    for (const Argv& argv : {Argv{"llama-cli"}, Argv{"llama-cli", "--no-mmap", "--load-mode", "mmap"},
                             Argv{"llama-cli", "-lm", "mmap+mlock"}, Argv{"llama-cli", "-m", "none"}}) {
        const auto out = told(argv, with_pages());
        EXPECT_THAT(out.env, Not(Contains(Key("GLIBC_TUNABLES")))) << testing::PrintToString(argv);
        EXPECT_THAT(out.warnings,
                    ElementsAre("huge pages: llama.cpp maps its model, and a mapped file never uses them; to read it "
                                "instead, say --load-mode none"));
    }
    EXPECT_THAT(told({"vllm", "serve", "m"}, with_pages()).warnings, ElementsAre(HasSubstr("huge pages: vllm is not")));
    EXPECT_THAT(told({"sh"}, with_pages()).warnings, IsEmpty()) << "who knows what it does";
}

TEST(HugePages, WhatTheUserTunesStays) {
    const Argv argv{"llama-cli", "--no-mmap"};
    EXPECT_THAT(told(argv, with_pages(), {{"GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"}}).env,
                Contains(Pair("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=2")));
    const auto own = told(argv, with_pages(), {{"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"}});
    EXPECT_THAT(own.env, Not(Contains(Key("GLIBC_TUNABLES"))));
    EXPECT_THAT(own.told, HasSubstr("GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (yours)"));
    const auto wrapped = told({"env", "GLIBC_TUNABLES=a=1", "llama-cli", "--no-mmap"}, with_pages());
    EXPECT_THAT(wrapped.env, Not(Contains(Key("GLIBC_TUNABLES"))));
    EXPECT_THAT(wrapped.warnings, ElementsAre(HasSubstr("make that GLIBC_TUNABLES=a=1:glibc.malloc.hugetlb=2")));
}

}  // namespace
}  // namespace numalease::client
