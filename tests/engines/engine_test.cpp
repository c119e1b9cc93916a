#include "engines/engine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/wrapper.hpp"
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

// ── what is told ──────────────────────────────────────────────────────────────────────────────────────────────────

TEST(Adapt, TellsLlamaCppByVariablesAndLeavesArgvAlone) {
    const Argv argv{"llama-server", "-m", "x.gguf"};
    const auto out = told(argv);
    EXPECT_EQ(out.argv, argv);
    EXPECT_EQ(out.engine, "llama.cpp");
    EXPECT_THAT(out.env, IsSupersetOf({Pair("LLAMA_ARG_THREADS", "8"), Pair("LLAMA_ARG_THREADS_HTTP", "8"),
                                       Pair("LLAMA_ARG_NUMA", "numactl")}));
    EXPECT_THAT(out.env, Not(Contains(Key("OMP_NUM_THREADS"))));
    EXPECT_THAT(out.warnings, IsEmpty());
    EXPECT_EQ(out.told, "llama.cpp: LLAMA_ARG_THREADS_HTTP=8, LLAMA_ARG_NUMA=numactl, LLAMA_ARG_THREADS=8");
}

TEST(Adapt, ExportsTheLease) {
    const auto out = told({"true"}, half(), {{"NUMA_LEASE_ID", "parent"}});
    EXPECT_THAT(out.env, IsSupersetOf({Pair("NUMA_LEASE_ID", "c1"), Pair("NUMA_LEASE_CPUS", "0-15"),
                                       Pair("NUMA_LEASE_NODES", "0"), Pair("NUMA_LEASE_CORES", "8"),
                                       Pair("NUMA_LEASE_THREADS", "8")}));
}

TEST(Adapt, InsertsTheFlagWhereLlamaBenchReadsNoVariable) {
    const auto out = told({"/opt/llama-bench", "-m", "x.gguf"});
    EXPECT_EQ(out.argv, (Argv{"/opt/llama-bench", "--numa", "numactl", "-t", "8", "-m", "x.gguf"}));
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_THREADS"))));
}

TEST(Adapt, GivesUnknownProgramsTheThreadVariablesOfEveryEngine) {
    const Argv argv{"sh", "start.sh", "-t", "64"};
    const auto out = told(argv);
    EXPECT_EQ(out.engine, "generic");
    EXPECT_EQ(out.argv, argv);
    EXPECT_THAT(out.env, IsSupersetOf({Pair("LLAMA_ARG_THREADS", "8"), Pair("LLAMA_ARG_THREADS_HTTP", "8"),
                                       Pair("OMP_NUM_THREADS", "8"), Pair("MKL_NUM_THREADS", "8")}));
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_NUMA"))));
    EXPECT_THAT(out.warnings, IsEmpty());
}

TEST(Adapt, LeavesAUnknownProgramsOwnVariablesAloneAndSetsTheRest) {
    const auto out = told({"python3", "x.py"}, half(), {{"OMP_NUM_THREADS", "64"}});
    EXPECT_THAT(out.env, Not(Contains(Key("OMP_NUM_THREADS"))));
    EXPECT_THAT(out.env, Contains(Pair("MKL_NUM_THREADS", "8")));
    EXPECT_THAT(out.warnings, ElementsAre(HasSubstr("OMP_NUM_THREADS=64 asks for 64 threads")));
}

TEST(Adapt, WhatAnOuterLeaseSaidIsNotTheUsers) {
    const Env outer{{"NUMA_LEASE_ID", "c1"},
                    {"NUMA_LEASE_THREADS", "16"},
                    {"OMP_NUM_THREADS", "16"},
                    {"LLAMA_ARG_THREADS", "16"},
                    {"MKL_NUM_THREADS", "4"}};
    auto out = told({"python3", "x.py"}, half(), outer);
    EXPECT_THAT(out.env, IsSupersetOf({Pair("OMP_NUM_THREADS", "8"), Pair("LLAMA_ARG_THREADS", "8")}));
    EXPECT_THAT(out.env, Not(Contains(Key("MKL_NUM_THREADS"))));  // said inside of the outer lease
    EXPECT_THAT(out.warnings, IsEmpty());
    out = told({"llama-server"}, half(), outer);
    EXPECT_THAT(out.env, Contains(Pair("LLAMA_ARG_THREADS", "8")));
    EXPECT_THAT(out.warnings, IsEmpty());
    // In the command itself it is the user's word, whatever its value.
    out = told({"env", "LLAMA_ARG_THREADS=16", "llama-server"}, half(), outer);
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_THREADS"))));
}

TEST(Adapt, WithoutAnOuterLeaseTheSameNumberIsTheUsers) {
    for (const Env& env : {Env{{"OMP_NUM_THREADS", "16"}, {"NUMA_LEASE_THREADS", "16"}},
                           Env{{"OMP_NUM_THREADS", "16"}, {"NUMA_LEASE_ID", "c1"}}})
        EXPECT_THAT(told({"python3", "x.py"}, half(), env).env, Not(Contains(Key("OMP_NUM_THREADS"))));
}

TEST(Adapt, WorksWithoutAnyEngineFile) {
    const auto out = adapt({}, nullptr, {"llama-server", "-t", "64"}, {}, half(), false);
    EXPECT_EQ(out.argv, (Argv{"llama-server", "-t", "64"}));
    EXPECT_EQ(out.env.size(), 5U);
    EXPECT_EQ(out.engine, "");
}

// ── what the user said ────────────────────────────────────────────────────────────────────────────────────────────

struct ThreadsCase {
    Argv words;
    std::string warning;  // empty: none
};

class UsersThreads : public testing::TestWithParam<ThreadsCase> {};

TEST_P(UsersThreads, StayAsTheyAreAndAreWarnedAboutWhenMoreThanTheLease) {
    Argv argv{"llama-server", "-m", "x.gguf"};
    argv.insert(argv.end(), GetParam().words.begin(), GetParam().words.end());
    const auto out = told(argv);
    EXPECT_EQ(out.argv, argv);
    const bool says_threads = GetParam().words.front() == "-t" || GetParam().words.front().starts_with("--threads=") ||
                              GetParam().words.front() == "--threads";
    EXPECT_EQ(out.env.contains("LLAMA_ARG_THREADS"), !says_threads);
    if (GetParam().warning.empty()) {
        EXPECT_THAT(out.warnings, IsEmpty());
    } else {
        EXPECT_THAT(out.warnings, ElementsAre(HasSubstr(GetParam().warning)));
    }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, UsersThreads,
    testing::Values(
        ThreadsCase{{"-t", "1"}, ""}, ThreadsCase{{"-t", "8"}, ""},
        ThreadsCase{{"-t", "16"}, "-t 16 asks for 16 threads, the lease has 8 cores with 16 hardware threads"},
        ThreadsCase{{"-t", "17"}, "-t 17 asks for 17 threads, the lease has 8 cores: drop it, or say -t 8"},
        ThreadsCase{{"--threads", "64"}, "--threads 64 asks"}, ThreadsCase{{"--threads=64"}, "--threads=64 asks"},
        ThreadsCase{{"-t", "64", "-t", "4"}, ""}, ThreadsCase{{"-t", "4", "--threads", "64"}, "--threads 64 asks"},
        ThreadsCase{{"-t", "99999999999999999999999"}, "-t 99999999999999999999999 asks"},
        ThreadsCase{{"-tb", "64"}, "say -tb 8"}, ThreadsCase{{"--threads_batch", "64"}, "--threads_batch 64 asks"},
        ThreadsCase{{"-t", "4", "-tb", "4"}, ""}, ThreadsCase{{"-t", "nonsense"}, ""}, ThreadsCase{{"-t"}, ""}));

TEST(Adapt, AFlagThatMeansNotGivenIsFollowedByOurs) {
    for (const auto* unset : {"-1", "0"}) {
        const auto out = told({"llama-server", "-t", unset, "-m", "x.gguf"});
        EXPECT_EQ(out.argv, (Argv{"llama-server", "-t", unset, "-t", "8", "-m", "x.gguf"}));
        EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_THREADS"))));
        EXPECT_THAT(out.warnings, ElementsAre(HasSubstr("size itself by the whole machine; told it -t 8 after it")));
    }
    EXPECT_EQ(told({"llama-server", "-tb", "-1"}).argv, (Argv{"llama-server", "-tb", "-1", "-tb", "8"}));
    EXPECT_EQ(told({"llama-server", "-t", "-1", "-t", "4"}).argv, (Argv{"llama-server", "-t", "-1", "-t", "4"}));
    EXPECT_EQ(told({"llama-server", "-t", "4", "-t", "-1"}).argv,
              (Argv{"llama-server", "-t", "4", "-t", "-1", "-t", "8"}));
}

TEST(Adapt, AVariableThatMeansNotGivenIsAnsweredByAFlag) {
    const auto out = told({"nice", "llama-server", "-m", "x"}, half(), {{"LLAMA_ARG_THREADS", "-1"}});
    EXPECT_EQ(out.argv, (Argv{"nice", "llama-server", "-t", "8", "-m", "x"}));
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_THREADS"))));
    EXPECT_THAT(out.warnings, ElementsAre(HasSubstr("LLAMA_ARG_THREADS=-1 makes llama.cpp")));
}

TEST(Adapt, TheUsersVariableStaysAndIsWarnedAboutWhenMoreThanTheLease) {
    auto out = told({"llama-server"}, half(), {{"LLAMA_ARG_THREADS", "17"}});
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_THREADS"))));
    EXPECT_THAT(out.warnings, ElementsAre(HasSubstr("LLAMA_ARG_THREADS=17 asks for 17 threads, the lease has 8 cores: "
                                                    "unset it, or set it to 8")));
    out = told({"env", "LLAMA_ARG_THREADS=17", "llama-server"});
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_THREADS"))));
    EXPECT_THAT(out.warnings, ElementsAre(HasSubstr("LLAMA_ARG_THREADS=17 asks")));
    // The flag wins over the variable, so only the flag counts.
    EXPECT_THAT(told({"llama-server", "-t", "4"}, half(), {{"LLAMA_ARG_THREADS", "17"}}).warnings, IsEmpty());
    EXPECT_THAT(told({"llama-server"}, half(), {{"LLAMA_ARG_THREADS", "2"}}).warnings, IsEmpty());
}

TEST(Adapt, TwoThreadsOnALeaseOfOneCoreAreWarnedAbout) {
    EXPECT_THAT(told({"llama-cli", "-t", "2"}, one_core_of_one_node()).warnings,
                ElementsAre(HasSubstr("-t 2 asks for 2 threads, the lease has 1 core: drop it, or say -t 1")));
}

TEST(Adapt, ReadsLlamaBenchsLists) {
    for (const Argv& fine : {Argv{"-t", "4,8"}, Argv{"-t", "2-8+2"}, Argv{"-t", "1", "-t", "8"}}) {
        Argv argv{"llama-bench"};
        argv.insert(argv.end(), fine.begin(), fine.end());
        EXPECT_THAT(told(argv).warnings, IsEmpty()) << argv.back();
    }
    EXPECT_THAT(told({"llama-bench", "-t", "4,64,2"}).warnings, ElementsAre(HasSubstr("asks for 64 threads")));
    EXPECT_THAT(told({"llama-bench", "-t", "8-64*2"}).warnings, ElementsAre(HasSubstr("asks for 64 threads")));
    EXPECT_THAT(told({"llama-bench", "-t", "64", "-t", "2"}).warnings, ElementsAre(HasSubstr("asks for 64 threads")));
}

TEST(Adapt, HttpThreadsMayBeMoreThanTheLease) {
    EXPECT_THAT(told({"llama-server", "--threads-http", "64"}).warnings, IsEmpty());
}

// ── --numa ────────────────────────────────────────────────────────────────────────────────────────────────────────

TEST(Numa, IsNumactlForAPartDistributeForAllAndNothingOnOneNode) {
    EXPECT_THAT(told({"llama-server"}).env, Contains(Pair("LLAMA_ARG_NUMA", "numactl")));
    EXPECT_THAT(told({"llama-server"}, whole()).env, Contains(Pair("LLAMA_ARG_NUMA", "distribute")));
    EXPECT_THAT(told({"llama-server"}, one_core_of_one_node()).env, Not(Contains(Key("LLAMA_ARG_NUMA"))));
}

TEST(Numa, IsNotSetWhereOnlyAnAffinityHoldsAPart) {
    auto facts = half();
    facts.contained = false;
    const auto out = told({"llama-server"}, facts);
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_NUMA"))));
    EXPECT_THAT(out.warnings, IsEmpty());
}

TEST(Numa, TypedDistributeInAPartStaysAndIsWarnedAbout) {
    const Argv argv{"llama-server", "--numa", "distribute"};
    auto out = told(argv);
    EXPECT_EQ(out.argv, argv);
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_NUMA"))));
    EXPECT_THAT(out.warnings, ElementsAre(HasSubstr("pins threads over all 2 nodes")));
    auto facts = half();
    facts.contained = false;
    EXPECT_THAT(told(argv, facts).warnings, ElementsAre(HasSubstr("lets threads leave the lease")));
    EXPECT_THAT(told(argv, whole()).warnings, IsEmpty());
    EXPECT_THAT(told(argv, one_core_of_one_node()).warnings, IsEmpty());
    EXPECT_THAT(told({"llama-server"}, half(), {{"LLAMA_ARG_NUMA", "distribute"}}).warnings,
                ElementsAre(HasSubstr("LLAMA_ARG_NUMA=distribute pins")));
}

TEST(Numa, IsolateBindsNoMemory) {
    EXPECT_THAT(told({"llama-server", "--numa", "isolate"}).warnings, ElementsAre(HasSubstr("binds no memory")));
}

TEST(Numa, NumactlIsWhatWeWouldSay) { EXPECT_THAT(told({"llama-server", "--numa", "numactl"}).warnings, IsEmpty()); }

TEST(Numa, BeyondTheEnginesLimitsItIsNeitherSetNorGoesUnsaid) {
    auto sixteen_nodes = half();
    sixteen_nodes.machine_nodes = 16;
    auto many_cpus = half();
    many_cpus.machine_cpus = 1024;
    auto gaps = half();
    gaps.node_numbers_have_gaps = true;
    for (const auto& facts : {sixteen_nodes, many_cpus, gaps}) {
        const auto quiet = told({"llama-server"}, facts);
        EXPECT_THAT(quiet.env, Not(Contains(Key("LLAMA_ARG_NUMA"))));
        EXPECT_THAT(quiet.warnings, ElementsAre(HasSubstr("cannot work here")));
        const auto typed = told({"llama-server", "--numa", "distribute"}, facts);
        EXPECT_THAT(typed.warnings, ElementsAre(HasSubstr("--numa distribute cannot work here")));
    }
    auto limits = half();
    limits.machine_nodes = 8;
    limits.machine_cpus = 512;
    EXPECT_THAT(told({"llama-server"}, limits).env, Contains(Key("LLAMA_ARG_NUMA")));
}

// ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────

TEST(PolicyEnv, IsExpandedAndNeverReplacesTheUsers) {
    model::Policy policy;
    policy.env = {{"A", "${cores}/${threads}/${nodes}/${cpus}/${core_cpus}/${node_count}"}, {"B", "ours"}};
    const auto out = told({"true"}, half(), {{"B", "theirs"}}, &policy);
    EXPECT_THAT(out.env, Contains(Pair("A", "8/8/0/0-15/0-7/1")));
    EXPECT_THAT(out.env, Not(Contains(Key("B"))));
}

TEST(PolicyEnv, ComesBeforeWhatTheEngineWouldBeTold) {
    model::Policy policy;
    policy.env = {{"LLAMA_ARG_THREADS", "4"}, {"LLAMA_ARG_NUMA", "isolate"}};
    const auto out = told({"llama-server"}, half(), {}, &policy);
    EXPECT_THAT(out.env, IsSupersetOf({Pair("LLAMA_ARG_THREADS", "4"), Pair("LLAMA_ARG_NUMA", "isolate")}));
}

TEST(PolicyEnv, SingleSocketReadsTheModelUnlessTheUserSaysHow) {
    const auto& policy = shipped().policies.at("single-socket");
    EXPECT_THAT(told({"llama-server"}, half(), {}, &policy).env, Contains(Pair("LLAMA_ARG_NO_MMAP", "1")));
    for (const Argv& argv : {Argv{"llama-server", "--mmap"}, Argv{"llama-server", "--load-mode", "mmap"}})
        EXPECT_THAT(told(argv, half(), {}, &policy).env, Not(Contains(Key("LLAMA_ARG_NO_MMAP")))) << argv[1];
    EXPECT_THAT(told({"llama-server"}, half(), {{"LLAMA_ARG_MMAP", "1"}}, &policy).env,
                Not(Contains(Key("LLAMA_ARG_NO_MMAP"))));
}

TEST(PolicyEnv, SocketOfGpuReadsTheModelAndKeepsShortPromptsOffTheGpu) {
    const auto& policy = shipped().policies.at("socket-of-gpu");
    EXPECT_THAT(told({"llama-server"}, half(), {}, &policy).env,
                IsSupersetOf({Pair("LLAMA_ARG_NO_MMAP", "1"), Pair("GGML_OP_OFFLOAD_MIN_BATCH", "256")}));
    EXPECT_THAT(told({"llama-server", "--mmap"}, half(), {{"GGML_OP_OFFLOAD_MIN_BATCH", "64"}}, &policy).env,
                AllOf(Not(Contains(Key("LLAMA_ARG_NO_MMAP"))), Not(Contains(Key("GGML_OP_OFFLOAD_MIN_BATCH")))));
}

TEST(Expand, FillsInArgvOnlyWhenAsked) {
    const Argv argv{"taskset", "-c", "${cpus}", "prog", "-n${cores}", "${HOME}"};
    EXPECT_EQ(told(argv).argv, argv);
    EXPECT_EQ(adapt(shipped(), nullptr, argv, {}, half(), true).argv,
              (Argv{"taskset", "-c", "0-15", "prog", "-n8", "${HOME}"}));
    EXPECT_THAT(adapt(shipped(), nullptr, {"llama-cli", "-t", "${threads}"}, {}, half(), true).warnings, IsEmpty());
}

// ── wrappers ──────────────────────────────────────────────────────────────────────────────────────────────────────

class Wrapped : public testing::TestWithParam<Argv> {};

TEST_P(Wrapped, IsRecognised) {
    auto argv = GetParam();
    argv.insert(argv.end(), {"/usr/bin/llama-server", "-t", "64"});
    std::size_t program = 0;
    const auto* engine = recognise(shipped(), argv, &program);
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->name, "llama.cpp");
    EXPECT_EQ(program, GetParam().size());
    EXPECT_THAT(told(argv).warnings, Contains(HasSubstr("-t 64 asks")));
}

INSTANTIATE_TEST_SUITE_P(
    Wrappers, Wrapped,
    testing::Values(Argv{}, Argv{"env", "FOO=1"}, Argv{"env", "-u", "X", "-C", "/tmp", "A=1", "B=2"},
                    Argv{"env", "--unset=X", "--"}, Argv{"nice"}, Argv{"nice", "-n", "5"}, Argv{"nice", "-n5"},
                    Argv{"nice", "-5"}, Argv{"nohup"}, Argv{"/usr/bin/time", "-v"}, Argv{"time", "-f", "%e"},
                    Argv{"stdbuf", "-oL"}, Argv{"stdbuf", "-o", "L", "-e0"}, Argv{"taskset", "-c", "0-3"},
                    Argv{"taskset", "ff"}, Argv{"numactl", "--interleave=all"}, Argv{"numactl", "-N", "0", "-m", "0"},
                    Argv{"numactl", "-N0", "--membind", "0", "--"}, Argv{"chrt", "-f", "10"},
                    Argv{"chrt", "--rr", "10"}, Argv{"ionice", "-c", "2", "-n7"}, Argv{"timeout", "-k", "5", "60"},
                    Argv{"setsid", "-w"}, Argv{"sudo", "-u", "llm"}, Argv{"sudo", "-nu", "llm", "A=1"},
                    Argv{"doas", "-u", "llm"}, Argv{"python3", "-I"}, Argv{"python3.11", "-Wd", "-X", "dev", "-m"},
                    Argv{"python", "--check-hash-based-pycs", "never"},
                    Argv{"nice", "-n", "5", "env", "A=1", "nohup"}));

TEST(Recognise, DoesNotGuess) {
    for (const Argv& argv :
         {Argv{}, Argv{"sh", "-c", "llama-server -t 4"}, Argv{"bash", "start.sh"}, Argv{"env", "-S", "llama-server -t"},
          Argv{"env"}, Argv{"taskset", "-p", "123"}, Argv{"llama-server-old"}, Argv{"llama"}, Argv{"llama", "quantize"},
          Argv{"sudo", "-i", "llama-server"}, Argv{"numactl", "--hardware"}, Argv{"nice", "-n"}})
        EXPECT_EQ(engine_of(argv), "generic") << testing::PrintToString(argv);
}

TEST(Recognise, KnowsThePartsOfLlamaCpp) {
    EXPECT_EQ(engine_of({"llama-cli"}), "llama.cpp");
    EXPECT_EQ(engine_of({"llama", "serve", "-m", "x"}), "llama.cpp");
    EXPECT_EQ(engine_of({"llama", "bench"}), "llama-bench");
    EXPECT_EQ(engine_of({"ggml-rpc-server"}), "ggml-rpc-server");
    EXPECT_EQ(told({"llama", "bench", "-m", "x"}, one_core_of_one_node()).argv,
              (Argv{"llama", "bench", "-t", "1", "-m", "x"}));
}

TEST(Wrappers, ThatDropVariablesMakeUsUseFlags) {
    const auto out = told({"sudo", "-u", "llm", "llama-cli", "-m", "x"});
    EXPECT_EQ(out.argv, (Argv{"sudo", "-u", "llm", "llama-cli", "--numa", "numactl", "-t", "8", "-m", "x"}));
    EXPECT_THAT(out.env, Not(Contains(Key("LLAMA_ARG_THREADS"))));
    EXPECT_THAT(told({"env", "-i", "python3"}).warnings, ElementsAre(HasSubstr("env drops the variables")));
    EXPECT_EQ(told({"sudo", "-E", "llama-cli"}).argv, (Argv{"sudo", "-E", "llama-cli"}));
}

TEST(Wrappers, ThatDropVariablesDropTheUsersToo) {
    const auto out = told({"sudo", "llama-cli"}, one_core_of_one_node(), {{"LLAMA_ARG_THREADS", "64"}});
    EXPECT_EQ(out.argv, (Argv{"sudo", "llama-cli", "-t", "1"}));
}

TEST(Adapt, InsertsNoFlagThatNotEveryProgramOfTheEngineTakes) {
    // llama-cli ends with "invalid argument: --threads-http".
    const Argv argv{"llama-cli", "-m", "x"};
    EXPECT_EQ(told(argv, half(), {{"LLAMA_ARG_THREADS_HTTP", "-1"}}).argv, argv);
}

// ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────────

std::optional<std::string> model_of(const Argv& argv, const Env& env = {}) {
    return model_file(*recognise(shipped(), argv, nullptr), argv, env);
}

TEST(ModelFile, IsFoundInFlagsAndVariables) {
    EXPECT_EQ(model_of({"llama-server", "-m", "a.gguf"}), "a.gguf");
    EXPECT_EQ(model_of({"llama-server", "--model=a.gguf"}), "a.gguf");
    EXPECT_EQ(model_of({"nice", "llama-server", "-m", "a", "--model", "b"}), "b");
    EXPECT_EQ(model_of({"llama-server"}, {{"LLAMA_ARG_MODEL", "e"}}), "e");
    EXPECT_EQ(model_of({"llama-server", "-m", "a"}, {{"LLAMA_ARG_MODEL", "e"}}), "a");
    EXPECT_EQ(model_of({"env", "LLAMA_ARG_MODEL=w", "llama-server"}, {{"LLAMA_ARG_MODEL", "e"}}), "w");
    EXPECT_EQ(model_of({"llama-bench", "-m", "a,b"}), "a");
    EXPECT_EQ(model_of({"llama-server", "-m"}), std::nullopt);
    EXPECT_EQ(model_of({"llama-server", "-hf", "x/y"}), std::nullopt);
    EXPECT_EQ(model_of({"sh", "-m", "a"}), std::nullopt);
    EXPECT_EQ(model_of({"vllm", "serve", "org/m", "--port", "1"}), "org/m");
    EXPECT_EQ(model_of({"vllm", "serve", "--model", "/m"}), "/m");
    EXPECT_EQ(model_of({"vllm", "serve", "/m", "--model", "/other"}), "/m");
    EXPECT_EQ(model_of({"python3", "-m", "vllm.entrypoints.openai.api_server", "--model=org/m"}), "org/m");
    EXPECT_EQ(model_of({"python3", "-m", "sglang.launch_server", "--model-path", "/m"}), "/m");
    EXPECT_EQ(model_of({"vllm", "serve"}), std::nullopt);
    EXPECT_EQ(model_of({"koboldcpp", "--model", "https://host/a.gguf"}), std::nullopt);
}

}  // namespace
}  // namespace numalease::client
