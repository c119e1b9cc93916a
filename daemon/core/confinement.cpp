#include <algorithm>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Confinement;
using model::ConfinementKind;
using model::Lease;
using model::PriorSource;
using model::UnitProperty;
using model::UnitSetting;

namespace {

constexpr model::Bytes kSmallUnit = 256 * model::kMiB;  ///< above, PID 1 itself stalls while pages migrate

/// "user-1001.slice" of "/user.slice/user-1001.slice/…", or empty.
std::string user_slice(std::string_view cgroup) {
    constexpr std::string_view kPrefix = "/user.slice/";
    if (!cgroup.starts_with(kPrefix)) return {};
    const auto rest = cgroup.substr(kPrefix.size());
    const auto slice = rest.substr(0, rest.find('/'));
    return slice.starts_with("user-") && slice.ends_with(".slice") ? std::string(slice) : std::string();
}

/// The unit at the end of a path of slices, "/system.slice/foo.service" → "foo.service"; empty where a cgroup that
/// systemd does not manage lies below it (a delegated subtree), or where it is no service.
std::string system_service(std::string_view cgroup) {
    while (!cgroup.empty()) {
        cgroup.remove_prefix(1);
        const auto end = cgroup.find('/');
        const auto part = cgroup.substr(0, end);
        if (end == std::string_view::npos) return part.ends_with(".service") ? std::string(part) : std::string();
        if (!part.ends_with(".slice")) return {};
        cgroup.remove_prefix(end);
    }
    return {};
}

}  // namespace

Confinement choose_confinement(const model::Caller& caller, const model::LeaseId& id, bool systemd) {
    const auto affinity = [](std::string why) {
        return Confinement{.kind = ConfinementKind::affinity, .why = std::move(why)};
    };
    if (!systemd) return affinity("no systemd manages this machine: affinity only, a program can undo it");
    if (!caller.parent.empty())
        return affinity("nested in " + caller.parent + ": stays inside its confinement, narrowed by affinity");
    if (const auto slice = user_slice(caller.cgroup); !slice.empty())
        return {.kind = ConfinementKind::scope,
                .unit = "numalease-" + id + ".scope",
                .slice = slice,
                .why = "a scope inside " + slice + ", so that every limit of the user still binds"};
    if (auto unit = system_service(caller.cgroup); !unit.empty())
        return {.kind = ConfinementKind::unit,
                .unit = unit,
                .why = "a system service stays in its own unit, which is confined itself"};
    return affinity("the caller's cgroup " + (caller.cgroup.empty() ? "(none)" : caller.cgroup) +
                    " is not systemd's to confine: affinity only, a program can undo it");
}

Confinement choose_confinement(const model::Lease& lease, bool systemd) {
    if (lease.request.name.empty()) return choose_confinement(lease.caller, lease.id, systemd);
    const auto slice = "numalease-" + lease.request.name + ".slice";
    return {.kind = ConfinementKind::slice,
            .unit = slice,
            .why = "units with Slice=" + slice + " and containers with --cgroup-parent=" + slice +
                   " are inside from their start; only root can put them there"};
}

void Stepper::choose_settings(Lease& lease) const {
    auto& it = lease.confinement;
    if (it.kind != ConfinementKind::scope && !model::is_unit(it.kind)) return;
    it.settings.push_back({.property = UnitProperty::cpus, .value = lease.placement.cpus.text()});
    it.settings.push_back({.property = UnitProperty::nodes, .value = lease.placement.nodes.text()});
}

/// What a look at the unit changes: a setting of the administrator's own is not overridden, and the pages of a large
/// unit are not made to move.
void Stepper::settle_settings(Lease& lease, model::Bytes unit_memory) const {
    auto& it = lease.confinement;
    const auto own = std::ranges::find_if(it.settings, [](const UnitSetting& setting) {
        return setting.property != UnitProperty::memory && setting.source == PriorSource::persistent;
    });
    if (own != it.settings.end()) {
        it = {.kind = ConfinementKind::affinity,
              .why = it.unit + " has " + std::string(row_of(own->property).name) + "=" + own->prior +
                     " of its own, which is not overridden: affinity only, a program can undo it"};
        return;
    }
    if (unit_memory < kSmallUnit) return;
    std::erase_if(it.settings, [](const UnitSetting& setting) { return setting.property == UnitProperty::nodes; });
    lease.notes.push_back("memory nodes of " + it.unit + " left alone: it is larger than " +
                          model::bytes_text(kSmallUnit) + " already");
}

}  // namespace numalease::core
