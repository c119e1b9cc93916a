#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "engines/engine.hpp"
#include "support/engines.hpp"

/// What each shipped engine is told: a command line in, arguments and variables out.
namespace numalease::client {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using test::shipped;

/// 8 cores, 16 hardware threads, on one of two nodes.
LeaseFacts one_node() {
    LeaseFacts facts;
    facts.id = "c1";
    facts.cpus = model::CpuSet(model::IndexSet::range(0, 7) | model::IndexSet::range(16, 23));
    facts.core_cpus = model::CpuSet(model::IndexSet::range(0, 7));
    facts.nodes = model::NodeSet{0};
    facts.cores = facts.threads = 8;
    facts.machine_nodes = 2;
    facts.machine_cpus = 32;
    facts.contained = true;
    return facts;
}

LeaseFacts all_nodes() {
    auto facts = one_node();
    facts.cpus = model::CpuSet(model::IndexSet::range(0, 31));
    facts.core_cpus = model::CpuSet(model::IndexSet::range(0, 15));
    facts.nodes = model::NodeSet{0, 1};
    facts.cores = facts.threads = 16;
    facts.whole_machine = true;
    return facts;
}

struct Row {
    std::string engine;
    Argv in;
    Argv out;                           // empty: as `in`
    Env env = {};                       // but for NUMA_LEASE_*
    std::vector<std::string> warnings;  // a part of each
    Env user = {};
    LeaseFacts facts = one_node();
};

void PrintTo(const Row& row, std::ostream* out) { *out << testing::PrintToString(row.in); }

const Env kLlama{{"LLAMA_ARG_THREADS", "8"}, {"LLAMA_ARG_THREADS_HTTP", "8"}, {"LLAMA_ARG_NUMA", "numactl"}};
const Env kLlamaHttp{{"LLAMA_ARG_THREADS_HTTP", "8"}, {"LLAMA_ARG_NUMA", "numactl"}};
const Env kThreads{{"LLAMA_ARG_THREADS", "8"}, {"LLAMA_ARG_THREADS_HTTP", "8"}};
const Env kVllm{{"VLLM_CPU_OMP_THREADS_BIND", "0-7"}, {"OMP_NUM_THREADS", "8"}};
const Env kSglang{{"SGLANG_CPU_OMP_THREADS_BIND", "0-7"}, {"OMP_NUM_THREADS", "8"}};
const Env kOmp{{"OMP_NUM_THREADS", "8"}};
const Env kGeneric{
    {"LLAMA_ARG_THREADS", "8"}, {"LLAMA_ARG_THREADS_HTTP", "8"},        {"MKL_NUM_THREADS", "8"},
    {"OMP_NUM_THREADS", "8"},   {"SGLANG_CPU_OMP_THREADS_BIND", "0-7"}, {"VLLM_CPU_OMP_THREADS_BIND", "0-7"}};
const Env kGenericOnTwo{{"LLAMA_ARG_THREADS", "16"},
                        {"LLAMA_ARG_THREADS_HTTP", "16"},
                        {"MKL_NUM_THREADS", "16"},
                        {"OMP_NUM_THREADS", "16"}};

std::vector<Row> llama_rows() {
    const std::string whole = "makes llama.cpp size itself by the whole machine";
    return {
        {"llama.cpp", {"llama-server", "-m", "x"}, {}, kLlama},
        {"llama.cpp", {"llama", "serve"}, {}, kLlama},
        {"llama.cpp", {"env", "FOO=1", "llama-server"}, {}, kLlama},
        {"llama.cpp", {"llama-server", "-t", "4"}, {}, kLlamaHttp},
        {"llama.cpp", {"llama-server", "--threads=4"}, {}, kLlamaHttp},
        {"llama.cpp", {"llama-server", "-t", "4", "-t", "64"}, {}, kLlamaHttp, {"-t 64 asks for 64 threads"}},
        {"llama.cpp", {"llama-server", "-t", "-1"}, {"llama-server", "-t", "-1", "-t", "8"}, kLlamaHttp, {whole}},
        {"llama.cpp", {"env", "LLAMA_ARG_THREADS=4", "llama-cli"}, {}, kLlamaHttp},
        {"llama.cpp",
         {"sudo", "llama-cli"},
         {"sudo", "llama-cli", "--numa", "numactl", "-t", "8"},
         {{"LLAMA_ARG_THREADS_HTTP", "8"}},
         {"sudo drops the variables LLAMA_ARG_THREADS_HTTP"}},
        {"llama.cpp",
         {"llama-server"},
         {},
         {{"LLAMA_ARG_THREADS", "16"}, {"LLAMA_ARG_THREADS_HTTP", "16"}, {"LLAMA_ARG_NUMA", "distribute"}},
         {},
         {},
         all_nodes()},
        {"llama-bench", {"llama-bench", "-m", "x"}, {"llama-bench", "--numa", "numactl", "-t", "8", "-m", "x"}},
        {"llama-bench", {"llama-bench", "-t", "4,8"}, {"llama-bench", "--numa", "numactl", "-t", "4,8"}},
        {"llama-bench",
         {"llama-bench", "-t", "4", "--threads=64"},
         {"llama-bench", "--numa", "numactl", "-t", "4", "--threads=64"},
         {},
         {"--threads=64 asks"}},
        {"llama-bench",
         {"env", "A=1", "llama", "bench"},
         {"env", "A=1", "llama", "bench", "--numa", "numactl", "-t", "8"}},
        {"ggml-rpc-server", {"rpc-server", "-p", "1"}, {"rpc-server", "-t", "8", "-p", "1"}},
        {"ggml-rpc-server", {"ggml-rpc-server", "--threads=2"}},
        {"ggml-rpc-server", {"ggml-rpc-server", "-t", "9"}, {}, {}, {"-t 9 asks for 9 threads"}},
    };
}

std::vector<Row> ik_rows() {
    const std::string server = "/opt/ik_llama.cpp/build/bin/llama-server";
    return {
        {"ik_llama.cpp", {server, "-m", "x"}, {server, "--numa", "numactl", "-m", "x"}, kThreads},
        {"ik_llama.cpp", {"ik_llama/llama-cli"}, {"ik_llama/llama-cli", "--numa", "numactl"}, kThreads},
        {"ik_llama.cpp",
         {"env", "FOO=1", server, "-t", "4"},
         {"env", "FOO=1", server, "--numa", "numactl", "-t", "4"},
         {{"LLAMA_ARG_THREADS_HTTP", "8"}}},
        {"ik_llama.cpp",
         {server, "--numa=distribute", "--threads=99"},
         {},
         {{"LLAMA_ARG_THREADS_HTTP", "8"}},
         {"--threads=99 asks", "pins threads over all 2 nodes"}},
        {"ik_llama.cpp",
         {server, "-tb", "-1"},
         {server, "--numa", "numactl", "-tb", "-1", "-tb", "8"},
         kThreads,
         {"makes ik_llama.cpp size itself"}},
        // Only a folder tells it apart.
        {"llama.cpp", {"/opt/ik_llama.cpp-old/llama-server"}, {}, kLlama},
        {"llama.cpp", {"/opt/llama.cpp/llama-server", "-m", "/ik_llama.cpp/x"}, {}, kLlama},
        {"generic", {"/opt/ik_llama.cpp/build.sh"}, {}, kGeneric},
    };
}

std::vector<Row> kobold_rows() {
    return {
        {"koboldcpp", {"koboldcpp", "--model", "x"}, {"koboldcpp", "--threads", "8", "--model", "x"}},
        {"koboldcpp",
         {"python3", "koboldcpp.py", "x.gguf", "5001"},
         {"python3", "koboldcpp.py", "--threads", "8", "x.gguf", "5001"}},
        {"koboldcpp",
         {"/usr/bin/python3.11", "-u", "-X", "dev", "/opt/k/koboldcpp.py"},
         {"/usr/bin/python3.11", "-u", "-X", "dev", "/opt/k/koboldcpp.py", "--threads", "8"}},
        {"koboldcpp", {"env", "FOO=1", "./koboldcpp-linux-x64-nocuda", "--threads", "4"}},
        {"koboldcpp", {"koboldcpp", "--threads=64"}, {}, {}, {"--threads=64 asks for 64 threads"}},
        {"koboldcpp", {"koboldcpp", "-t", "64", "--threads", "4"}},
        {"koboldcpp",
         {"koboldcpp", "--blasthreads", "64"},
         {"koboldcpp", "--threads", "8", "--blasthreads", "64"},
         {},
         {"--blasthreads 64 asks"}},
        {"koboldcpp", {"koboldcpp", "--config", "my.kcpps"}},
    };
}

std::vector<Row> vllm_rows() {
    return {
        {"vllm", {"vllm", "serve", "m"}, {}, kVllm},
        {"vllm", {"python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"}, {}, kVllm},
        {"vllm", {"python3.12", "-Om", "vllm.entrypoints.openai.api_server"}, {}, kVllm},
        {"vllm", {"python", "/venv/bin/vllm", "serve", "m"}, {}, kVllm},
        {"vllm", {"env", "FOO=1", "numactl", "-N", "0", "vllm", "serve", "m"}, {}, kVllm},
        {"vllm",
         {"vllm", "serve", "m"},
         {},
         {{"VLLM_CPU_OMP_THREADS_BIND", "0-15"}, {"OMP_NUM_THREADS", "16"}},
         {},
         {},
         all_nodes()},
        // A list for each rank is not ours to make, and one thread a rank is better than eight.
        {"vllm", {"vllm", "serve", "m", "-tp=2"}},
        {"vllm", {"vllm", "serve", "m", "--tensor-parallel-size", "2"}},
        {"vllm", {"vllm", "serve", "m", "--pipeline_parallel_size=2"}},
        {"vllm", {"vllm", "serve", "--config", "c.yaml"}},
        {"vllm", {"vllm", "serve", "m"}, {}, kOmp, {}, {{"VLLM_CPU_OMP_THREADS_BIND", "auto"}}},
        {"vllm", {"env", "VLLM_CPU_OMP_THREADS_BIND=0-3", "vllm", "serve", "m"}, {}, kOmp},
        {"vllm",
         {"vllm", "serve", "m", "-tp", "2"},
         {},
         {},
         {"VLLM_CPU_OMP_THREADS_BIND=0-7|8-15 names CPUs that the lease does not have (8-15): unset it, or set it to "
          "0-7"},
         {{"VLLM_CPU_OMP_THREADS_BIND", "0-7|8-15"}}},
        {"vllm",
         {"vllm", "serve", "m"},
         {},
         {{"VLLM_CPU_OMP_THREADS_BIND", "0-7"}},
         {"OMP_NUM_THREADS=64 asks"},
         {{"OMP_NUM_THREADS", "64"}}},
        // Of an outer lease, not of the user.
        {"vllm",
         {"vllm", "serve", "m"},
         {},
         kVllm,
         {},
         {{"NUMA_LEASE_ID", "c0"},
          {"NUMA_LEASE_THREADS", "4"},
          {"NUMA_LEASE_CPUS", "0-3,16-19"},
          {"VLLM_CPU_OMP_THREADS_BIND", "0-3"},
          {"OMP_NUM_THREADS", "4"}}},
        {"generic", {"vllm", "chat"}, {}, kGeneric},
    };
}

std::vector<Row> sglang_rows() {
    return {
        {"sglang", {"sglang", "serve", "--model-path", "m"}, {}, kSglang},
        {"sglang", {"python3", "-m", "sglang.launch_server", "--model", "m"}, {}, kSglang},
        {"sglang", {"env", "FOO=1", "python", "-u", "-m", "sglang.launch_server"}, {}, kSglang},
        {"sglang", {"sglang", "serve", "--tp", "2"}, {}, kOmp},
        {"sglang", {"sglang", "serve", "--tp-size=2"}, {}, kOmp},
        {"sglang", {"sglang", "serve", "--kt-cpuinfer", "64"}, {}, kSglang, {"--kt-cpuinfer 64 asks for 64 threads"}},
        {"sglang", {"sglang", "serve", "--kt-cpuinfer=4"}, {}, kSglang},
        {"sglang", {"sglang", "serve"}, {}, kOmp, {}, {{"SGLANG_CPU_OMP_THREADS_BIND", "0-3"}}},
    };
}

std::vector<Row> other_rows() {
    return {
        {"ktransformers",
         {"ktransformers", "--model_path", "m"},
         {"ktransformers", "--cpu_infer", "8", "--model_path", "m"},
         kOmp},
        {"ktransformers",
         {"python", "-m", "ktransformers.local_chat"},
         {"python", "-m", "ktransformers.local_chat", "--cpu_infer", "8"},
         kOmp},
        {"generic", {"python", "ktransformers/server/main.py"}, {}, kGeneric},
        {"ktransformers", {"env", "A=1", "python", "-m", "ktransformers.server.main", "--cpu_infer=4"}, {}, kOmp},
        {"ktransformers", {"ktransformers", "--cpu-infer", "64"}, {}, kOmp, {"--cpu-infer 64 asks"}},
        {"ktransformers", {"ktransformers", "--cpu_infer", "64", "--cpu_infer", "4"}, {}, kOmp},
        {"ollama", {"ollama", "serve"}, {}, kThreads},
        {"ollama", {"env", "OLLAMA_HOST=0.0.0.0", "/usr/local/bin/ollama", "serve"}, {}, kThreads},
        {"ollama", {"ollama", "run", "m", "-t", "64"}, {}, kThreads},
        {"ollama",
         {"ollama", "serve"},
         {},
         {{"LLAMA_ARG_THREADS_HTTP", "8"}},
         {"asks for 64 threads"},
         {{"LLAMA_ARG_THREADS", "64"}}},
        {"ollama",
         {"ollama", "serve"},
         {},
         {{"LLAMA_ARG_THREADS_HTTP", "8"}},
         {"whole machine; drop it"},
         {{"LLAMA_ARG_THREADS", "-1"}}},
        {"generic", {"ollama", "list"}, {}, kGeneric},
        // Unknown commands and shells: the thread variables of every engine; lists of CPUs on one node only.
        {"generic", {"sh", "-c", "vllm serve m"}, {}, kGeneric},
        {"generic", {"env", "A=1", "./start.sh", "-t", "64"}, {}, kGeneric},
        {"generic", {"bash"}, {}, kGenericOnTwo, {}, {}, all_nodes()},
        {"generic", {"python3", "x.py"}, {}, kGeneric},
        {"generic", {"python3", "-c", "import vllm"}, {}, kGeneric},
        {"generic", {"python3", "-mvllm.entrypoints.openai.api_server"}, {}, kGeneric},
        {"generic", {"python3", "-", "vllm", "serve"}, {}, kGeneric},
        {"generic", {"pythonic", "koboldcpp.py"}, {}, kGeneric},
    };
}

std::vector<Row> all_rows() {
    std::vector<Row> out;
    for (const auto& rows : {llama_rows(), ik_rows(), kobold_rows(), vllm_rows(), sglang_rows(), other_rows()})
        out.insert(out.end(), rows.begin(), rows.end());
    return out;
}

class EngineTable : public testing::TestWithParam<Row> {};

TEST_P(EngineTable, TellsTheEngine) {
    const auto& row = GetParam();
    const auto out = adapt(shipped(), nullptr, row.in, row.user, row.facts, false);
    EXPECT_EQ(out.engine, row.engine);
    EXPECT_EQ(out.argv, row.out.empty() ? row.in : row.out);
    auto env = out.env;
    std::erase_if(env, [](const auto& variable) { return variable.first.starts_with("NUMA_LEASE_"); });
    EXPECT_EQ(env, row.env);
    ASSERT_EQ(out.warnings.size(), row.warnings.size()) << testing::PrintToString(out.warnings);
    for (std::size_t i = 0; i < row.warnings.size(); ++i) EXPECT_THAT(out.warnings[i], HasSubstr(row.warnings[i]));
}

INSTANTIATE_TEST_SUITE_P(Shipped, EngineTable, testing::ValuesIn(all_rows()),
                         [](const testing::TestParamInfo<Row>& it) {
                             auto name = std::to_string(it.index) + it.param.engine;
                             std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                             return name;
                         });

TEST(EngineTables, HaveRowsForEveryShippedEngine) {
    const auto rows = all_rows();
    for (const auto& [name, engine] : shipped().engines)
        EXPECT_TRUE(std::ranges::any_of(rows, [&](const Row& row) { return row.engine == name; })) << name;
}

// ── an engine of one's own ────────────────────────────────────────────────────────────────────────────────────────

TEST(OwnEngine, IsAFileInTheUsersFolder) {
    std::string home = (fs::temp_directory_path() / "home-XXXXXX").string();
    ASSERT_NE(::mkdtemp(home.data()), nullptr);
    const auto folder = fs::path(home) / ".config/numa-lease/policies/engines";
    fs::create_directories(folder);
    std::ofstream(folder / "mine.yaml") << "programs: [infer, my_pkg.serve]\n"
                                           "options:\n"
                                           "  threads:\n"
                                           "    flags: [--workers]\n"
                                           "    value: ${threads}\n"
                                           "    insert: yes\n"
                                           "env:\n"
                                           "  PIN: ${core_cpus}\n";
    std::ofstream(folder / "broken.yaml") << "programs: [infer]\noption: {}\n";
    const auto library = policies::load(policies::search_path(home));
    fs::remove_all(home);

    ASSERT_EQ(library.problems.size(), 1U);
    EXPECT_THAT(library.problems[0].detail, HasSubstr("broken.yaml:2:1: unknown key 'option'"));
    auto out = adapt(library, nullptr, {"nice", "infer", "-m", "x"}, {}, one_node(), false);
    EXPECT_EQ(out.engine, "mine");
    EXPECT_EQ(out.argv, (Argv{"nice", "infer", "--workers", "8", "-m", "x"}));
    EXPECT_EQ(out.env.at("PIN"), "0-7");
    out = adapt(library, nullptr, {"python3", "-m", "my_pkg.serve", "--workers=64"}, {}, one_node(), false);
    ASSERT_EQ(out.warnings.size(), 1U);
    EXPECT_THAT(out.warnings[0], HasSubstr("--workers=64 asks for 64 threads"));
    EXPECT_EQ(adapt(shipped(), nullptr, {"infer"}, {}, one_node(), false).engine, "generic");
}

}  // namespace
}  // namespace numalease::client
