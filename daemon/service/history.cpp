#include "service/history.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/schedule.hpp"
#include "host/history.hpp"
#include "service/log.hpp"

namespace numalease::service {

namespace {

constexpr std::size_t kMostText = 256;
constexpr std::array kNumbers{"uid",      "cores",    "queued_usec",   "started_usec", "ended_usec",  "waited_usec",
                              "ran_usec", "cpu_usec", "busy_permille", "oom_kills",    "node_seconds"};

std::uint64_t number(model::Micros time) { return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0)); }

/// At the end of a character, so that it stays UTF-8.
std::string cut(const std::string& text) {
    if (text.size() <= kMostText) return text;
    auto end = kMostText;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80) --end;
    return text.substr(0, end) + "…";
}

/// A line has texts only.
model::Dict typed(model::Dict entry) {
    for (const auto* name : kNumbers)
        if (entry.contains(name)) entry[name] = get_number(entry, name);
    if (entry.contains("at_least")) entry["at_least"] = get_flag(entry, "at_least");
    return entry;
}

}  // namespace

model::Dict history_entry(const model::Lease& lease, const std::string& boot, const model::Dict& use, double nodes) {
    const auto& request = lease.request;
    const bool ran = lease.started.boot.count() != 0;
    model::Dict out{{"id", lease.id},
                    {"boot", boot},
                    {"uid", lease.caller.uid},
                    {"command", cut(request.command.empty() ? lease.caller.command : request.command)},
                    {"class", cut(request.job_class)},
                    {"cores", lease.placement.cores},
                    {"nodes", cut(lease.placement.nodes.text())},
                    {"state", model::text_of(lease.state)},
                    {"reason", cut(lease.reason)},
                    {"queued_usec", number(lease.queued.real)},
                    {"ended_usec", number(lease.ended.real)},
                    {"waited_usec", number((ran ? lease.started : lease.ended).boot - lease.queued.boot)}};
    if (!request.name.empty()) out["name"] = request.name;
    if (!request.policy.empty()) out["policy"] = cut(request.policy);
    if (ran) {
        const auto time = lease.ended.boot - lease.started.boot;
        out["ran_usec"] = number(time);
        if (lease.caller.parent.empty())
            out["node_seconds"] = number(model::Micros(std::llround(nodes * static_cast<double>(time.count()) / 1e6)));
    }
    if (lease.oom_kills > 0) out["oom_kills"] = lease.oom_kills;
    for (const auto* name : {"cpu_usec", "busy_permille", "at_least"})
        if (const auto found = use.find(name); found != use.end()) out[name] = found->second;
    return out;
}

History::History(std::string directory, std::string boot, Background* background, NodesOf nodes_of)
    : directory_(std::move(directory)),
      boot_(std::move(boot)),
      background_(background),
      nodes_of_(std::move(nodes_of)),
      lines_(host::read_history(directory_)) {}

void History::changed(const core::State& before, const core::State& after, Uses& uses) {
    for (const auto& id : after.leases.changed_since(before.leases)) {
        const auto* was = before.leases.get(id);
        const auto* lease = after.leases.get(id);
        if (was == nullptr || lease == nullptr || model::is_over(was->state) || !model::is_over(lease->state)) continue;
        auto line = host::history_line({.type = "lease",
                                        .key = id,
                                        .body = history_entry(*lease, boot_, uses.dict_of(*lease), nodes_of_(*lease))});
        lines_.push_back(line);
        if (lines_.size() > host::kHistoryLines) lines_.pop_front();
        if (background_ == nullptr) continue;
        const bool posted =
            background_->post([line = std::move(line), directory = directory_, failed = failed_]() -> Background::Then {
                const auto written = host::append_history(directory, line);
                if (!written && !*failed)
                    log::event(log::Level::warning, log::kDegraded,
                               "the history of leases is not kept; leases are not affected",
                               {{"REASON", written.error().detail}});
                *failed = !written;
                return {};
            });
        if (!posted)
            log::event(log::Level::warning, log::kDegraded, "a lease is missing in the history: its disk is too slow",
                       {{"LEASE", id}});
    }
}

model::Value::Dicts History::newest(std::size_t most) const {
    model::Value::Dicts out;
    for (auto line = lines_.rbegin(); line != lines_.rend() && out.size() < most; ++line)
        if (auto record = host::parse_history_line(*line)) out.push_back(typed(std::move(record->body)));
    return out;
}

std::map<unsigned, core::Usage> History::usage(model::Instant now, model::Micros half_life) const {
    std::map<unsigned, core::Usage> out;
    for (const auto& line : lines_) {
        const auto record = host::parse_history_line(line);
        if (!record || !record->body.contains("node_seconds")) continue;
        const auto time = [&body = record->body](const char* name) {
            constexpr std::uint64_t kMost = INT64_MAX / 2;
            return model::Micros(static_cast<std::int64_t>(std::min(get_number(body, name), kMost)));
        };
        const auto uid = get_number(record->body, "uid");
        if (uid > UINT32_MAX) continue;
        auto& it = out[static_cast<unsigned>(uid)];
        it.at = now.boot;
        it.node_seconds += core::remembered(static_cast<double>(get_number(record->body, "node_seconds")),
                                            time("ran_usec"), now.real - time("ended_usec"), half_life);
    }
    return out;
}

}  // namespace numalease::service
