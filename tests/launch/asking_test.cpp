#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/sizing.hpp"
#include "launch/asking.hpp"
#include "support/gguf_bytes.hpp"

namespace numalease::client {
namespace {

using model::Errc;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

policies::Library library() {
    policies::Library out;
    out.policies["auto"] = {.name = "auto"};
    out.policies["balanced-off"] = {.name = "balanced-off", .fields = {{"numa-balancing", "off"}, {"cores", "2"}}};
    out.policies["socket"] = {.name = "socket", .fields = {{"socket", "any:1"}, {"mempolicy", "interleave"}}};
    out.policies["socket-of-gpu"] = {.name = "socket-of-gpu", .fields = {{"socket", "any:1"}, {"near", "gpu:0"}}};
    out.policies["weights"] = {.name = "weights", .fields = {{"mempolicy", "weighted"}, {"weights", "0=3,1=1"}}};
    out.engines["llama.cpp"] = {.name = "llama.cpp",
                                .programs = {"llama-server"},
                                .options = {{"model", {.flags = {"-m", "--model"}, .env = "LLAMA_ARG_MODEL"}}}};
    return out;
}

model::Result<Asked> ask(const Typed& typed, const Argv& command = {"true"}, bool terminal = false) {
    return build_request(typed, command, {}, library(), terminal ? Waiting::at_terminal : Waiting::usual);
}

Typed fields(std::map<std::string, std::string> values) {
    Typed typed;
    typed.fields = std::move(values);
    return typed;
}

std::string sent(const model::Result<Asked>& asked, const char* field) {
    return asked ? model::get_text(asked->dict, field, "(not sent)") : "(error) " + asked.error().detail;
}

TEST(Asking, SendsOnlyWhatWasTypedOrBroughtByThePolicy) {
    const auto asked = ask(fields({{"cores", "4"}}));
    ASSERT_TRUE(asked) << asked.error().detail;
    std::vector<std::string> names;
    for (const auto& [name, value] : asked->dict) names.push_back(name);
    EXPECT_THAT(names, UnorderedElementsAre("command", "cores", "policy", "wait"));
}

TEST(Asking, SendsADefaultThatWasTypedSoThatItBeatsTheSites) {
    EXPECT_EQ(sent(ask(fields({{"numa-balancing", "auto"}})), "numa-balancing"), "auto");
}

TEST(Asking, TypedWinsOverThePolicy) {
    const auto asked = ask(fields({{"policy", "balanced-off"}, {"cores", "6"}}));
    EXPECT_EQ(sent(asked, "cores"), "6");
    EXPECT_EQ(sent(asked, "numa-balancing"), "off");
}

TEST(Asking, TheGpuThatAPolicyIsNearToGivesWayToALeasedOne) {
    EXPECT_EQ(sent(ask(fields({{"policy", "socket-of-gpu"}})), "near"), "gpu:0");
    const auto asked = ask(fields({{"policy", "socket-of-gpu"}, {"gpu", "1"}}));
    EXPECT_EQ(sent(asked, "near"), "(not sent)");
    EXPECT_EQ(sent(asked, "gpu"), "1");
    EXPECT_EQ(sent(ask(fields({{"policy", "socket-of-gpu"}, {"gpu", "1"}, {"near", "gpu:2"}})), "near"), "gpu:2");
    EXPECT_EQ(sent(ask(fields({{"policy", "socket"}, {"gpu", "1"}})), "near"), "(not sent)");
}

TEST(Asking, TypedLeversAreRequired) {
    EXPECT_EQ(sent(ask(fields({{"numa-balancing", "off"}, {"hugepages", "2M=8M"}, {"cores", "1"}})), "required"),
              "hugepages,numa-balancing");
}

TEST(Asking, LeversOfAPolicyAreBestEffort) {
    EXPECT_EQ(sent(ask(fields({{"policy", "balanced-off"}})), "required"), "(not sent)");
}

TEST(Asking, RequireWithoutFieldsMeansThePolicysLeversToo) {
    auto typed = fields({{"policy", "balanced-off"}});
    typed.require = "all";
    EXPECT_EQ(sent(ask(typed), "required"), "numa-balancing");
}

TEST(Asking, RequireNamesFields) {
    auto typed = fields({{"policy", "socket"}});
    typed.require = "mempolicy";
    EXPECT_EQ(sent(ask(typed), "required"), "mempolicy");
}

TEST(Asking, RequireOfAnUnknownFieldIsRefusedByName) {
    Typed typed;
    typed.require = "warp-speed";
    const auto asked = ask(typed);
    ASSERT_FALSE(asked);
    EXPECT_EQ(asked.error().code, Errc::invalid_request);
    EXPECT_THAT(asked.error().detail, HasSubstr("warp-speed"));
}

TEST(Asking, BestEffortRequiresNothing) {
    auto typed = fields({{"numa-balancing", "off"}});
    typed.best_effort = true;
    EXPECT_EQ(sent(ask(typed), "required"), "(not sent)");
}

TEST(Asking, WaitsForeverAtATerminalAndTenMinutesElsewhere) {
    EXPECT_EQ(sent(ask({}, {"true"}, true), "wait"), "forever");
    EXPECT_EQ(sent(ask({}, {"true"}, false), "wait"), "10min");
}

TEST(Asking, TypedWaitWinsOverTheDefault) {
    Typed typed;
    typed.wait = "90s";
    EXPECT_EQ(sent(ask(typed, {"true"}, true), "wait"), "90s");
    typed.wait.clear();
    typed.no_wait = true;
    EXPECT_EQ(sent(ask(typed, {"true"}, true), "wait"), "no");
}

struct Contradiction {
    const char* name;
    Typed typed;
};

class Contradictions : public testing::TestWithParam<Contradiction> {};

TEST_P(Contradictions, AreUsageErrors) {
    const auto asked = ask(GetParam().typed);
    ASSERT_FALSE(asked);
    EXPECT_EQ(model::row_of(asked.error().code).exit_status, 64);
}

INSTANTIATE_TEST_SUITE_P(
    Asking, Contradictions,
    testing::Values(Contradiction{"WaitAndNoWait", {.no_wait = true, .wait = "forever"}},
                    Contradiction{"InterleaveOnAndBind", {.fields = {{"mempolicy", "bind"}}, .interleave = "on"}},
                    Contradiction{"InterleaveOffAndInterleave",
                                  {.fields = {{"mempolicy", "interleave"}}, .interleave = "off"}},
                    Contradiction{"InterleaveMaybe", {.interleave = "maybe"}},
                    Contradiction{"ExclusiveAndShare", {.fields = {{"share", "yes"}}, .exclusive = true}},
                    Contradiction{"RequireAndBestEffort", {.require = "all", .best_effort = true}},
                    Contradiction{"SocketAndNode", {.fields = {{"socket", "0"}, {"node", "0"}}}},
                    Contradiction{"WeightsWithoutWeighted", {.fields = {{"weights", "0=1"}}}},
                    Contradiction{"HalfARange", {.fields = {{"node", "0-"}}}},
                    Contradiction{"RangeBackwards", {.fields = {{"node", "3-1"}}}},
                    Contradiction{"EmptyItem", {.fields = {{"node", "0,,2"}}}},
                    Contradiction{"SizeOverflow", {.fields = {{"memory", "99999999999999999999G"}}}},
                    Contradiction{"WaitForNonsense", {.wait = "soon"}}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(Asking, InterleaveIsAnAliasOfMempolicyAndRequired) {
    Typed typed;
    typed.interleave = "on";
    EXPECT_EQ(sent(ask(typed), "mempolicy"), "interleave");
    EXPECT_EQ(sent(ask(typed), "required"), "mempolicy");
    typed.interleave = "off";
    EXPECT_EQ(sent(ask(typed), "mempolicy"), "bind");
}

TEST(Asking, InterleaveOnAgreesWithWeighted) {
    auto typed = fields({{"mempolicy", "weighted"}});
    typed.interleave = "on";
    EXPECT_EQ(sent(ask(typed), "mempolicy"), "weighted");
}

TEST(Asking, ATypedNodeReplacesThePolicysSocket) {
    const auto asked = ask(fields({{"policy", "socket"}, {"node", "1"}}));
    EXPECT_EQ(sent(asked, "node"), "1");
    EXPECT_EQ(sent(asked, "socket"), "(not sent)");
}

TEST(Asking, ATypedMempolicyDropsThePolicysWeights) {
    const auto asked = ask(fields({{"policy", "weights"}, {"mempolicy", "bind"}}));
    EXPECT_EQ(sent(asked, "mempolicy"), "bind");
    EXPECT_EQ(sent(asked, "weights"), "(not sent)");
}

TEST(Asking, AnUnknownPolicyIsUnreadableAndNamesTheKnown) {
    const auto asked = ask(fields({{"policy", "warp"}}));
    ASSERT_FALSE(asked);
    EXPECT_EQ(model::row_of(asked.error().code).exit_status, 66);
    EXPECT_THAT(asked.error().detail, HasSubstr("balanced-off"));
}

TEST(Asking, APolicyWhoseFileIsBrokenShowsWhere) {
    auto broken = library();
    broken.problems.push_back({Errc::unreadable, "/etc/numa-lease/policies/mine.yaml:3:5: unknown key 'coers'", 0});
    const auto asked = build_request(fields({{"policy", "mine"}}), {"true"}, {}, broken, Waiting::usual);
    ASSERT_FALSE(asked);
    EXPECT_THAT(asked.error().detail, HasSubstr("mine.yaml:3:5"));
}

TEST(Asking, AServiceDoesNotWaitUnlessItCanTellSystemdSo) {
    const auto in_service = [](const Typed& typed) {
        return build_request(typed, {"true"}, {}, policies::Library{}, Waiting::in_service);
    };
    const auto silent = in_service({});
    ASSERT_TRUE(silent);
    EXPECT_EQ(sent(*silent, "wait"), "no");
    Typed typed;
    typed.wait = "5min";
    const auto refused = in_service(typed);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::invalid_request);
    EXPECT_NE(refused.error().detail.find("Type=notify"), std::string::npos);
}

TEST(Asking, APolicySaysHowLongToWaitWhereNothingIsTyped) {
    auto patient = library();
    patient.policies["patient"] = {.name = "patient", .fields = {{"wait", "30min"}}};
    const auto wait = [&](Typed typed, Waiting waiting) {
        typed.fields["policy"] = "patient";
        return sent(build_request(typed, {"true"}, {}, patient, waiting), "wait");
    };
    EXPECT_EQ(wait({}, Waiting::usual), "30min");
    EXPECT_EQ(wait({}, Waiting::at_terminal), "30min");
    EXPECT_EQ(wait({}, Waiting::in_service), "no");
    EXPECT_EQ(wait({.wait = "5min"}, Waiting::usual), "5min");
    EXPECT_EQ(wait({.no_wait = true}, Waiting::usual), "no");
    EXPECT_EQ(sent(ask({}), "wait"), "10min");
    EXPECT_EQ(sent(ask({}, {"true"}, true), "wait"), "forever");
}

TEST(Asking, WhatAPolicyRequiresIsRequiredBesideWhatIsTyped) {
    auto strict = library();
    strict.policies["strict"] = {.name = "strict",
                                 .fields = {{"numa-balancing", "off"}, {"required", "numa-balancing"}}};
    const auto required = [&](Typed typed) {
        typed.fields["policy"] = "strict";
        return sent(build_request(typed, {"true"}, {}, strict, Waiting::usual), "required");
    };
    EXPECT_EQ(required({}), "numa-balancing");
    EXPECT_EQ(required(fields({{"node", "0"}})), "node,numa-balancing");
    EXPECT_EQ(required({.require = "mempolicy"}), "mempolicy,numa-balancing");
    EXPECT_EQ(required({.best_effort = true}), "(not sent)");
}

TEST(Asking, WorksWithoutAnyPolicyFile) {
    EXPECT_TRUE(build_request({}, {"true"}, {}, policies::Library{}, Waiting::usual));
}

TEST(Asking, SendsACommandOfAnyBytesAsPlainText) {
    const auto asked = ask({}, {"printf", "a\nb\x1b[31m\xff", std::string(10000, 'x')});
    ASSERT_TRUE(asked) << asked.error().detail;
    EXPECT_EQ(sent(asked, "command").find('\x1b'), std::string::npos);
    EXPECT_LT(sent(asked, "command").size(), 300U);
}

TEST(Asking, WhatIsTypedWinsOverTheDefinitionOfANamedLease) {
    policies::LeaseFile definition{
        .fields = {{"node", "0"}, {"cores", "4"}, {"wait", "1h"}, {"required", "cores"}, {"mempolicy", "bind"}},
        .engine = "",
        .model = "a.gguf"};
    Typed typed;
    typed.fields = {{"socket", "1"}, {"cores", "2"}};
    typed.interleave = "on";
    fill_from(typed, definition);
    EXPECT_EQ(typed.fields, (std::map<std::string, std::string>{{"socket", "1"}, {"cores", "2"}}));
    EXPECT_EQ(typed.wait, "1h");
    EXPECT_EQ(typed.require, "cores");
    EXPECT_EQ(typed.model, "a.gguf");
}

TEST(Models, AModelInTheCommandSizesTheMemory) {
    const test::ModelFolder folder;
    const auto file = folder.put("m.gguf", test::small_model());
    const auto sizing = size_model(library(), file, {"llama-server", "-m", file}, {}, false);
    ASSERT_TRUE(sizing) << sizing.error().detail;
    const auto asked = ask({}, {"llama-server", "-m", file});
    EXPECT_EQ(sent(asked, "memory"), std::to_string(sizing->most()));
    EXPECT_EQ(sent(asked, "memory-is-estimate"), "yes");
}

TEST(Models, ATypedModelOfAnotherFormCountsBySize) {
    const test::ModelFolder folder;
    Typed typed;
    typed.model = folder.put("m.bin", std::string(500, 'x'));
    EXPECT_EQ(sent(ask(typed, {"my-engine"}), "memory"), "550");
}

TEST(Models, ATypedMemoryWinsAndIsNoEstimate) {
    auto typed = fields({{"memory", "4G"}});
    typed.model = "/nowhere/missing.gguf";
    const auto asked = ask(typed);
    EXPECT_EQ(sent(asked, "memory"), "4G");
    EXPECT_EQ(sent(asked, "memory-is-estimate"), "(not sent)");
}

TEST(Models, OneThatCannotBeReadIsNamedWithTheWayOut) {
    const test::ModelFolder folder;
    const auto truncated = folder.put("short.gguf", test::small_model().substr(0, 100));
    for (const auto& file : {folder.path("missing.gguf"), truncated, folder.path(".")}) {
        const auto asked = ask({}, {"llama-server", "-m", file});
        ASSERT_FALSE(asked) << file;
        EXPECT_EQ(model::row_of(asked.error().code).exit_status, 66);
        EXPECT_THAT(asked.error().detail, HasSubstr(file));
        EXPECT_THAT(asked.error().detail, HasSubstr("say --memory SIZE instead"));
    }
}

}  // namespace
}  // namespace numalease::client
