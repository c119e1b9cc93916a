#include "launch/serving.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace numalease::client {
namespace {

using testing::HasSubstr;
using State = Warmth::State;

const policies::Library& shipped() {
    static const auto library = policies::load({policies::search_path("").front()});
    return library;
}

// ── where it answers ─────────────────────────────────────────────────────────────────────────────────────────────────

TEST(ServingOf, ALlamaServerIsAtItsOwnPortUnlessItIsTold) {
    const auto plain = serving_of(shipped(), {"llama-server", "-m", "x.gguf"}, {});
    ASSERT_TRUE(plain);
    EXPECT_EQ(plain->port, 8080);
    EXPECT_EQ(plain->ready, "GET /health");
    EXPECT_THAT(plain->warm, HasSubstr("POST /completion {"));
    EXPECT_TRUE(plain->is_here());
    EXPECT_EQ(serving_of(shipped(), {"llama-server", "--port", "9000"}, {})->port, 9000);
    EXPECT_EQ(serving_of(shipped(), {"llama-server", "--port=9000", "--port", "9001"}, {})->port, 9001);
    EXPECT_EQ(serving_of(shipped(), {"llama-server"}, {{"LLAMA_ARG_PORT", "9002"}})->port, 9002);
    EXPECT_EQ(serving_of(shipped(), {"env", "LLAMA_ARG_PORT=9003", "llama-server"}, {})->port, 9003);
    EXPECT_EQ(serving_of(shipped(), {"sudo", "llama-server"}, {{"LLAMA_ARG_PORT", "9002"}})->port, 8080);
    EXPECT_EQ(serving_of(shipped(), {"vllm", "serve", "m"}, {})->port, 8000);
}

TEST(ServingOf, WhatIsElsewhereIsNotAskedHere) {
    EXPECT_FALSE(serving_of(shipped(), {"llama-server", "--host", "192.0.2.7"}, {})->is_here());
    EXPECT_FALSE(serving_of(shipped(), {"llama-server", "--host", "/run/x.sock"}, {})->is_here());
    EXPECT_TRUE(serving_of(shipped(), {"llama-server", "--host", "0.0.0.0"}, {})->is_here());
}

TEST(ServingOf, NothingOfWhatIsNoServerOrHasNoPort) {
    for (const Argv& argv : {Argv{"llama-cli", "--port", "1"}, Argv{"sh"}, Argv{"llama-server", "--port", "x"},
                             Argv{"llama-server", "--port", "70000"}, Argv{"llama-server", "--port"},
                             Argv{"vllm", "bench"}, Argv{"koboldcpp"}})
        EXPECT_FALSE(serving_of(shipped(), argv, {})) << testing::PrintToString(argv);
}

// ── several at a time ────────────────────────────────────────────────────────────────────────────────────────────────

std::string refusal(const Argv& argv, const Env& env = {}, bool expand = false) {
    return port_refusal(shipped(), argv, env, expand).value_or("");
}

TEST(PortRefusal, AFixedPortIsForOneOnly) {
    EXPECT_EQ(refusal({"llama-server", "--port", "9000"}),
              "--port 9000: every instance would listen on one port; say --expand before the command, and --port "
              "'${9000+index}' in it");
    EXPECT_THAT(refusal({"llama-server"}, {{"LLAMA_ARG_PORT", "9000"}}), HasSubstr("LLAMA_ARG_PORT=9000: every"));
    EXPECT_THAT(refusal({"llama-server", "--port", "${9000+index}"}), HasSubstr("say --expand"));
    EXPECT_THAT(refusal({"llama-server", "--port", "9000"}, {}, true), HasSubstr("${9000+index}"));
}

TEST(PortRefusal, NoneWhereEachHasItsOwn) {
    EXPECT_EQ(refusal({"llama-server"}), "");
    EXPECT_EQ(refusal({"llama-server", "--port", "${9000+index}"}, {}, true), "");
    EXPECT_EQ(refusal({"llama-server", "--port=${port+index}"}, {}, true), "");
    EXPECT_EQ(refusal({"llama-server", "--port", "900${index}"}, {}, true), "");
    EXPECT_EQ(refusal({"llama-cli", "--port", "1"}), "") << "it takes none";
    EXPECT_EQ(refusal({"sh", "-c", "x --port 1"}), "");
}

// ── warm ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

constexpr Bytes kGiB = model::kGiB;

TEST(Warmth, IsReachedByRoundsInARowThatBringNothing) {
    Warmth warmth({.still = 2}, {.seconds = 0, .major_faults = 100, .resident = kGiB});
    EXPECT_EQ(warmth.add({1, 5000, 3 * kGiB}), State::going);
    EXPECT_EQ(warmth.text(), "round 1: 3G of files resident, +2G/s, 4900 major faults");
    EXPECT_EQ(warmth.add({2, 5000, 3 * kGiB}), State::going);
    EXPECT_EQ(warmth.add({4, 5100, 4 * kGiB}), State::going) << "another expert was met: the count begins again";
    EXPECT_EQ(warmth.add({5, 5100, 4 * kGiB}), State::going);
    EXPECT_EQ(warmth.add({6, 5110, 4 * kGiB + 4096}), State::warm) << "a page of a log is no news";
    EXPECT_EQ(warmth.rounds(), 5U);
}

TEST(Warmth, EitherFaultsOrGrowthIsNews) {
    Warmth faults({.still = 1}, {});
    EXPECT_EQ(faults.add({1, 1000, 0}), State::going) << "pages came, and others went";
    Warmth growth({.still = 1}, {});
    EXPECT_EQ(growth.add({1, 0, kGiB}), State::going) << "mapped from the page cache";
    EXPECT_EQ(growth.add({2, 0, kGiB / 2}), State::warm) << "less is not more";
}

TEST(Warmth, HasAnEndWhereItNeverComes) {
    Warmth warmth({.still = 1, .most = std::chrono::seconds(10)}, {.seconds = 100});
    EXPECT_EQ(warmth.add({105, 1000, 0}), State::going);
    EXPECT_EQ(warmth.add({111, 2000, 0}), State::out_of_time);
}

}  // namespace
}  // namespace numalease::client
