#include "model/lease.hpp"

#include <array>

namespace numalease::model {

namespace {

template <class Enum, std::size_t N>
struct Names {
    std::array<std::string_view, N> names;

    [[nodiscard]] std::string_view of(Enum value) const { return names.at(static_cast<std::size_t>(value)); }
    [[nodiscard]] Enum parse(std::string_view text) const {
        for (std::size_t i = 0; i < N; ++i)
            if (names[i] == text) return static_cast<Enum>(i);
        return Enum{};
    }
};

constexpr Names<LeaseState, 6> kStates{{"queued", "preparing", "active", "ending", "ended", "refused"}};
constexpr Names<ConfinementKind, 5> kKinds{{"none", "scope", "unit", "affinity", "slice"}};
constexpr Names<ShieldKind, 3> kShields{{"none", "slice", "path"}};
constexpr Names<Stage, 6> kStages{{"knobs", "page_cache", "hugepages", "inspect", "confine", "done"}};

CpuSet cpus_of(const Dict& dict, std::string_view key) { return CpuSet::parse(get_text(dict, key)).value_or(CpuSet{}); }
NodeSet nodes_of(const Dict& dict, std::string_view key) {
    return NodeSet::parse(get_text(dict, key)).value_or(NodeSet{});
}

std::uint64_t micros(Micros time) { return static_cast<std::uint64_t>(time.count()); }
Micros micros_of(const Dict& dict, std::string_view key) {
    return Micros(static_cast<std::int64_t>(get_number(dict, key)));
}

Dict to_dict(const Instant& at) { return {{"boot", micros(at.boot)}, {"real", micros(at.real)}}; }
Instant instant_of(const Dict& dict, std::string_view key) {
    const auto child = get_dict(dict, key);
    return {.boot = micros_of(child, "boot"), .real = micros_of(child, "real")};
}

Dict to_dict(const Process& process) {
    return {{"pid", static_cast<unsigned>(process.pid)}, {"start_time", process.start_time}};
}
Process process_from(const Dict& dict) {
    return {.pid = static_cast<int>(get_number(dict, "pid")), .start_time = get_number(dict, "start_time")};
}

Dict to_dict(const Caller& caller) {
    return {{"uid", caller.uid},
            {"gid", caller.gid},
            {"process", to_dict(caller.process)},
            {"command", caller.command},
            {"cgroup", caller.cgroup},
            {"allowed_cpus", caller.allowed_cpus.text()},
            {"allowed_nodes", caller.allowed_nodes.text()},
            {"parent", caller.parent},
            {"invocation", caller.invocation}};
}

Caller caller_from(const Dict& dict) {
    return {.uid = static_cast<unsigned>(get_number(dict, "uid")),
            .gid = static_cast<unsigned>(get_number(dict, "gid")),
            .process = process_from(get_dict(dict, "process")),
            .command = get_text(dict, "command"),
            .cgroup = get_text(dict, "cgroup"),
            .allowed_cpus = cpus_of(dict, "allowed_cpus"),
            .allowed_nodes = nodes_of(dict, "allowed_nodes"),
            .parent = get_text(dict, "parent"),
            .invocation = get_text(dict, "invocation")};
}

Dict to_dict(const Shield& it) {
    return {{"kind", text_of(it.kind)}, {"cgroup", it.cgroup}, {"in_force", it.in_force}, {"problem", it.problem}};
}

Shield shield_from(const Dict& dict) {
    return {.kind = kShields.parse(get_text(dict, "kind")),
            .cgroup = get_text(dict, "cgroup"),
            .in_force = get_flag(dict, "in_force"),
            .problem = get_text(dict, "problem")};
}

Dict to_dict(const Confinement& it) {
    Value::Dicts settings;
    for (const auto& setting : it.settings) settings.push_back(to_dict(setting));
    return {{"kind", text_of(it.kind)},
            {"unit", it.unit},
            {"slice", it.slice},
            {"cgroup", it.cgroup},
            {"effective_cpus", it.effective_cpus.text()},
            {"effective_nodes", it.effective_nodes.text()},
            {"memory_oom", it.memory_events.oom},
            {"memory_oom_kill", it.memory_events.oom_kill},
            {"whole_unit", it.whole_unit},
            {"settings", settings},
            {"shield", to_dict(it.shield)},
            {"why", it.why}};
}

Dict journal_dict(const Confinement& it) {
    Value::Dicts masks;
    for (const auto& mask : it.masks)
        masks.push_back(
            {{"pid", static_cast<unsigned>(mask.pid)}, {"thread", to_dict(mask.thread)}, {"cpus", mask.cpus.text()}});
    auto out = to_dict(it);
    out["masks"] = masks;
    out["use_before"] = to_dict(it.use_before);
    out["prior_known"] = it.prior_known;
    out["reload_was_due"] = it.reload_was_due;
    return out;
}

Confinement confinement_from(const Dict& dict) {
    std::vector<UnitSetting> settings;
    for (const auto& it : get_dicts(dict, "settings"))
        if (auto setting = unit_setting_from_dict(it)) settings.push_back(std::move(*setting));
    std::vector<ThreadMask> masks;
    for (const auto& mask : get_dicts(dict, "masks"))
        masks.push_back({.pid = static_cast<int>(get_number(mask, "pid")),
                         .thread = process_from(get_dict(mask, "thread")),
                         .cpus = cpus_of(mask, "cpus")});
    return {.kind = kKinds.parse(get_text(dict, "kind")),
            .unit = get_text(dict, "unit"),
            .slice = get_text(dict, "slice"),
            .cgroup = get_text(dict, "cgroup"),
            .effective_cpus = cpus_of(dict, "effective_cpus"),
            .effective_nodes = nodes_of(dict, "effective_nodes"),
            .memory_events = {.oom = get_number(dict, "memory_oom"), .oom_kill = get_number(dict, "memory_oom_kill")},
            .use_before = use_from_dict(get_dict(dict, "use_before")),
            .whole_unit = get_flag(dict, "whole_unit"),
            .settings = std::move(settings),
            .masks = std::move(masks),
            .prior_known = get_flag(dict, "prior_known"),
            .reload_was_due = get_flag(dict, "reload_was_due"),
            .shield = shield_from(get_dict(dict, "shield")),
            .why = get_text(dict, "why")};
}

Dict to_dict(const KnobGrant& it) {
    return {{"knob", it.key.text()}, {"wanted", it.wanted}, {"prior", it.prior}, {"got", it.got}, {"note", it.note}};
}

}  // namespace

std::string_view text_of(LeaseState state) { return kStates.of(state); }
std::string_view text_of(ConfinementKind kind) { return kKinds.of(kind); }
std::string_view text_of(ShieldKind kind) { return kShields.of(kind); }
std::string_view text_of(Stage stage) { return kStages.of(stage); }

std::set<std::string> gpu_addresses(const Placement& placement) {
    std::set<std::string> out;
    for (const auto& gpu : placement.gpus) out.insert(gpu.pci);
    return out;
}

Dict to_dict(const Placement& placement) {
    Dict promise;
    for (const auto& [node, bytes] : placement.promise) promise[std::to_string(node)] = bytes;
    Value::Dicts gpus;
    for (const auto& gpu : placement.gpus)
        gpus.push_back({{"pci", gpu.pci},
                        {"uuid", gpu.uuid},
                        {"vendor", gpu.vendor},
                        {"name", gpu.name},
                        {"nodes", gpu.nodes.text()}});
    return {{"cpus", placement.cpus.text()}, {"nodes", placement.nodes.text()},   {"gpus", gpus},
            {"cores", placement.cores},      {"threads", placement.threads},      {"promise", promise},
            {"why", placement.why},          {"runners_up", placement.runners_up}};
}

Placement placement_from_dict(const Dict& dict) {
    Placement out{.cpus = cpus_of(dict, "cpus"),
                  .nodes = nodes_of(dict, "nodes"),
                  .gpus = {},
                  .cores = static_cast<unsigned>(get_number(dict, "cores")),
                  .threads = static_cast<unsigned>(get_number(dict, "threads")),
                  .promise = {},
                  .why = get_strings(dict, "why"),
                  .runners_up = get_strings(dict, "runners_up")};
    for (const auto& gpu : get_dicts(dict, "gpus"))
        out.gpus.push_back({.pci = get_text(gpu, "pci"),
                            .uuid = get_text(gpu, "uuid"),
                            .vendor = get_text(gpu, "vendor"),
                            .name = get_text(gpu, "name"),
                            .nodes = nodes_of(gpu, "nodes")});
    const auto promise = get_dict(dict, "promise");
    for (const auto& [node, bytes] : promise)
        if (const auto id = parse_unsigned(node, "node", kNodeLimit - 1))
            out.promise[static_cast<unsigned>(*id)] = get_number(promise, node);
    return out;
}

std::string degraded_text(const Lease& lease) {
    const auto& shield = lease.confinement.shield;
    const auto shield_text = shield.problem.empty() || lease.state != LeaseState::active
                                 ? std::string()
                                 : "its shield does not hold, " + shield.cgroup + " is '" + shield.problem + '\'';
    if (lease.offline.empty()) return shield_text;
    const auto rest = shield_text.empty() ? shield_text : "; " + shield_text;
    // Seen with Linux 6.1 and 6.12: the cpuset keeps its setting and is whole again with the CPU; one that would be
    // empty uses its parent's CPUs meanwhile.
    if (lease.offline == lease.placement.cpus)
        return "all its CPUs (" + lease.offline.text() + ") are offline: until one is back it runs on any other" + rest;
    return "of its CPUs " + lease.placement.cpus.text() + " these are offline: " + lease.offline.text() + rest;
}

Dict to_dict(const Lease& lease) {
    Value::Dicts holders;
    for (const auto& holder : lease.holders) holders.push_back(to_dict(holder));
    Value::Dicts knobs;
    for (const auto& knob : lease.knobs) knobs.push_back(to_dict(knob));
    Dict out{{"id", lease.id},
             {"state", text_of(lease.state)},
             {"stage", text_of(lease.stage)},
             {"reason", lease.reason},
             {"caller", to_dict(lease.caller)},
             {"request", to_dict(lease.request)},
             {"placement", to_dict(lease.placement)},
             {"offline_cpus", lease.offline.text()},
             {"degraded", degraded_text(lease)},
             {"confinement", to_dict(lease.confinement)},
             {"holders", holders},
             {"knobs", knobs},
             {"notes", lease.notes},
             {"queued", to_dict(lease.queued)},
             {"started", to_dict(lease.started)},
             {"ended", to_dict(lease.ended)},
             {"oom_kills", lease.oom_kills},
             {"signals_sent", lease.signals_sent},
             {"warned", lease.warned},
             {"in_the_way", lease.in_the_way}};
    if (lease.failure) out["failure"] = row_of(*lease.failure).bus_name;
    if (lease.expires) out["expires"] = micros(*lease.expires);
    if (lease.verified.at.count() != 0) out["verified"] = to_dict(lease.verified);
    if (lease.parked) out["parked"] = to_dict(*lease.parked);
    return out;
}

Dict journal_dict(const Lease& lease) {
    auto out = to_dict(lease);
    out["confinement"] = journal_dict(lease.confinement);
    return out;
}

Result<Lease> lease_from_dict(const Dict& dict) {
    auto request = request_from_dict(get_dict(dict, "request"));
    if (!request) return std::unexpected(request.error());
    Lease out{.id = get_text(dict, "id"),
              .state = kStates.parse(get_text(dict, "state")),
              .stage = kStages.parse(get_text(dict, "stage")),
              .reason = get_text(dict, "reason"),
              .failure = {},
              .caller = caller_from(get_dict(dict, "caller")),
              .request = std::move(*request),
              .placement = placement_from_dict(get_dict(dict, "placement")),
              .offline = cpus_of(dict, "offline_cpus"),
              .confinement = confinement_from(get_dict(dict, "confinement")),
              .holders = {},
              .knobs = {},
              .notes = get_strings(dict, "notes"),
              .queued = instant_of(dict, "queued"),
              .started = instant_of(dict, "started"),
              .ended = instant_of(dict, "ended"),
              .expires = {},
              .warned = get_flag(dict, "warned"),
              .oom_kills = get_number(dict, "oom_kills"),
              .verified = verification_from_dict(get_dict(dict, "verified")),
              .parked = {},
              .signals_sent = static_cast<unsigned>(get_number(dict, "signals_sent")),
              .in_the_way = get_strings(dict, "in_the_way")};
    if (out.id.empty()) return fail(Errc::invalid_request, "a lease without an id");
    for (const auto& row : kErrcTable)
        if (get_text(dict, "failure") == row.bus_name) out.failure = row.code;
    if (dict.contains("expires")) out.expires = micros_of(dict, "expires");
    if (dict.contains("parked")) out.parked = instant_of(dict, "parked");
    for (const auto& holder : get_dicts(dict, "holders")) out.holders.push_back(process_from(holder));
    for (const auto& knob : get_dicts(dict, "knobs")) {
        const auto key = KnobKey::parse(get_text(knob, "knob"));
        if (!key) return std::unexpected(key.error());
        out.knobs.push_back(
            {*key, get_text(knob, "wanted"), get_text(knob, "prior"), get_text(knob, "got"), get_text(knob, "note")});
    }
    return out;
}

}  // namespace numalease::model
