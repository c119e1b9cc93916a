#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

#include "support/topologies.hpp"

/// A machine with leases on it, and requests as a user types them.
namespace numalease::test {

using Fields = std::initializer_list<std::pair<const char*, const char*>>;

inline model::Request ask(Fields fields) {
    model::Request out;
    for (const auto& [name, text] : fields) {
        const auto set = model::set_field(out, name, text);
        EXPECT_TRUE(set) << name << ": " << (set ? "" : set.error().detail);
    }
    return out;
}

struct Machine {
    core::Observed observed;
    core::Occupancy occupancy;

    explicit Machine(const model::Topology& topology) : observed(at_rest(topology)), occupancy(nobody(topology)) {}

    /// Somebody leases these CPUs.
    Machine& lease(const char* id, const char* cpus, bool share = false) {
        occupancy.occupants.push_back({.id = id, .cpus = *model::CpuSet::parse(cpus), .share = share});
        return *this;
    }
    /// Somebody was promised memory on a node and holds `used` of it.
    Machine& promise(const char* id, unsigned node, model::Bytes outstanding, model::Bytes used = 0) {
        occupancy.occupants.push_back({.id = id, .outstanding = {{node, outstanding}}});
        observed.used[id][node] = used;
        observed.memory[node].free -= used;
        return *this;
    }
    Machine& allow(const char* cpus) {
        occupancy.allowed_cpus = *model::CpuSet::parse(cpus);
        return *this;
    }
    [[nodiscard]] auto place(Fields fields) const { return core::place(observed, occupancy, ask(fields)); }
    /// The placement; a refusal fails the test and gives an empty one.
    [[nodiscard]] model::Placement placed(Fields fields) const {
        auto out = place(fields);
        if (out) return *out;
        ADD_FAILURE() << out.error().error.detail;
        return {};
    }
    /// The refusal; a placement fails the test.
    [[nodiscard]] core::NoPlace refused(Fields fields) const {
        auto out = place(fields);
        if (!out) return out.error();
        ADD_FAILURE() << "placed on " << out->cpus.text();
        return {};
    }
};

/// All lines in one, for a look at what they say.
inline std::string text(const std::vector<std::string>& lines) {
    std::string out;
    for (const auto& line : lines) out += line + "\n";
    return out;
}

}  // namespace numalease::test
