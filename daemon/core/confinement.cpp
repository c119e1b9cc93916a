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

constexpr std::string_view kOutOfMemory = "out of memory: ";

constexpr model::Bytes kPage = 4096;
constexpr model::Bytes kLeastLimit = 64 * model::kMiB;  ///< so that a lease on a full node can at least say so
constexpr model::Bytes kAllowance = 256 * model::kMiB;  ///< beyond a typed --memory: program, buffers, page tables,
constexpr model::Bytes kAllowancePart = 8;              ///< and an eighth
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

/// What its nodes can give it without eating the reserve or another's promise, and no more than was asked for by name:
/// an overrun is then the lease's own, and nobody else is killed for it. Empty where the memory is not known.
std::optional<model::Bytes> Stepper::memory_limit(const Lease& lease) const {
    const auto less = [](model::Bytes a, model::Bytes b) { return a > b ? a - b : 0; };
    model::Bytes limit = 0;
    for (const auto node : lease.placement.nodes.items()) {
        const auto memory = observed_.memory.find(node);
        if (memory == observed_.memory.end()) return std::nullopt;
        auto room = less(memory->second.free + memory->second.clean_cache, observed_.reserve);
        for (const auto& [id, other] : state_.leases.begun()) {
            if (id == lease.id || !model::occupies(other.state) || !other.caller.parent.empty()) continue;
            const auto promised = outstanding(other, observed_);
            if (const auto part = promised.find(node); part != promised.end()) room = less(room, part->second);
        }
        limit += room;
    }
    limit = std::max(limit, kLeastLimit);
    const auto& request = lease.request;
    if (request.memory && !request.memory_is_estimate)
        limit = std::min(limit, *request.memory + *request.memory / kAllowancePart + kAllowance);
    if (request.memory_max) limit = std::min(limit, *request.memory_max);
    return limit / kPage * kPage;
}

Confinement choose_confinement(const model::Lease& lease, bool systemd) {
    if (lease.request.name.empty()) return choose_confinement(lease.caller, lease.id, systemd);
    const auto slice = "numalease-" + lease.request.name + ".slice";
    return {
        .kind = ConfinementKind::slice,
        .unit = slice,
        .why = "units with Slice=" + slice + " and containers with --cgroup-parent=" + slice +
               " are inside from their start; only root can put them there; in a container without SYS_NICE no memory "
               "policy applies"};
}

void Stepper::choose_settings(Lease& lease) const {
    auto& it = lease.confinement;
    if (it.kind != ConfinementKind::scope && !model::is_unit(it.kind)) return;
    it.settings.push_back({.property = UnitProperty::cpus, .value = lease.placement.cpus.text()});
    it.settings.push_back({.property = UnitProperty::nodes, .value = lease.placement.nodes.text()});
    if (const auto limit = memory_limit(lease))
        it.settings.push_back({.property = UnitProperty::memory, .value = std::to_string(*limit)});
}

/// What a look at the unit changes: a setting of the administrator's own is not overridden, a tighter limit of
/// memory stays, and the pages of a large unit are not made to move.
void Stepper::settle_settings(Lease& lease, model::Bytes unit_memory) {
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
    std::erase_if(it.settings, [&](UnitSetting& setting) {
        if (setting.property != UnitProperty::memory) return false;
        const auto number = [](const std::string& text) {
            return model::parse_unsigned(text, "bytes", ~std::uint64_t{0}).value_or(~std::uint64_t{0});
        };
        // What the unit uses already is not taken from what it may get.
        const auto limit = number(setting.value) + unit_memory / kPage * kPage;
        setting.value = std::to_string(limit);
        return number(setting.prior) <= limit;
    });
    if (unit_memory < kSmallUnit) return;
    std::erase_if(it.settings, [](const UnitSetting& setting) { return setting.property == UnitProperty::nodes; });
    lease.notes.push_back("memory nodes of " + it.unit + " left alone: it is larger than " +
                          model::bytes_text(kSmallUnit) + " already");
}

/// A service that asks again in another run of its unit: the lease of the former run is over, whatever its cgroup
/// looks like, and its masks say nothing about what the new one may use.
void Stepper::start_new_run(model::Caller& caller) {
    const auto parent = state_.leases.find(caller.parent);
    if (parent != state_.leases.end() && is_parked_unit(parent->second)) {  // whoever is in there now is its next run
        caller.allowed_cpus |= parent->second.caller.allowed_cpus;
        caller.allowed_nodes |= parent->second.caller.allowed_nodes;
        caller.parent.clear();
    }
    if (caller.invocation.empty()) return;
    const auto unit = system_service(caller.cgroup);
    for (const auto& id : state_.leases.begun_where([](const Lease& it) { return !model::is_over(it.state); })) {
        const auto& other = std::as_const(state_.leases).at(id);
        const auto& it = other.confinement;
        if (it.kind != ConfinementKind::unit || !it.whole_unit || it.unit != unit || other.caller.invocation.empty() ||
            other.caller.invocation == caller.invocation)
            continue;
        if (caller.parent == id) caller.parent.clear();
        caller.allowed_cpus |= other.caller.allowed_cpus;
        caller.allowed_nodes |= other.caller.allowed_nodes;
        if (other.parked) continue;
        if (may_come_back(other))
            park(state_.leases.edit(id), unit + " was started again");
        else
            begin_ending(state_.leases.edit(id), unit + " was started again");
    }
}

void Stepper::operator()(const OutOfMemory& input) {
    const auto found = state_.leases.find(input.lease);
    if (found == state_.leases.end() || found->second.state != model::LeaseState::active) return;
    auto& lease = state_.leases.edit(input.lease);
    auto before = std::exchange(lease.confinement.memory_events, input.events);
    if (input.events.oom_kill < before.oom_kill) before = {};  // the slice of a named lease was made anew
    if (input.events.oom_kill == before.oom_kill) return;
    lease.oom_kills += input.events.oom_kill - before.oom_kill;
    const auto* limit = model::find_setting(lease.confinement.settings, UnitProperty::memory);
    const auto bytes =
        limit == nullptr ? 0 : model::parse_unsigned(limit->value, "bytes", ~std::uint64_t{0}).value_or(0);
    auto text = std::string(kOutOfMemory) + std::to_string(lease.oom_kills) +
                (lease.oom_kills == 1 ? " process" : " processes") + " killed";
    if (input.events.oom == before.oom)
        text += ", not at the lease's own limit";
    else if (bytes != 0)
        text += " at the lease's limit of " + model::bytes_text(bytes) + " (MemoryMax=" + std::to_string(bytes) +
                "); ask for more with --memory, --memory-max or more nodes";
    std::erase_if(lease.notes, [&](const std::string& note) { return note.starts_with(kOutOfMemory); });
    lease.notes.push_back(text);
    lease.reason = text;
}

std::string why_it_ended(const Lease& lease, const std::string& otherwise) {
    const auto told =
        std::ranges::find_if(lease.notes, [](const auto& note) { return note.starts_with(kOutOfMemory); });
    return told == lease.notes.end() ? otherwise : *told;
}

}  // namespace numalease::core
