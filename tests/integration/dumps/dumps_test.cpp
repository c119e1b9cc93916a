#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "host/root.hpp"
#include "host/topology.hpp"
#include "support/place_oracle.hpp"
#include "support/placing.hpp"

/// Every dump of a real machine: probed, then leased piece by piece, each answer checked by the oracle.
namespace numalease {
namespace {

namespace fs = std::filesystem;
using model::Choice;
using model::Errc;
using model::Request;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kNone = "none";

std::vector<std::string> archives() {
    std::vector<std::string> out;
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(NUMALEASE_MACHINES, missing))
        if (entry.path().filename().string().ends_with(".tar.bz2")) out.push_back(entry.path().string());
    std::ranges::sort(out);
    if (out.empty()) out.emplace_back(kNone);
    return out;
}

/// An unpacked archive, gone at the end.
class Unpacked {
public:
    explicit Unpacked(const std::string& archive) {
        // Ten thousand small files: in memory where there is such a place.
        std::error_code missing;
        const fs::path memory = "/dev/shm";
        std::string name =
            ((fs::is_directory(memory, missing) ? memory : fs::temp_directory_path()) / "numalease-dump-XXXXXX")
                .string();
        if (mkdtemp(name.data()) == nullptr) return;
        top_ = name;
        const auto command = "tar -xjf '" + archive + "' -C '" + name + "'";
        if (std::system(command.c_str()) != 0) return;
        for (const auto& entry : fs::directory_iterator(top_))
            if (entry.is_directory()) root_ = entry.path().string();
        // Those with CPUID registers keep the files one folder deeper.
        if (fs::is_directory(fs::path(root_) / "fsroot")) root_ += "/fsroot";
    }
    Unpacked(const Unpacked&) = delete;
    Unpacked& operator=(const Unpacked&) = delete;
    ~Unpacked() {
        std::error_code ignored;
        if (!top_.empty()) fs::remove_all(top_, ignored);
    }
    [[nodiscard]] const std::string& root() const { return root_; }

private:
    fs::path top_;
    std::string root_;
};

class Dumps : public testing::TestWithParam<std::string> {
protected:
    void SetUp() override {
        if (GetParam() == kNone)
            GTEST_SKIP() << "no machine dumps in " << NUMALEASE_MACHINES << "; set -DNUMALEASE_MACHINES=DIRECTORY";
        const Unpacked files(GetParam());
        ASSERT_FALSE(files.root().empty()) << "cannot unpack " << GetParam() << " (tar and bzip2 are needed)";
        const auto root = host::Root::open(files.root());
        ASSERT_TRUE(root) << root.error().detail;
        const auto topology = host::probe_topology(*root);
        ASSERT_TRUE(topology) << topology.error().detail;
        observed_.topology = *topology;
        // hwloc looks at the machine that the test runs on where it finds no CPUs below the root.
        if (const auto online = root->read("sys/devices/system/cpu/online")) {
            EXPECT_EQ(topology->online.text() + "\n", *online);
        }
        for (const auto& node : topology->nodes)
            if (const auto memory = host::read_node_memory(*root, node.id))
                observed_.memory[node.id] = {
                    .total = memory->total, .free = memory->free, .clean_cache = memory->clean_cache};
        occupancy_ = test::nobody(*topology);
        occupancy_.reserve = 0;  // some of these machines were full when they were dumped
        ASSERT_FALSE(topology->online.empty());
        ASSERT_FALSE(topology->nodes.empty());
        // Whole cores cannot be had where the map contradicts itself; sharing must still work.
        sharing_ = !topology->contradictions.empty();
    }

    [[nodiscard]] Request ask(test::Fields fields) const {
        auto out = test::ask(fields);
        out.share = sharing_;
        return out;
    }

    /// Places, and checks what comes back, whichever it is.
    [[nodiscard]] auto try_place(const Request& request) const {
        auto got = core::place(observed_, occupancy_, request);
        if (got) {
            EXPECT_THAT(test::broken_rules(observed_, occupancy_, request, *got), IsEmpty());
            EXPECT_THAT(got->why, Not(IsEmpty()));
        } else {
            EXPECT_THAT(got.error().error.detail, Not(IsEmpty()));
        }
        return got;
    }

    /// Nodes that are leased without being named, and CPUs on them.
    [[nodiscard]] std::vector<const model::Node*> ordinary_nodes() const {
        std::vector<const model::Node*> out;
        for (const auto& node : observed_.topology.nodes)
            if (node.kind == model::NodeKind::dram && node.cpus.intersects(leasable())) out.push_back(&node);
        return out;
    }
    [[nodiscard]] model::CpuSet leasable() const { return observed_.topology.online - observed_.topology.isolated; }

    /// Leases until nothing is left; gives the number of leases and the last answer.
    std::pair<unsigned, core::NoPlace> fill(const Request& request) {
        model::CpuSet leased;
        for (unsigned count = 0;; ++count) {
            auto got = try_place(request);
            if (!got) {
                occupancy_.occupants.clear();
                return {count, got.error()};
            }
            EXPECT_FALSE(got->cpus.intersects(leased)) << got->cpus.text();
            leased |= got->cpus;
            occupancy_.occupants.push_back({.id = "c" + std::to_string(count + 1), .cpus = got->cpus});
        }
    }

    // One machine, one test: unpacking is what takes long.
    void gives_any_one_core();
    void gives_one_node();
    void gives_any_two_nodes_where_there_are_two();
    void gives_the_whole_machine();
    void gives_every_node_by_name();
    void gives_more_memory_than_one_node_has_on_several();
    void leases_every_core_once_and_then_names_who_is_in_the_way();
    void leases_every_node_once_and_then_names_who_is_in_the_way();
    void refuses_whole_cores_where_the_map_contradicts_itself();
    void honours_every_device();

    core::Observed observed_;
    core::Occupancy occupancy_;
    bool sharing_ = false;
};

void Dumps::gives_any_one_core() {
    const auto got = try_place(ask({{"cores", "1"}}));
    ASSERT_TRUE(got) << got.error().error.detail;
    EXPECT_EQ(got->cores, 1U);
}

void Dumps::gives_one_node() {
    const auto got = try_place(ask({}));
    ASSERT_TRUE(got) << got.error().error.detail;
    EXPECT_GE(got->nodes.size(), 1U);
}

void Dumps::gives_any_two_nodes_where_there_are_two() {
    const auto got = try_place(ask({{"node", "any:2"}}));
    EXPECT_EQ(got.has_value(), ordinary_nodes().size() >= 2);
    if (!got) {
        EXPECT_EQ(got.error().error.code, Errc::impossible);
    }
}

void Dumps::gives_the_whole_machine() {
    const auto nodes = ordinary_nodes();
    auto request = ask({});
    request.nodes = {.kind = Choice::Kind::any, .items = {}, .count = static_cast<unsigned>(nodes.size())};
    const auto got = try_place(request);
    ASSERT_TRUE(got) << got.error().error.detail;
    EXPECT_EQ(got->cpus.text(), leasable().text());
}

void Dumps::gives_every_node_by_name() {
    for (const auto& node : observed_.topology.nodes) {
        const auto got = try_place(ask({{"node", std::to_string(node.id).c_str()}}));
        EXPECT_EQ(got.has_value(), node.cpus.intersects(leasable())) << "node " << node.id;
    }
    const auto past = observed_.topology.nodes.back().id + 1;
    const auto no = try_place(ask({{"node", std::to_string(past).c_str()}}));
    ASSERT_FALSE(no);
    EXPECT_EQ(no.error().error.code, Errc::impossible);
}

void Dumps::gives_more_memory_than_one_node_has_on_several() {
    model::Bytes largest = 0;
    model::Bytes sum = 0;
    for (const auto* node : ordinary_nodes()) {
        const auto memory = observed_.memory.find(node->id);
        if (memory == observed_.memory.end()) continue;
        const auto avail = memory->second.free + memory->second.clean_cache;
        largest = std::max(largest, avail);
        sum += avail;
    }
    auto request = ask({{"cores", "1"}});
    request.memory = largest + 1;
    const auto got = try_place(request);
    EXPECT_EQ(got.has_value(), sum > largest);
    if (got) {
        EXPECT_GE(got->nodes.size(), 2U);
    }
    request.memory = ~model::Bytes{0};
    const auto never = try_place(request);
    ASSERT_FALSE(never);
    EXPECT_EQ(never.error().error.code, Errc::impossible);
}

void Dumps::leases_every_core_once_and_then_names_who_is_in_the_way() {
    if (sharing_) return;  // whole cores cannot be had here
    std::size_t cores = 0;
    for (const auto& core : observed_.topology.cores)
        cores += !core.cpus.empty() && !core.cpus.intersects(observed_.topology.isolated) ? 1U : 0U;
    const auto [count, no] = fill(ask({{"cores", "1"}}));
    EXPECT_EQ(count, cores);
    EXPECT_EQ(no.error.code, Errc::not_now);
    EXPECT_THAT(no.in_the_way, testing::SizeIs(1));
    EXPECT_EQ(no.fits_now, "");
}

void Dumps::leases_every_node_once_and_then_names_who_is_in_the_way() {
    if (sharing_) return;  // whole cores cannot be had here
    const auto [count, no] = fill(ask({}));
    EXPECT_GE(count, 1U);
    EXPECT_LE(count, ordinary_nodes().size());
    EXPECT_EQ(no.error.code, Errc::not_now);
    EXPECT_THAT(no.in_the_way, Not(IsEmpty()));
}

void Dumps::refuses_whole_cores_where_the_map_contradicts_itself() {
    if (!sharing_) return;
    const auto no = try_place(test::ask({{"cores", "1"}}));
    ASSERT_FALSE(no);
    EXPECT_EQ(no.error().error.code, Errc::impossible);
    EXPECT_THAT(no.error().error.detail, testing::HasSubstr(observed_.topology.contradictions.front()));
}

void Dumps::honours_every_device() {
    for (const auto& device : observed_.topology.devices) {
        if (device.pci.empty()) continue;
        const auto got = try_place(ask({{"cores", "1"}, {"near", ("pci:" + device.pci).c_str()}}));
        ASSERT_TRUE(got) << device.pci << ": " << got.error().error.detail;
        bool possible = false;
        for (const auto* node : ordinary_nodes()) possible = possible || device.nodes.contains(node->id);
        if (possible) {
            EXPECT_TRUE(got->nodes.intersects(device.nodes)) << device.pci;
        }
    }
}

TEST_P(Dumps, IsLeasedPieceByPieceAndNeverTwice) {
    {
        SCOPED_TRACE("gives_any_one_core");
        gives_any_one_core();
    }
    {
        SCOPED_TRACE("gives_one_node");
        gives_one_node();
    }
    {
        SCOPED_TRACE("gives_any_two_nodes_where_there_are_two");
        gives_any_two_nodes_where_there_are_two();
    }
    {
        SCOPED_TRACE("gives_the_whole_machine");
        gives_the_whole_machine();
    }
    {
        SCOPED_TRACE("gives_every_node_by_name");
        gives_every_node_by_name();
    }
    {
        SCOPED_TRACE("gives_more_memory_than_one_node_has_on_several");
        gives_more_memory_than_one_node_has_on_several();
    }
    {
        SCOPED_TRACE("leases_every_core_once_and_then_names_who_is_in_the_way");
        leases_every_core_once_and_then_names_who_is_in_the_way();
    }
    {
        SCOPED_TRACE("leases_every_node_once_and_then_names_who_is_in_the_way");
        leases_every_node_once_and_then_names_who_is_in_the_way();
    }
    {
        SCOPED_TRACE("refuses_whole_cores_where_the_map_contradicts_itself");
        refuses_whole_cores_where_the_map_contradicts_itself();
    }
    {
        SCOPED_TRACE("honours_every_device");
        honours_every_device();
    }
}

INSTANTIATE_TEST_SUITE_P(Machines, Dumps, testing::ValuesIn(archives()), [](const auto& dump) {
    std::string name = fs::path(dump.param).filename().string();
    name = name.substr(0, name.find(".tar"));
    std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
});

}  // namespace
}  // namespace numalease
