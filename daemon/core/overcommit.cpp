#include "core/stepper.hpp"

namespace numalease::core {

/// Where the site allows it, an estimate that has no room is no reason to refuse or to wait: of it counts what has
/// room, so that the job is placed where it gets most, and the lease says so with the numbers per node. `why`: of the
/// whole.
std::expected<model::Placement, NoPlace> Stepper::place_estimate(model::Lease& lease, const World& world,
                                                                 NoPlace why) const {
    constexpr model::Bytes kParts = 64;
    const auto& asked = lease.request.memory;
    if (!observed_.overcommit || !asked || !lease.request.memory_is_estimate) return std::unexpected(std::move(why));
    const auto whole = *asked;
    auto quietly = world;
    quietly.explain = false;
    const auto placed = [&](model::Bytes part) {
        lease.request.memory.reset();
        if (part > 0) lease.request.memory = whole / kParts * part;
        return try_place(lease, quietly);
    };
    auto out = placed(0);
    if (!out) {  // something else is short
        lease.request.memory = whole;
        return std::unexpected(std::move(why));
    }
    model::Bytes least = 0;
    for (model::Bytes most = kParts - 1; least < most;) {
        const auto part = least + (most - least + 1) / 2;
        if (placed(part))
            least = part;
        else
            most = part - 1;
    }
    out = placed(least);
    if (!out || !world.explain) return out;
    const auto counted = lease.request.memory
                             ? "it is placed as if it needed " + model::bytes_text(*lease.request.memory)
                             : std::string("it is placed without");
    lease.notes.push_back("memory: an estimated " + model::bytes_text(whole) +
                          " does not fit, which this site allows; " + counted + ": " + why.error.detail);
    return out;
}

}  // namespace numalease::core
