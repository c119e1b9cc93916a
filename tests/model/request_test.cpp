#include <gtest/gtest.h>

#include "model/lease.hpp"
#include "model/request.hpp"

namespace numalease::model {
namespace {

Request parsed(const std::string& field, const std::string& text) {
    Request request;
    const auto set = set_field(request, field, text);
    EXPECT_TRUE(set) << (set ? "" : set.error().detail);
    return request;
}

TEST(Request, EveryFieldComesBackFromItsText) {
    const std::vector<std::pair<std::string, std::string>> samples{{"policy", "single-node"},
                                                                   {"name", "llama"},
                                                                   {"grace", "2min"},
                                                                   {"warn", "5s:USR1"},
                                                                   {"socket", "0-1"},
                                                                   {"node", "any:2"},
                                                                   {"node", "all"},
                                                                   {"cores", "8"},
                                                                   {"mode", "all"},
                                                                   {"near", "pci:0000:81:00.0"},
                                                                   {"gpu", "any:2"},
                                                                   {"gpu", "0,81:00.0,0001:C1:00.1,GPU-8932f937-d72c"},
                                                                   {"gpu-share", "3"},
                                                                   {"class", "batch"},
                                                                   {"memory", "12G"},
                                                                   {"memory-is-estimate", "yes"},
                                                                   {"memory-max", "16G"},
                                                                   {"mempolicy", "interleave"},
                                                                   {"weights", "0=3,2=1"},
                                                                   {"numa-balancing", "off"},
                                                                   {"thp", "always"},
                                                                   {"thp-defrag", "defer+madvise"},
                                                                   {"zone-reclaim", "1"},
                                                                   {"hugepages", "2M=8G@0,2-3,1G=4G"},
                                                                   {"hugepages", "2M=4G..8G"},
                                                                   {"page-cache", "drop"},
                                                                   {"share", "yes"},
                                                                   {"shield", "yes"},
                                                                   {"isolated", "yes"},
                                                                   {"wait", "90s"},
                                                                   {"wait", "forever"},
                                                                   {"wait", "no"},
                                                                   {"class", "batch"},
                                                                   {"time", "2h"},
                                                                   {"reason", "a benchmark = 100%"},
                                                                   {"command", "llama-server -m x.gguf"},
                                                                   {"required", "node,hugepages"}};
    std::set<std::string> seen;
    for (const auto& [field, text] : samples) {
        auto request = parsed(field, text);
        seen.insert(field);
        Request again;
        for (const auto& [key, value] : to_dict(request))
            EXPECT_TRUE(set_field(again, key, std::get<std::string>(value.v))) << key;
        EXPECT_EQ(again, request) << field << '=' << text;
    }
    for (const auto& field : request_fields())
        EXPECT_TRUE(seen.contains(std::string(field.name))) << field.name << " has no sample";
}

TEST(Request, NamesTheFieldItRefuses) {
    const std::vector<std::pair<std::string, std::string>> wrong{{"node", "0-"},
                                                                 {"node", ""},
                                                                 {"node", "any:0"},
                                                                 {"node", "any:x"},
                                                                 {"node", "1024"},
                                                                 {"socket", "0,,2"},
                                                                 {"cores", "0"},
                                                                 {"cores", "-1"},
                                                                 {"cores", "99999999999999999999"},
                                                                 {"memory", "8X"},
                                                                 {"memory", "99999999T"},
                                                                 {"gpu", ""},
                                                                 {"gpu", "any:0"},
                                                                 {"gpu", "any:65"},
                                                                 {"gpu", "0,,1"},
                                                                 {"gpu", "gpu:0"},
                                                                 {"gpu", "-1"},
                                                                 {"gpu", "81:00"},
                                                                 {"gpu", "81.00:0"},
                                                                 {"gpu", "GPU-"},
                                                                 {"gpu", "GPU-?"},
                                                                 {"gpu", "MIG-8932f937"},
                                                                 {"gpu-share", "0"},
                                                                 {"gpu-share", "yes"},
                                                                 {"mempolicy", "binding"},
                                                                 {"weights", "0=0"},
                                                                 {"weights", "0=256"},
                                                                 {"weights", "x"},
                                                                 {"numa-balancing", "2"},
                                                                 {"thp", "sometimes"},
                                                                 {"zone-reclaim", "8"},
                                                                 {"hugepages", "2M"},
                                                                 {"hugepages", "2M=3M"},
                                                                 {"hugepages", "2M=8G@"},
                                                                 {"hugepages", "2M=8G..4G"},
                                                                 {"hugepages", "0=0"},
                                                                 {"wait", "soon"},
                                                                 {"time", "-1s"},
                                                                 {"share", "maybe"},
                                                                 {"reason", std::string("a\nb")},
                                                                 {"reason", std::string("a\0b", 3)},
                                                                 {"reason", "\x1b[31m"},
                                                                 {"reason", std::string(5000, 'x')},
                                                                 {"no-such-field", "1"}};
    for (const auto& [field, text] : wrong) {
        Request request;
        const auto set = set_field(request, field, text);
        ASSERT_FALSE(set) << field << '=' << text;
        EXPECT_EQ(set.error().code, Errc::invalid_request);
        EXPECT_NE(set.error().detail.find(field), std::string::npos) << set.error().detail;
    }
}

TEST(Request, FromTheBusEveryValueIsTextAndEveryKeyKnown) {
    EXPECT_FALSE(request_from_dict({{"node", std::uint64_t{0}}}));
    EXPECT_FALSE(request_from_dict({{"nodes", "0"}}));
    EXPECT_FALSE(request_from_dict({{"node", "0"}, {"socket", "0"}}));
    EXPECT_FALSE(request_from_dict({{"weights", "0=2"}}));
    EXPECT_FALSE(request_from_dict({{"required", "nothing"}}));
    EXPECT_FALSE(request_from_dict({{"gpu-share", "2"}})) << "of which GPU?";
    EXPECT_TRUE(request_from_dict({{"gpu-share", "2"}, {"gpu", "any:1"}}));
    EXPECT_TRUE(request_from_dict({{"weights", "0=2"}, {"mempolicy", "weighted"}, {"required", "weights"}}));
}

TEST(Request, WhatCouldNotBeReadAgainIsRefused) {
    // Written out, it is longer than it was typed: "2M=2097152..1075838976@…".
    std::string text;
    for (int i = 0; i < 64; ++i)
        text += (i == 0 ? "" : ",") + std::string("2M=2M..1026M@0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34");
    Request request;
    if (!set_field(request, "hugepages", text)) GTEST_FAIL() << "as typed it is short enough";
    const auto valid = validate(request);
    ASSERT_FALSE(valid);
    EXPECT_NE(valid.error().detail.find("hugepages: written out longer than 4096 bytes"), std::string::npos);
}

TEST(Lease, ComesBackFromItsJournalLine) {
    Lease lease{.id = "c7", .state = LeaseState::active, .stage = Stage::done, .reason = "granted = yes 100%\t\"x\""};
    lease.failure = Errc::io;
    lease.caller = {.uid = 1001,
                    .gid = 100,
                    .process = {42, 4711},
                    .command = "we ird)",
                    .cgroup = "/user.slice/a b",
                    .allowed_cpus = {0, 1},
                    .allowed_nodes = {0},
                    .parent = "c3"};
    lease.request.reason = "ünïcode";
    lease.request.hugepages.push_back({2 * kMiB, kGiB, kGiB, NodeSet{1}});
    lease.placement = {
        .cpus = {0, 1, 65},
        .nodes = {0, 2},
        .gpus = {{.pci = "0000:81:00.0", .uuid = "GPU-8932f937", .vendor = "nvidia", .name = "A = 100", .nodes = {2}},
                 {.pci = "0000:c1:00.0", .uuid = "", .vendor = "", .name = "", .nodes = {}}},
        .cores = 2,
        .threads = 3,
        .promise = {{0, 5}, {2, 7}},
        .why = {"a", "b"},
        .runners_up = {"c"}};
    lease.confinement = {.kind = ConfinementKind::unit,
                         .unit = "x.service",
                         .slice = "",
                         .cgroup = "/x",
                         .effective_cpus = {0},
                         .effective_nodes = {0},
                         .masks = {{.pid = 40, .thread = {.pid = 41, .start_time = 5}, .cpus = {1}}},
                         .prior_known = true,
                         .reload_was_due = true,
                         .why = "so"};
    lease.holders = {{42, 4711}, {43, 1}};
    lease.knobs = {{{.knob = Knob::hugepages, .node = 3, .page_size = kGiB}, "4", "1", "3", "short"},
                   {{.knob = Knob::thp_defrag}, "a", "b", "c", ""}};
    lease.notes = {"one", "two"};
    lease.queued = {Micros(1), Micros(2)};
    lease.started = {Micros(3), Micros(4)};
    lease.expires = Micros(99);
    lease.signals_sent = 1;
    const auto line = flatten(journal_dict(lease));
    for (const char c : line) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
    const auto again = lease_from_dict(unflatten(line).value());
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, lease);

    lease.confinement.masks.clear();  // what is only put back is shown to nobody
    lease.confinement.prior_known = lease.confinement.reload_was_due = false;
    EXPECT_EQ(lease_from_dict(to_dict(*again)).value(), lease);
}

TEST(KnobKey, ComesBackFromItsTextForEveryRow) {
    for (const auto& row : kKnobTable) {
        KnobKey key{.knob = row.knob};
        if (row.path.find("{node}") != std::string_view::npos) key.node = 73;
        if (row.path.find("{kib}") != std::string_view::npos) key.page_size = 16 * kGiB;
        EXPECT_EQ(KnobKey::parse(key.text()), key) << key.text();
        EXPECT_EQ(row_of(row.knob).name, row.name) << "the table is in the order of the enum";
        EXPECT_EQ(key.path().find('{'), std::string::npos);
    }
    for (const std::string text :
         {"", "numa", "numa_balancing/node0", "hugepages", "hugepages/2M", "hugepages/2M/0", "weight/nodex"})
        EXPECT_FALSE(KnobKey::parse(text)) << text;
}

TEST(Value, RefusesHostileJournalLines) {
    std::string deep = "a";
    for (int i = 0; i < 20; ++i) deep += ".a";
    deep += "=1";
    for (const std::string_view line : {"a", "=1", "a=%", "a=%4", "a=%zz", "a=1  b=2", deep.c_str()})
        EXPECT_FALSE(unflatten(line)) << line;
}

TEST(Errors, EveryCodeHasItsOwnRow) {
    for (std::size_t i = 0; i < kErrcTable.size(); ++i) EXPECT_EQ(static_cast<std::size_t>(kErrcTable[i].code), i);
    EXPECT_EQ(kErrcTable.back().code, Errc::internal) << "a new code needs a row";
}

TEST(Request, ANameIsThatOfOneSlice) {
    Request request;
    for (const auto* name : {"llama", "a", "web_2", "c", "c1x", "0123456789abcdef0123456789abcdef"})
        EXPECT_TRUE(set_field(request, "name", name)) << name;
    for (const auto* name : {"", "Llama", "a.b", "a b", "a/b", "\xc3\xa4", "0123456789abcdef0123456789abcdef0", "c12"})
        EXPECT_FALSE(set_field(request, "name", name)) << name;
    const auto dash = set_field(request, "name", "web-2");
    ASSERT_FALSE(dash);
    EXPECT_NE(dash.error().detail.find("dash"), std::string::npos) << dash.error().detail;
    EXPECT_NE(dash.error().detail.find("inside another lease"), std::string::npos) << dash.error().detail;
}

}  // namespace
}  // namespace numalease::model
