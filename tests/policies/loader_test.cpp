#include "policies/loader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "policies/variables.hpp"

namespace numalease::policies {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Key;
using testing::Pair;
using testing::StartsWith;
using testing::UnorderedElementsAre;

std::string policy_refusal(const std::string& text) {
    const auto policy = parse_policy(text, "dir/p.yaml");
    if (policy) return "accepted";
    EXPECT_EQ(policy.error().code, model::Errc::unreadable);
    return policy.error().detail;
}

std::string engine_refusal(const std::string& text) {
    const auto engine = parse_engine(text, "e.yaml");
    return engine ? "accepted" : engine.error().detail;
}

TEST(Policy, KeepsItsFieldsInOrderAndItsVariables) {
    const auto policy = parse_policy(
        "why: because\nevidence: seen\nrequest:\n  socket: any:1\n  mempolicy: interleave\n"
        "  hugepages: 2M=8G\nenv:\n  A: ${cores}x\n  B: '1'\n",
        "/x/one-socket.yaml");
    ASSERT_TRUE(policy) << policy.error().detail;
    EXPECT_EQ(policy->name, "one-socket");
    EXPECT_EQ(policy->file, "/x/one-socket.yaml");
    EXPECT_EQ(policy->why, "because");
    EXPECT_EQ(policy->evidence, "seen");
    EXPECT_THAT(policy->fields,
                ElementsAre(Pair("socket", "any:1"), Pair("mempolicy", "interleave"), Pair("hugepages", "2M=8G")));
    EXPECT_THAT(policy->env, ElementsAre(Pair("A", "${cores}x"), Pair("B", "1")));
}

TEST(Policy, SaysWhatBecomesOfTheCommand) {
    const auto warm = parse_policy("run: {warm: {still: 5, most: 2min}}", "w.yaml");
    ASSERT_TRUE(warm) << warm.error().detail;
    EXPECT_EQ(warm->run.warm, (model::Warming{.still = 5, .most = std::chrono::minutes(2)}));
    EXPECT_FALSE(warm->run.per_node);
    EXPECT_EQ(parse_policy("run: {warm: {}}", "w.yaml")->run.warm, model::Warming{});
    const auto each = parse_policy("run: {per: node, on-failure: restart}", "e.yaml");
    ASSERT_TRUE(each) << each.error().detail;
    EXPECT_EQ(each->run, (model::Supervision{.per_node = true, .restart = true, .warm = {}}));
    EXPECT_EQ(parse_policy("why: x", "x.yaml")->run, model::Supervision{});
    EXPECT_THAT(policy_refusal("run: {per: socket}"), HasSubstr("1:12: per: must be one of node"));
    EXPECT_THAT(policy_refusal("run: {per: node, on-failure: again}"), HasSubstr("must be one of end, restart"));
    EXPECT_THAT(policy_refusal("run: {on-failure: end}"), HasSubstr("on-failure: needs per: node"));
    EXPECT_THAT(policy_refusal("run: {per: node, warm: {}}"), HasSubstr("warm: not with per: node"));
    EXPECT_THAT(policy_refusal("run: {warm: {still: 0}}"), HasSubstr("still: must be at least 1"));
    EXPECT_THAT(policy_refusal("run: {warm: {most: soon}}"), HasSubstr("most: "));
    EXPECT_THAT(policy_refusal("run: {warmm: {}}"), HasSubstr("allowed: per, on-failure, warm"));
}

TEST(Policy, MayCountInstancesInItsVariables) {
    const auto policy = parse_policy("env: {A: '${9000+index} ${port+index} ${index} ${node}'}", "p.yaml");
    ASSERT_TRUE(policy) << policy.error().detail;
    for (const auto* wrong : {"${70000+index}", "${+index}", "${9000 + index}", "${9000+node}", "${-1+index}"})
        EXPECT_THAT(policy_refusal("env: {A: '" + std::string(wrong) + "'}"), HasSubstr("unknown variable")) << wrong;
}

TEST(Policy, NamesAnUnknownKeyAndThoseAllowed) {
    EXPECT_EQ(policy_refusal("why: x\nwhyy: y\n"),
              "dir/p.yaml:2:1: unknown key 'whyy'; allowed: name, why, evidence, request, env, run");
}

TEST(Policy, NamesAnUnknownRequestFieldAndThoseAllowed) {
    EXPECT_THAT(policy_refusal("request:\n  sockets: 1\n"),
                AllOf(StartsWith("dir/p.yaml:2:3: unknown key 'sockets'; allowed: socket, node, cores"),
                      HasSubstr("numa-balancing")));
}

TEST(Policy, ChecksFieldsWithTheTableOfTheCommandLine) {
    EXPECT_THAT(policy_refusal("request:\n  node: 3-1\n"), StartsWith("dir/p.yaml:2:9: node: "));
    EXPECT_THAT(policy_refusal("request:\n  mempolicy: strict\n"),
                AllOf(StartsWith("dir/p.yaml:2:14: mempolicy: "), HasSubstr("interleave")));
    EXPECT_THAT(policy_refusal("request:\n  node: 1\n  socket: 0\n"), HasSubstr("dir/p.yaml:1:1: socket and node"));
}

TEST(Policy, RefusesFieldsThatOnlyACommandHas) {
    EXPECT_THAT(policy_refusal("request: {policy: x}\n"), HasSubstr("unknown key 'policy'"));
    EXPECT_THAT(policy_refusal("request: {command: x}\n"), HasSubstr("unknown key 'command'"));
}

TEST(Policy, RefusesWrongTypes) {
    EXPECT_EQ(policy_refusal("- a\n"), "dir/p.yaml:1:1: a policy: must be a map of keys");
    EXPECT_EQ(policy_refusal("why: [a]\n"), "dir/p.yaml:1:6: why: must be text");
    EXPECT_EQ(policy_refusal("why:\n"), "dir/p.yaml:1:1: why: must be text");
    EXPECT_EQ(policy_refusal("request: x\n"), "dir/p.yaml:1:10: request: must be a map of request fields");
    EXPECT_EQ(policy_refusal("request:\n  node: [1, 2]\n"), "dir/p.yaml:2:9: node: must be text");
    EXPECT_EQ(policy_refusal("env: [A]\n"), "dir/p.yaml:1:6: env: must be a map, like { NAME: value }");
}

TEST(Policy, RefusesBadVariablesAndNames) {
    EXPECT_EQ(policy_refusal("env:\n  A: ${core}\n"),
              "dir/p.yaml:2:6: A: unknown variable ${core}; allowed: ${cores}, ${threads}, ${nodes}, ${cpus}, "
              "${core_cpus}, ${node_count}, ${node}, ${index}, ${port+index}");
    EXPECT_EQ(policy_refusal("env:\n  1A: x\n"), "dir/p.yaml:2:3: '1A' is not the name of an environment variable");
    EXPECT_THAT(policy_refusal("env:\n  A: \"x\\ny\"\n"), HasSubstr("must be one line"));
    EXPECT_THAT(policy_refusal("name: ../x\n"), HasSubstr("is not a name"));
}

TEST(Engine, ReadsOptions) {
    const auto engine = parse_engine(
        "programs: [a, b]\noptions:\n  threads:\n    flags: [-t, --threads]\n    env: T\n"
        "    value: ${threads}\n    unset: ['-1']\n  numa:\n    flags: [--numa]\n    value: numactl\n"
        "    insert: yes\n    list: true\n    only: part\nready: GET /health\nfacts: [one]\n",
        "e.yaml");
    ASSERT_TRUE(engine) << engine.error().detail;
    EXPECT_EQ(engine->name, "e");
    EXPECT_THAT(engine->programs, ElementsAre("a", "b"));
    EXPECT_THAT(engine->options, UnorderedElementsAre(Key("threads"), Key("numa")));
    EXPECT_EQ(engine->options.at("threads"),
              (model::EngineOption{.flags = {"-t", "--threads"}, .env = "T", .value = "${threads}", .unset = {"-1"}}));
    EXPECT_EQ(
        engine->options.at("numa"),
        (model::EngineOption{.flags = {"--numa"}, .value = "numactl", .insert = true, .list = true, .only = "part"}));
    EXPECT_EQ(engine->ready, "GET /health");
}

TEST(Engine, RefusesOptionsThatMakeNoSense) {
    EXPECT_EQ(engine_refusal("options:\n  t:\n    flag: [-t]\n"),
              "e.yaml:3:5: unknown key 'flag'; allowed: flags, env, value, unset, insert, list, behind-program, hub, "
              "default, unmaps, copies, only");
    EXPECT_THAT(engine_refusal("options: {t: {value: x}}\n"), HasSubstr("t: needs flags or env"));
    EXPECT_THAT(engine_refusal("options: {t: {flags: [t]}}\n"), HasSubstr("'t' is no flag"));
    EXPECT_THAT(engine_refusal("options: {t: {env: T, insert: yes}}\n"), HasSubstr("insert needs flags and a value"));
    EXPECT_THAT(engine_refusal("options: {t: {env: T, only: some}}\n"),
                HasSubstr("only: must be one of part, whole, node, instance"));
    EXPECT_THAT(engine_refusal("options: {t: {env: T, copies: [2]}}\n"), HasSubstr("copies: must be a map"));
    EXPECT_THAT(engine_refusal("options: {t: {env: T, copies: {a: 0}}}\n"), HasSubstr("a: must be at least 1"));
    EXPECT_THAT(engine_refusal("options: {t: {env: T, copies: {a: 65}}}\n"), HasSubstr("65"));
    EXPECT_THAT(engine_refusal("programs: [a]\nfolders: [x/y]\n"),
                HasSubstr("e.yaml:2:10: folders: 'x/y' is not the name of one folder"));
    EXPECT_THAT(engine_refusal("folders: [x]\n"), HasSubstr("folders: needs programs"));
    EXPECT_THAT(engine_refusal("options: {t: {flags: [-t], list: 1}}\n"), HasSubstr("list: must be yes or no"));
    EXPECT_THAT(engine_refusal("programs: a\n"), HasSubstr("programs: must be a list"));
}

TEST(Variables, ExpandOnlyWhatIsKnown) {
    const auto value = [](std::string_view name) {
        return name == "cores" ? std::optional<std::string>("8") : std::nullopt;
    };
    EXPECT_EQ(expand("a${cores}b${cores}", value), "a8b8");
    EXPECT_EQ(expand("${HOME} $cores ${cores", value), "${HOME} $cores ${cores");
    EXPECT_EQ(expand("${${cores}}", value), "${8}");
}

class Directories : public testing::Test {
protected:
    Directories() {
        std::string name = (fs::temp_directory_path() / "policies-XXXXXX").string();
        root_ = ::mkdtemp(name.data());
    }
    ~Directories() override { fs::remove_all(root_); }

    std::string write(const std::string& path, const std::string& text) {
        fs::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << text;
        return (root_ / path).string();
    }
    std::string dir(const std::string& name) { return (root_ / name).string(); }

    fs::path root_;
};

TEST_F(Directories, LaterOnesWinByName) {
    write("a/p.yaml", "why: first\n");
    write("a/q.yaml", "why: only\n");
    write("b/p.yaml", "why: second\n");
    write("b/engines/e.yaml", "programs: [x]\n");
    const auto library = load({dir("a"), dir("missing"), dir("b")});
    EXPECT_THAT(library.problems, IsEmpty());
    EXPECT_EQ(library.policies.at("p").why, "second");
    EXPECT_EQ(library.policies.at("q").why, "only");
    EXPECT_THAT(library.engines, ElementsAre(Key("e")));
}

TEST_F(Directories, ABrokenFileIsAProblemAndTheOthersStillLoad) {
    const auto bad = write("a/bad.yaml", "why: x\nwhy: y\n");
    write("a/good.yaml", "why: x\n");
    write("a/notes.txt", "not ours");
    write("a/.hidden.yaml", "not: ours");
    const auto library = load({dir("a")});
    EXPECT_THAT(library.policies, ElementsAre(Key("good")));
    ASSERT_EQ(library.problems.size(), 1U);
    EXPECT_EQ(library.problems[0].detail, bad + ":2:1: the key 'why' is there twice");
}

TEST_F(Directories, OnlyRegularFilesAreRead) {
    write("a/good.yaml", "why: x\n");
    fs::create_symlink(dir("a/good.yaml"), dir("a/link.yaml"));
    fs::create_directories(dir("a/folder.yaml"));
    // Opening a pipe without a writer would wait for ever.
    ASSERT_EQ(::mkfifo(dir("a/pipe.yaml").c_str(), 0600), 0);
    const auto library = load({dir("a")});
    EXPECT_THAT(library.policies, ElementsAre(Key("good")));
    ASSERT_EQ(library.problems.size(), 3U);
    EXPECT_THAT(library.problems[0].detail, HasSubstr("folder.yaml: not a regular file"));
    EXPECT_THAT(library.problems[1].detail, HasSubstr("link.yaml: a symbolic link"));
    EXPECT_THAT(library.problems[2].detail, HasSubstr("pipe.yaml: not a regular file"));
}

TEST_F(Directories, ATooLargeFileIsNotReadWhole) {
    write("a/big.yaml", "");
    fs::resize_file(dir("a/big.yaml"), std::uintmax_t{8} << 30);
    const auto library = load({dir("a")});
    ASSERT_EQ(library.problems.size(), 1U);
    EXPECT_THAT(library.problems[0].detail, HasSubstr("larger than 1 MiB"));
}

TEST_F(Directories, TooManyFilesAreLeftOut) {
    for (int i = 0; i < 260; ++i) write("a/p" + std::to_string(i) + ".yaml", "why: x\n");
    const auto library = load({dir("a")});
    EXPECT_EQ(library.policies.size(), 256U);
    ASSERT_EQ(library.problems.size(), 1U);
    EXPECT_THAT(library.problems[0].detail, HasSubstr("more than 256 files"));
}

TEST(SearchPath, LeavesTheUsersFolderOutWithoutAHome) {
    EXPECT_EQ(search_path("").size(), 2U);
    EXPECT_THAT(search_path("/home/a"),
                ElementsAre(testing::_, "/etc/numa-lease/policies", "/home/a/.config/numa-lease/policies"));
}

TEST(SearchPath, FindsTheShippedFilesOfTheBuildTree) {
    EXPECT_TRUE(fs::exists(search_path("").front() + "/auto.yaml")) << search_path("").front();
    EXPECT_TRUE(fs::exists(search_path("").front() + "/engines/llama.cpp.yaml"));
}

TEST(Shipped, EveryFileLoadsAndSaysWhyAndOnWhatEvidence) {
    const auto library = load({NUMALEASE_SHIPPED});
    for (const auto& problem : library.problems) ADD_FAILURE() << problem.detail;
    EXPECT_THAT(library.policies, IsSupersetOf({Key("all-nodes"), Key("auto"), Key("fit-model"), Key("single-node"),
                                                Key("single-socket"), Key("socket-of-gpu")}));
    for (const auto& [name, policy] : library.policies) {
        EXPECT_FALSE(policy.why.empty()) << name;
        EXPECT_FALSE(policy.evidence.empty()) << name;
    }
    EXPECT_THAT(library.engines, IsSupersetOf({Key("generic"), Key("ggml-rpc-server"), Key("ik_llama.cpp"),
                                               Key("koboldcpp"), Key("ktransformers"), Key("llama-bench"),
                                               Key("llama.cpp"), Key("ollama"), Key("sglang"), Key("vllm")}));
    for (const auto& [name, engine] : library.engines) EXPECT_FALSE(engine.facts.empty()) << name;
}

TEST(Shipped, AutoLeavesTheChoiceToTheDaemon) {
    EXPECT_THAT(load({NUMALEASE_SHIPPED}).policies.at("auto").fields, IsEmpty());
}

TEST(LeaseFile, HoldsRequestFieldsAnEngineAndAModel) {
    const auto lease =
        parse_lease("policy: single-node\nengine: llama.cpp\nmodel: /m.gguf\nnode: any:1\ngrace: 1min\n", "l.yaml");
    ASSERT_TRUE(lease) << lease.error().detail;
    EXPECT_EQ(lease->engine, "llama.cpp");
    EXPECT_EQ(lease->model, "/m.gguf");
    EXPECT_EQ(lease->fields, (std::vector<std::pair<std::string, std::string>>{
                                 {"policy", "single-node"}, {"node", "any:1"}, {"grace", "1min"}}));
    EXPECT_TRUE(parse_lease("# node: 0\n", "l.yaml"));
}

TEST(LeaseFile, WhatIsWrongIsNamedByItsPlace) {
    const std::pair<const char*, const char*> cases[] = {
        {"node: 1\nnodes: 2\n", "l.yaml:2:1: unknown key 'nodes'; allowed: engine, model, policy"},
        {"name: other\n", "l.yaml:1:1: unknown key 'name'"},
        {"cores: none\n", "l.yaml:1:8: cores: "},
        {"node: [1, 2]\n", "l.yaml:1:7: node: must be text"},
        {"node: 1\nsocket: 0\n", "socket and node"},
        {"node: 1\nnode: 2\n", "l.yaml:2:1: the key 'node' is there twice"}};
    for (const auto& [text, problem] : cases) {
        const auto lease = parse_lease(text, "l.yaml");
        ASSERT_FALSE(lease) << text;
        EXPECT_EQ(lease.error().code, model::Errc::unreadable);
        EXPECT_NE(lease.error().detail.find(problem), std::string::npos) << lease.error().detail;
    }
}

TEST(LeaseFile, AMissingOneIsToldFromABrokenOne) { EXPECT_EQ(load_lease("/nonexistent", "llama").error().err, ENOENT); }

}  // namespace
}  // namespace numalease::policies
