#include "service/effects.hpp"

#include <algorithm>

#include "host/knobs.hpp"
#include "host/terminal.hpp"
#include "service/log.hpp"

namespace numalease::service {

namespace {

/// A LEASE= for each lease that a change of the knob is for: who wants it, has pages of it, or lets it go.
log::Fields leases_of(const core::State& state, const model::KnobKey& key) {
    log::Fields out;
    const auto row = state.ledger.find(key);
    if (row == state.ledger.end()) return out;
    auto ids = row->second.settling;
    for (const auto& [id, value] : row->second.wants) ids.insert(id);
    for (const auto& [id, share] : row->second.shares) ids.insert(id);
    for (const auto& id : ids) out.push_back({"LEASE", id});
    return out;
}

}  // namespace

void Effects::perform(const core::Effect& effect, const core::State& state) {
    std::visit([&](const auto& it) { (*this)(it, state); }, effect);
}

void Effects::operator()(const core::WriteKnob& effect, const core::State& state) const {
    const auto before = observer_.read(effect.key);
    core::Done done{.op = effect.op, .key = effect.key};
    if (auto value = host::write_knob(machine_.root, effect.key, effect.value)) {
        done.reading.value = std::move(*value);
    } else {
        done.error = value.error();
        done.reading = observer_.read(effect.key);
    }
    auto fields = leases_of(state, effect.key);
    fields.insert(fields.begin(),
                  {{"KNOB", effect.key.text()},
                   {"OLD", before.value.value_or("")},
                   {"NEW", done.reading.value.value_or("")},
                   {"REASON", done.error ? done.error->detail : ""},
                   {"ERRNO", done.error && done.error->err != 0 ? std::to_string(done.error->err) : ""}});
    log::event(done.error ? log::Level::warning : log::Level::info, log::kKnob,
               done.error ? "a knob refuses" : "a knob changed", fields);
    done_(std::move(done));
}

void Effects::operator()(const core::ResizePool& effect, const core::State& state) const {
    workers_.run(effect.key, [effect, this, fields = leases_of(state, effect.key)](const std::atomic<bool>& cancel) {
        core::Done done{.op = effect.op, .key = effect.key};
        auto result =
            host::resize_pool(machine_.root, effect.key, effect.target, effect.compact, cancel, effect.to_surplus);
        if (result) {
            done.reading.pool = result->reading;
            done.note = std::move(result->note);
        } else {
            done.error = result.error();
            done.reading = observer_.read(effect.key);  // reads files only: nothing of the loop's
        }
        auto all = fields;
        all.insert(all.begin(), {{"KNOB", effect.key.text()},
                                 {"WANTED", std::to_string(effect.target)},
                                 {"NEW", done.reading.pool ? std::to_string(done.reading.pool->persistent()) : ""},
                                 {"REASON", done.error ? done.error->detail : done.note}});
        log::event(done.error ? log::Level::warning : log::Level::info, log::kKnob,
                   done.error ? "a pool refuses" : "a pool changed", all);
        return done;
    });
}

void Effects::operator()(const core::CancelResize& effect, const core::State& /*state*/) const {
    workers_.cancel(effect.key);
}

void Effects::operator()(const core::DropPageCache& effect, const core::State& /*state*/) const {
    workers_.run({.knob = model::Knob::drop_caches}, [effect, this](const std::atomic<bool>& /*cancel*/) {
        core::Done done{.op = effect.op};
        if (const auto cache = host::drop_page_cache(machine_.root))
            done.note =
                "page cache dropped: " + model::bytes_text(cache->before - std::min(cache->before, cache->after)) +
                " freed of " + model::bytes_text(cache->before) + "; " + model::bytes_text(cache->after) +
                " stays; mapped by processes: " + model::bytes_text(cache->mapped) +
                ", shared memory: " + model::bytes_text(cache->shared);
        else
            done.error = cache.error();
        return done;
    });
}

void Effects::operator()(const core::ReclaimNode& effect, const core::State& /*state*/) const {
    workers_.run({.knob = model::Knob::reclaim, .node = effect.node}, [effect, this](const std::atomic<bool>&) {
        core::Done done{.op = effect.op};
        if (const auto freed = host::reclaim_node(machine_.root, effect.node, effect.bytes))
            done.note = "node " + std::to_string(effect.node) + ": " + model::bytes_text(*freed) + " reclaimed";
        else
            done.error = freed.error();
        return done;
    });
}

void Effects::operator()(const core::InspectUnit& effect, const core::State& state) const {
    confiner_.inspect(effect.op, state.leases.at(effect.lease));
}

void Effects::operator()(const core::Confine& effect, const core::State& state) const {
    confiner_.confine(effect.op, state.leases.at(effect.lease), effect.process);
}

void Effects::operator()(const core::Unconfine& effect, const core::State& state) const {
    confiner_.unconfine(effect.op, state.leases.at(effect.lease), observer_.topology());
}

void Effects::operator()(const core::AskUnit& effect, const core::State& state) const {
    confiner_.ask_unit(effect.op, state.leases.at(effect.lease));
}

void Effects::operator()(const core::Warn& effect, const core::State& state) const {
    const auto& lease = state.leases.at(effect.lease);
    const auto text = "lease " + effect.lease + " ends in " + model::duration_text(effect.left) +
                      "; for more time: numa-leasectl extend " + effect.lease + " 1h";
    // Whoever has no terminal, or wants no messages there, reads it in the log.
    (void)host::write_to_one_of(machine_.proc, lease.holders, "\r\n\aYour " + text + "\r\n");
    log::event(
        log::Level::warning, log::kWarned, text,
        {{"LEASE", effect.lease}, {"LEASE_UID", std::to_string(lease.caller.uid)}, {"COMMAND", lease.request.command}});
}

void Effects::operator()(const core::Kill& effect, const core::State& state) const {
    holders_.kill(state.leases.at(effect.lease), effect.signal);
}

}  // namespace numalease::service
