#include "support/fake_machine.hpp"

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <utility>

namespace numalease::test {

using namespace model;

void FakePool::write(std::uint64_t target) {
    while (surplus > 0 && target > persistent) {
        --surplus;
        ++persistent;
    }
    while (target > persistent && total() < room) ++persistent;
    const auto least = std::max(target, used);
    while (least < persistent && free() > 0 && total() > least) --persistent;
    while (target < persistent) {
        --persistent;
        ++surplus;
    }
}

void FakePool::unuse(std::uint64_t pages) {
    pages = std::min(pages, used);
    used -= pages;
    surplus -= std::min(surplus, pages);
}

FakeMachine::FakeMachine(Topology topology) {
    observed.topology = std::move(topology);
    knobs[{.knob = Knob::numa_balancing}] = "1";
    knobs[{.knob = Knob::thp_enabled}] = "madvise";
    knobs[{.knob = Knob::zone_reclaim_mode}] = "0";
    for (const auto& node : observed.topology.nodes) {
        observed.memory[node.id] = {.total = node.total, .free = node.total, .clean_cache = 0};
        pools[{.knob = Knob::hugepages, .node = node.id, .page_size = 2 * kMiB}] = FakePool{};
    }
}

Caller FakeMachine::caller(unsigned uid) const {
    return {.uid = uid,
            .gid = uid,
            .process = {.pid = next_pid_, .start_time = 1},
            .command = "test",
            .cgroup = cgroup,
            .allowed_cpus = observed.topology.online,
            .allowed_nodes = observed.topology.node_ids(),
            .parent = {}};
}

core::KnobReading FakeMachine::read(const KnobKey& key) const {
    if (const auto pool = pools.find(key); pool != pools.end())
        return {.value = {}, .pool = pool->second.reading(), .error = {}};
    if (const auto knob = knobs.find(key); knob != knobs.end()) return {.value = knob->second, .pool = {}, .error = {}};
    return {.value = {}, .pool = {}, .error = {Errc::unsupported, "no such file", ENOENT}};
}

std::optional<Error> FakeMachine::write(const KnobKey& key, const std::string& value) {
    if (refusing.contains(key)) return Error{Errc::io, key.text() + ": Permission denied", EACCES};
    knobs[key] = value;
    return std::nullopt;
}

/// With the bound that the host keeps: never below what is free, but for what is to be surplus.
void FakeMachine::resize(const KnobKey& key, std::uint64_t target, std::uint64_t to_surplus) {
    auto& pool = pools.at(key);
    const auto lowest = pool.persistent - std::min(pool.persistent, pool.free() + to_surplus);
    pool.write(target < pool.persistent ? std::max(target, lowest) : target);
}

void FakeMachine::append(const std::vector<Record>& records) {
    for (const auto& record : records) {
        if (cut_journal_at && journal.size() >= *cut_journal_at) throw Crash{};
        const auto line = to_line(record);
        auto read_back = record_from_line(line);
        if (!read_back)
            problems.push_back("a record that cannot be read: " + line);
        else
            journal.push_back(std::move(*read_back));
    }
}

core::Observed FakeMachine::observe(const core::Input& input) const {
    auto out = observed;
    for (const auto& key : core::watched(state, input, observed.topology)) out.knobs[key] = read(key);
    for (const auto& [id, lease] : state.leases)
        if (!lease.request.name.empty())
            out.named[id] = {.held = alive.contains(id), .inhabited = inhabited.contains(id)};
    return out;
}

void FakeMachine::act() {
    if (crash_after && actions >= *crash_after) throw Crash{};
    ++actions;
}

std::optional<Error> FakeMachine::handle(const core::Input& first) {
    std::optional<Error> refusal;
    std::deque<core::Input> inputs{first};
    for (bool is_first = true; !inputs.empty(); is_first = false) {
        const auto input = inputs.front();
        inputs.pop_front();
        const auto seen = observe(input);
        auto step = core::step(state, input, seen, now);
        for (auto& problem : core::violations(step.next, seen)) problems.push_back(std::move(problem));
        if (!step.records.empty() && !light) {
            act();
            append(step.records);
        }
        state = std::move(step.next);
        if (!step.records.empty() && !light) check_journal();
        constexpr std::size_t kLongJournal = 40;
        if (journal.size() > kLongJournal && !keep_whole_journal) journal = core::snapshot(state);
        for (const auto& report : step.reports) reports.push_back(report.text);
        if (is_first) {
            refusal = step.refusal;
            acquired_ = step.lease;
        }
        for (const auto& effect : step.effects) perform(effect, inputs);
    }
    return refusal;
}

void FakeMachine::check_journal() {
    std::vector<std::string> ignored;
    const auto again = core::replay(journal, ignored);
    for (const auto& text : ignored) problems.push_back("ignored at replay: " + text);
    if (core::snapshot(again) != core::snapshot(state)) problems.push_back("the journal does not describe the state");
}

void FakeMachine::check_recorded(const KnobKey& key, const std::string& value) {
    if (light) return;
    std::vector<std::string> ignored;
    const auto kept = core::replay(journal, ignored);
    const auto row = kept.ledger.find(key);
    if (row == kept.ledger.end() || row->second.writing != value)
        problems.push_back("law 1: " + key.text() + " written as " + value + " without a record");
}

void FakeMachine::shield(const core::Confine& effect, model::Confinement& confinement) {
    auto& it = confinement.shield;
    if (it.kind == model::ShieldKind::none) return;
    std::vector<std::string> ignored;
    const auto kept = core::replay(journal, ignored);
    const auto lease = kept.leases.find(effect.lease);
    if (lease == kept.leases.end() || lease->second.confinement.shield.cgroup != it.cgroup)
        problems.push_back("law 1: the shield of " + effect.lease + " is raised without a record");
    it.problem = partition_problem;
    it.in_force = partition_problem.empty();
    if (it.in_force) partitions[it.cgroup] |= state.leases.at(effect.lease).placement.cpus;
}

core::Done FakeMachine::inspect(const core::InspectUnit& effect) const {
    core::Done done{.op = effect.op, .confinement = state.leases.at(effect.lease).confinement};
    if (!shield_in_the_way.empty() && done.confinement.shield.kind != model::ShieldKind::none)
        done.error = model::Error{model::Errc::not_now, "shield: " + shield_in_the_way, 0};
    done.confinement.prior_known = true;
    done.confinement.whole_unit = whole_unit;
    for (auto& setting : done.confinement.settings)
        if (const auto prior = unit.find(setting.property); prior != unit.end() && !prior->second.empty()) {
            setting.prior = prior->second;
            setting.source = PriorSource::runtime;
        }
    if (observed.loses_masks)
        for (const auto& [tid, cpus] : masks)
            done.confinement.masks.push_back({.pid = tid, .thread = {.pid = tid, .start_time = 1}, .cpus = cpus});
    return done;
}

void FakeMachine::confine(const core::Confine& effect, model::Confinement& confinement) {
    std::vector<std::string> ignored;
    const auto kept = core::replay(journal, ignored);
    const auto lease = kept.leases.find(effect.lease);
    if (confinement.kind != ConfinementKind::unit) return;
    if (lease == kept.leases.end() || lease->second.confinement.settings != confinement.settings ||
        lease->second.confinement.masks != confinement.masks)
        problems.push_back("law 1: the unit of " + effect.lease + " is changed without a record");
    lose_masks();
    for (const auto& setting : confinement.settings) {
        unit[setting.property] = setting.value;
        act();
    }
    restore_masks(confinement.masks, false);
    std::erase_if(confinement.masks, [](const ThreadMask& it) { return it.thread.pid % 2 == 0; });
}

void FakeMachine::unconfine(const model::Confinement& confinement) {
    if (confinement.kind != ConfinementKind::unit) return;
    lose_masks();
    for (const auto& setting : confinement.settings) {
        unit[setting.property] = setting.prior;
        act();
    }
    restore_masks(confinement.masks, true);
}

/// As Linux 6.1 does to every thread below where the cpuset controller comes, goes or changes.
void FakeMachine::lose_masks() {
    if (!observed.loses_masks) return;
    for (auto& [tid, cpus] : masks)
        if (tid % 2 == 1 || keeper_missing) cpus = observed.topology.online;
    keeper_missing = false;
}

void FakeMachine::restore_masks(const std::vector<ThreadMask>& kept, bool inside_too) {
    for (const auto& it : kept)
        if ((inside_too || it.thread.pid % 2 == 0) && masks.at(it.thread.pid) == observed.topology.online)
            masks[it.thread.pid] = it.cpus;
}

void FakeMachine::perform(const core::Effect& effect, std::deque<core::Input>& inputs) {
    if (before_effect) before_effect(effect);
    act();
    if (const auto* write = std::get_if<core::WriteKnob>(&effect)) {
        check_recorded(write->key, write->value);
        auto error = this->write(write->key, write->value);
        inputs.emplace_back(
            core::Done{.op = write->op, .key = write->key, .error = std::move(error), .reading = read(write->key)});
    } else if (const auto* resize = std::get_if<core::ResizePool>(&effect)) {
        check_recorded(resize->key, std::to_string(resize->target));
        this->resize(resize->key, resize->target, resize->to_surplus);
        inputs.emplace_back(core::Done{.op = resize->op, .key = resize->key, .reading = read(resize->key)});
    } else if (const auto* confine = std::get_if<core::Confine>(&effect)) {
        auto confinement = state.leases.at(confine->lease).confinement;
        confinement.effective_cpus = state.leases.at(confine->lease).placement.cpus;
        shield(*confine, confinement);
        this->confine(*confine, confinement);
        inputs.emplace_back(core::Done{.op = confine->op, .confinement = confinement});
    } else if (const auto* inspect = std::get_if<core::InspectUnit>(&effect)) {
        inputs.emplace_back(this->inspect(*inspect));
    } else if (const auto* unconfine = std::get_if<core::Unconfine>(&effect)) {
        const auto& lease = state.leases.at(unconfine->lease);
        if (const auto at = partitions.find(lease.confinement.shield.cgroup);
            at != partitions.end() && !unconfine_error) {
            at->second -= lease.placement.cpus;
            if (at->second.empty()) partitions.erase(at);
        }
        if (!unconfine_error) this->unconfine(lease.confinement);
        inputs.emplace_back(core::Done{.op = unconfine->op, .error = unconfine_error});
    } else if (const auto* ask = std::get_if<core::AskUnit>(&effect)) {
        inputs.emplace_back(core::Done{.op = ask->op, .unit_is_over = unit_is_over});
    } else if (const auto* drop = std::get_if<core::DropPageCache>(&effect)) {
        inputs.emplace_back(core::Done{.op = drop->op, .note = "0 freed"});
    } else if (const auto* reclaim = std::get_if<core::ReclaimNode>(&effect)) {
        inputs.emplace_back(core::Done{.op = reclaim->op});
    } else if (const auto* kill = std::get_if<core::Kill>(&effect)) {
        signals.push_back(kill->signal);
    }
}

std::string FakeMachine::acquire(const std::string& options, unsigned uid, const std::string& parent) {
    ++next_pid_;
    auto who = caller(uid);
    who.parent = parent;
    acquired_.clear();
    if (auto refusal = handle(core::Acquire{request(options), who})) {
        last_refusal = *refusal;
        return {};
    }
    alive.insert(acquired_);
    return acquired_;
}

// By value: `id` may be the one in `alive`.
void FakeMachine::holder_gone(std::string id) {
    alive.erase(id);
    handle(core::HoldersGone{{std::move(id)}});
}

void FakeMachine::restart() {
    crash_after.reset();
    cut_journal_at.reset();
    reload();
    std::vector<std::string> ignored;
    state = core::replay(journal, ignored);
    for (const auto& text : ignored) problems.push_back("ignored at restart: " + text);
    handle(core::Recover{alive});
}

void FakeMachine::settle(unsigned limit) {
    for (unsigned i = 0; i < limit; ++i) {
        const auto deadline = core::next_deadline(state);
        if (!deadline) return;
        now.boot = std::max(now.boot, *deadline);
        handle(core::Tick{});
    }
}

Request request(const std::string& fields) {
    Request out;
    std::istringstream words(fields);
    for (std::string word; words >> word;) {
        const auto equals = word.find('=');
        if (auto set = set_field(out, word.substr(0, equals), word.substr(equals + 1)); !set)
            throw std::invalid_argument(set.error().detail);
    }
    return out;
}

Topology simple_topology(unsigned nodes, unsigned cores) {
    Topology out;
    for (unsigned node = 0; node < nodes; ++node) {
        Node it{.id = node, .package = 0, .kind = NodeKind::dram, .cpus = {}, .total = 64 * kGiB};
        for (unsigned i = 0; i < cores; ++i) {
            const auto id = node * cores + i;
            Core core{.id = id,
                      .package = 0,
                      .node = node,
                      .llc = node,
                      .efficiency = 0,
                      .cpus = {id, nodes * cores + id},
                      .offline = {}};
            it.cpus |= core.cpus;
            out.cores.push_back(std::move(core));
        }
        out.online |= it.cpus;
        out.nodes.push_back(std::move(it));
    }
    for (unsigned a = 0; a < nodes; ++a) {
        out.distance.emplace_back();
        for (unsigned b = 0; b < nodes; ++b) out.distance.back().push_back(a == b ? 10 : 20);
    }
    out.hugepage_sizes = {2 * kMiB, kGiB};
    return out;
}

}  // namespace numalease::test
