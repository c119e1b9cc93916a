#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Dict;
using model::Lease;
using model::LeaseState;
using model::Record;
using model::Value;

namespace {

constexpr std::string_view kLease = "lease";
constexpr std::string_view kRow = "row";
constexpr std::string_view kCounter = "counter";
constexpr std::string_view kNextId = "next_id";
constexpr std::string_view kUsage = "usage";
constexpr std::string_view kQueue = "queue";
constexpr std::string_view kFirst = "first";

/// Of these leases what is kept: over is gone, and what blocks a queued one is derived anew.
std::map<model::LeaseId, Lease> durable_leases(const State& state, const std::vector<model::LeaseId>& ids) {
    std::map<model::LeaseId, Lease> out;
    for (const auto& id : ids) {
        const auto found = state.leases.find(id);
        if (found == state.leases.end() || model::is_over(found->second.state)) continue;
        auto& kept = out[id] = found->second;
        kept.in_the_way.clear();
    }
    return out;
}

/// Lists instead of keyed maps: a lease id never becomes part of a key.
Dict to_dict(const Row& row) {
    Value::Dicts wants;
    for (const auto& [id, value] : row.wants) wants.push_back({{"lease", id}, {"value", value}});
    Value::Dicts shares;
    for (const auto& [id, share] : row.shares)
        shares.push_back({{"lease", id},
                          {"asked", share.asked},
                          {"at_least", share.at_least},
                          {"got", share.got},
                          {"done", share.done},
                          {"releasing", share.releasing}});
    Dict out{{"prior", row.prior},
             {"wants", wants},
             {"shares", shares},
             {"pool_expected", row.pool_expected},
             {"pool_surplus", row.pool_surplus},
             {"taken_over", row.taken_over},
             {"pool_for", row.pool_for},
             {"settling", Value::Strings(row.settling.begin(), row.settling.end())}};
    if (row.written) out["written"] = *row.written;
    if (row.writing) out["writing"] = *row.writing;
    return out;
}

model::Result<Row> row_from(const std::string& key_text, const Dict& dict) {
    const auto key = model::KnobKey::parse(key_text);
    if (!key) return std::unexpected(key.error());
    Row row{.key = *key,
            .prior = get_text(dict, "prior"),
            .pool_expected = get_number(dict, "pool_expected"),
            .pool_surplus = get_number(dict, "pool_surplus"),
            .taken_over = get_number(dict, "taken_over"),
            .pool_for = get_text(dict, "pool_for")};
    if (dict.contains("written")) row.written = get_text(dict, "written");
    if (dict.contains("writing")) row.writing = get_text(dict, "writing");
    for (const auto& want : get_dicts(dict, "wants")) row.wants[get_text(want, "lease")] = get_text(want, "value");
    for (const auto& it : get_dicts(dict, "shares"))
        row.shares[get_text(it, "lease")] = {.asked = get_number(it, "asked"),
                                             .at_least = get_number(it, "at_least"),
                                             .got = get_number(it, "got"),
                                             .done = get_flag(it, "done"),
                                             .releasing = get_flag(it, "releasing")};
    for (const auto& id : get_strings(dict, "settling")) row.settling.insert(id);
    return row;
}

Record counter_record(const State& state) {
    return {.type = std::string(kCounter), .key = std::string(kNextId), .body = {{"value", state.next_id}}};
}

template <class Map, class Body>
void diff(std::vector<Record>& out, std::string_view type, const Map& from, const Map& to, auto&& key_text,
          Body&& body) {
    for (const auto& [key, value] : to) {
        const auto before = from.find(key);
        if (before != from.end() && before->second == value) continue;  // much cheaper than two texts
        auto after = body(value);
        if (before != from.end() && body(before->second) == after) continue;
        out.push_back({.type = std::string(type), .key = key_text(key), .body = std::move(after)});
    }
    for (const auto& [key, value] : from)
        if (!to.contains(key))
            out.push_back({.type = std::string(type), .key = key_text(key), .gone = true, .body = {}});
}

}  // namespace

std::vector<Record> changes(const State& from, const State& to) {
    std::vector<Record> out;
    if (from.next_id != to.next_id) out.push_back(counter_record(to));
    if (from.first != to.first)
        out.push_back({.type = std::string(kQueue),
                       .key = std::string(kFirst),
                       .gone = to.first.empty(),
                       .body = to.first.empty() ? Dict{} : Dict{{"lease", to.first}}});
    const auto leases = to.leases.changed_since(from.leases);
    diff(
        out, kLease, durable_leases(from, leases), durable_leases(to, leases), [](const auto& id) { return id; },
        [](const Lease& lease) { return model::journal_dict(lease); });
    diff(
        out, kRow, from.ledger, to.ledger, [](const auto& key) { return key.text(); },
        [](const Row& row) { return to_dict(row); });
    diff(
        out, kUsage, from.usage, to.usage, [](unsigned uid) { return std::to_string(uid); },
        [](const Usage& usage) {
            return Dict{{"node_seconds", static_cast<std::uint64_t>(std::llround(usage.node_seconds))},
                        {"at", static_cast<std::uint64_t>(usage.at.count())},
                        {"served", static_cast<std::uint64_t>(usage.served.count())}};
        });
    return out;
}

std::vector<Record> snapshot(const State& state) {
    auto out = changes(State{}, state);
    if (state.next_id == State{}.next_id) return out;
    if (out.empty() || out.front().type != kCounter) out.insert(out.begin(), counter_record(state));
    return out;
}

State replay(const std::vector<Record>& records, std::vector<std::string>& ignored) {
    State state;
    for (const auto& record : records) {
        const auto ignore = [&](const std::string& why) {
            ignored.push_back(record.type + ' ' + record.key + ": " + why);
        };
        if (record.type == kCounter && record.key == kNextId) {
            state.next_id = std::max(state.next_id, get_number(record.body, "value", 1));
        } else if (record.type == kQueue && record.key == kFirst) {
            state.first = record.gone ? "" : get_text(record.body, "lease");
        } else if (record.type == kUsage) {
            const auto uid = model::parse_unsigned(record.key, "uid", std::numeric_limits<unsigned>::max());
            if (!uid)
                ignore(uid.error().detail);
            else if (record.gone)
                state.usage.erase(static_cast<unsigned>(*uid));
            else
                state.usage[static_cast<unsigned>(*uid)] = {
                    .node_seconds = static_cast<double>(get_number(record.body, "node_seconds")),
                    .at = model::Micros(get_number(record.body, "at")),
                    .served = model::Micros(get_number(record.body, "served"))};
        } else if (record.type == kLease) {
            if (record.gone) {
                state.leases.erase(record.key);
            } else if (auto lease = model::lease_from_dict(record.body); lease && lease->id == record.key) {
                state.leases[record.key] = std::move(*lease);
            } else {
                ignore(lease ? "another id inside" : lease.error().detail);
            }
        } else if (record.type == kRow) {
            if (record.gone) {
                if (const auto key = model::KnobKey::parse(record.key)) state.ledger.erase(*key);
            } else if (auto row = row_from(record.key, record.body)) {
                state.ledger[row->key] = std::move(*row);
            } else {
                ignore(row.error().detail);
            }
        } else {
            ignore("a kind of record this version does not know");
        }
    }
    // The order of the queue is the order of the ids' numbers: they are given in turn.
    std::vector<std::pair<std::uint64_t, model::LeaseId>> queued;
    for (const auto& [id, lease] : state.leases) {
        std::uint64_t number = 0;
        std::from_chars(id.data() + 1, id.data() + id.size(), number);
        if (lease.state == LeaseState::queued) queued.emplace_back(number, id);
        state.next_id = std::max(state.next_id, number + 1);
    }
    std::ranges::sort(queued);
    for (auto& [number, id] : queued) state.queue.push_back(std::move(id));
    // A row of leases that no record explains would hold its knob for ever: it is put back like any other.
    for (auto& [key, row] : state.ledger) {
        std::erase_if(row.wants, [&](const auto& want) { return !state.leases.contains(want.first); });
        std::erase_if(row.settling, [&](const auto& id) { return !state.leases.contains(id); });
        for (auto& [id, share] : row.shares) share.releasing = share.releasing || !state.leases.contains(id);
    }
    return state;
}

namespace {

void check_overlap(std::vector<std::string>& out, const State& state) {
    for (auto a = state.leases.begin(); a != state.leases.end(); ++a) {
        if (!model::occupies(a->second.state)) continue;
        const auto& lease = a->second;
        const auto parent = state.leases.find(lease.caller.parent);
        if (parent != state.leases.end() && !parent->second.placement.cpus.covers(lease.placement.cpus))
            out.push_back(lease.id + " is not inside its parent " + parent->first);
        if (parent != state.leases.end() && !std::ranges::includes(model::gpu_addresses(parent->second.placement),
                                                                   model::gpu_addresses(lease.placement)))
            out.push_back(lease.id + " has a GPU that its parent " + parent->first + " has not");
        for (auto b = std::next(a); b != state.leases.end(); ++b) {
            const auto& other = b->second;
            if (!model::occupies(other.state) || other.caller.parent != lease.caller.parent) continue;
            const bool shared = lease.request.share && other.request.share;
            if (!shared && lease.placement.cpus.intersects(other.placement.cpus))
                out.push_back(lease.id + " and " + other.id + " share CPUs " +
                              (lease.placement.cpus & other.placement.cpus).text());
            const bool shares_gpus = lease.request.gpu_share > 1 && other.request.gpu_share > 1;
            for (const auto& gpu : model::gpu_addresses(lease.placement))
                if (!shares_gpus && model::gpu_addresses(other.placement).contains(gpu))
                    out.push_back(lease.id + " and " + other.id + " share GPU " + gpu);
        }
    }
}

void check_row(std::vector<std::string>& out, const State& state, const Row& row) {
    const auto bad = [&](const std::string& text) { out.push_back(row.key.text() + ": " + text); };
    for (const auto& [id, value] : row.wants) {
        if (value != row.wants.begin()->second) bad("holders disagree");
        const auto lease = state.leases.find(id);
        if (lease == state.leases.end() || !model::occupies(lease->second.state))
            bad("wanted by " + id + ", which is not held");
    }
    for (const auto& [id, share] : row.shares) {
        const auto lease = state.leases.find(id);
        const bool held = lease != state.leases.end() && model::occupies(lease->second.state);
        if (!held && !share.releasing) bad("pages of " + id + ", which is not held");
    }
    const bool pool = row.key.row().kind == model::KnobKind::pool;
    const auto is_weight = [](const auto& item) { return item.first.knob == model::Knob::weight; };
    const bool waits = row.key.knob == model::Knob::weight_auto && std::ranges::any_of(state.ledger, is_weight);
    if (!pool && row.wants.empty() && !row.in_flight && row.failures == 0 && !waits)
        bad("nobody wants it and nothing puts it back");
    if (pool && row.shares.empty() && !row.in_flight) bad("an empty pool row");
    if (row.in_flight && !row.writing) bad("a write in flight that was not recorded");
}

}  // namespace

std::vector<std::string> violations(const State& state, const Observed& observed) {
    std::vector<std::string> out;
    check_overlap(out, state);
    for (const auto& [key, row] : state.ledger) check_row(out, state, row);
    for (const auto& id : state.queue) {
        const auto lease = state.leases.find(id);
        if (lease == state.leases.end() || lease->second.state != LeaseState::queued)
            out.push_back(id + " is in the queue and not waiting");
    }
    for (const auto& [id, lease] : state.leases) {
        if (id != lease.id) out.push_back(id + " is filed under another id");
        if (lease.state == LeaseState::queued && std::ranges::count(state.queue, id) != 1)
            out.push_back(id + " waits outside the queue");
        if (lease.parked && (lease.state != LeaseState::active || !lease.holders.empty()))
            out.push_back(id + " is parked and " + (lease.holders.empty() ? "not active" : "held"));
        const auto same_name = [&](const auto& it) {
            return it.first != id && it.second.request.name == lease.request.name && model::occupies(it.second.state);
        };
        if (!lease.request.name.empty() && model::occupies(lease.state) && std::ranges::any_of(state.leases, same_name))
            out.push_back(id + " shares its name with another");
        if (model::occupies(lease.state) && !observed.topology.online.empty() && lease.placement.cpus.empty())
            out.push_back(id + " holds no CPUs");
    }
    std::map<unsigned, model::Bytes> promised;
    for (const auto& [id, lease] : state.leases)
        if (model::occupies(lease.state) && lease.caller.parent.empty())
            for (const auto& [node, bytes] : lease.placement.promise) promised[node] += bytes;
    for (const auto& [node, bytes] : promised)
        if (const auto* it = observed.topology.node(node); it != nullptr && bytes > it->total)
            out.push_back("node " + std::to_string(node) + " is promised more than it has");
    return out;
}

}  // namespace numalease::core
