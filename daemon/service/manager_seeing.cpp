#include <algorithm>

#include "host/process.hpp"
#include "host/terminal.hpp"
#include "service/log.hpp"
#include "service/manager.hpp"
#include "service/reply.hpp"

// Seeing what others do: how busy a lease is, leases that are over, who is in the way without one, and asking.

namespace numalease::service {

using model::Errc;
using model::fail;
using model::Lease;
using model::Result;

namespace {

constexpr std::uint32_t kMostHistory = 1000;
constexpr std::size_t kMostAsked = 500;
constexpr model::Micros kAskEvery{10'000'000};
constexpr std::size_t kEstimated = 16;  ///< of those who wait: when, and not only which number

}  // namespace

/// For a terminal that somebody else works at: nothing may move its cursor or turn its text around.
Result<void> check_asked(std::string_view text) {
    const auto bad = [](const char* what) { return fail(Errc::invalid_request, std::string("text: ") + what); };
    if (text.empty()) return bad("is empty");
    std::size_t characters = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto at = [&](std::size_t more) {
            return i + more < text.size() ? static_cast<unsigned char>(text[i + more]) : 0U;
        };
        if (at(0) < 0x20 || at(0) == 0x7f || (at(0) == 0xc2 && at(1) < 0xa0))
            return bad("one line without control characters is expected");
        // U+200E/F, U+2028–E and U+2066–9.
        if (at(0) == 0xe2 && ((at(1) == 0x80 && (at(2) == 0x8e || at(2) == 0x8f || (at(2) >= 0xa8 && at(2) <= 0xae))) ||
                              (at(1) == 0x81 && at(2) >= 0xa6 && at(2) <= 0xa9)))
            return bad("turns lines or the reading direction around");
        if ((at(0) & 0xc0U) != 0x80) ++characters;
    }
    if (characters > kMostAsked) return bad("longer than 500 characters");
    return {};
}

/// Of all who wait, by id. Worked out once for everybody who asks between two steps, and anew after a second.
const std::map<model::LeaseId, core::Forecast>& Manager::forecasts() {
    return forecasts_.get({}, now().boot, [this] {
        const auto& state = parts_.state();
        const auto at = now();
        const auto observed = parts_.observer->observe(state, core::Tick{}, parts_.about().systemd);
        std::map<model::LeaseId, core::Forecast> out;
        for (auto& it : core::forecast(state, observed, at, kEstimated)) out[it.lease] = std::move(it);
        std::size_t position = 0;
        for (const auto& id : core::order_of(state, observed, at.boot)) {
            position += 1;
            out.try_emplace(id, core::Forecast{.lease = id, .position = position, .start = {}, .text = {}});
        }
        return out;
    });
}

model::Dict Manager::dict_of(const Lease& lease) {
    auto out = to_dict(lease);
    if (auto use = parts_.uses->dict_of(lease); !use.empty()) out["use"] = std::move(use);
    if (lease.expires) {
        const auto left = std::max(*lease.expires - now().boot, model::Micros(0));
        out["left_usec"] = static_cast<std::uint64_t>(left.count());
    }
    if (lease.state == model::LeaseState::queued) {
        const auto& all = forecasts();
        if (const auto turn = all.find(lease.id); turn != all.end()) {
            out["position"] = static_cast<std::uint64_t>(turn->second.position);
            if (!turn->second.text.empty()) out["estimate"] = turn->second.text;
        }
    }
    if (parts_.squatters != nullptr)
        if (const auto note = parts_.squatters->note_of(lease.id); !note.empty()) {
            auto notes = lease.notes;
            notes.push_back("when it was granted: " + note);
            out["notes"] = std::move(notes);
        }
    return out;
}

/// What everybody wants to see, also beside thousands that wait.
void Manager::list_current(const Held& call) {
    std::uint32_t most = 0;
    if (sd_bus_message_read(call.get(), "u", &most) < 0)
        return reply_error(call, {Errc::invalid_request, "how many of those that wait is expected"});
    const auto& leases = parts_.state().leases;
    std::vector<const Lease*> shown;
    for (const auto& [id, lease] : leases.begun())
        if (!model::is_over(lease.state) && lease.state != model::LeaseState::queued) shown.push_back(&lease);
    std::ranges::sort(shown, {}, [](const Lease* it) { return it->queued.boot; });
    std::vector<std::pair<std::size_t, const Lease*>> waiting;
    const auto& turns = forecasts();
    for (const auto& id : parts_.state().queue) {
        const auto turn = turns.find(id);  // one inside another's lease has none: it waits for that one's room alone
        waiting.emplace_back(turn == turns.end() ? 0 : turn->second.position, &leases.at(id));
    }
    std::ranges::sort(waiting, {}, [](const auto& it) { return it.first; });
    if (waiting.size() > most) waiting.resize(most);
    for (const auto& [turn, lease] : waiting) shown.push_back(lease);
    model::Value::Dicts out;
    for (const auto* lease : shown) out.push_back(dict_of(*lease));
    reply_dicts(call, out);
}

/// By who holds it, who knows when its engine is ready.
void Manager::verify(const Held& call) {
    constexpr model::Micros kAgainAfter{1'000'000};
    const auto id = read_id(call);
    if (!id) return reply_error(call, id.error());
    as_owner(call, *id, [=, this](const std::shared_ptr<Identity>& /*who*/) {
        const auto lease = find_lease(*id);
        if (!lease) return reply_error(call, lease.error());
        if (const auto& last = (*lease)->verified; now().real - last.at < kAgainAfter && now().real >= last.at)
            return reply_dict(call, to_dict(last));
        core::Verified input{.lease = *id, .charged = {}, .unknown = "it has no cgroup of its own"};
        if (const auto cgroup = counting_cgroup(**lease, *parts_.machine); !cgroup.empty()) {
            auto charged = host::read_charged(parts_.machine->root, parts_.machine->cgroup2, cgroup);
            input.unknown = charged ? "" : charged.error().detail;
            if (charged) input.charged = std::move(*charged);
        }
        const auto outcome = parts_.daemon->handle(std::move(input));
        if (outcome.refusal) return reply_error(call, *outcome.refusal);
        const auto after = find_lease(*id);
        after ? reply_dict(call, to_dict((*after)->verified)) : reply_error(call, after.error());
    });
}

void Manager::history(const Held& call) {
    std::uint32_t most = 0;
    if (sd_bus_message_read(call.get(), "u", &most) < 0)
        return reply_error(call, {Errc::invalid_request, "how many leases is expected"});
    reply_dicts(call, parts_.history->newest(std::min(most, kMostHistory)));
}

void Manager::get_squatters(const Held& call) {
    parts_.squatters->ask([call, busy = token_](const model::Value::Dicts& found) { reply_dicts(call, found); });
}

void Manager::ask(const Held& call) {
    const auto id = read_id(call);
    if (!id) return reply_error(call, id.error());
    const char* raw = nullptr;
    if (sd_bus_message_read(call.get(), "s", &raw) < 0)
        return reply_error(call, {Errc::invalid_request, "a text is expected"});
    const std::string text = raw;
    if (auto checked = check_asked(text); !checked) return reply_error(call, checked.error());
    identified(call, [=, this](const std::shared_ptr<Identity>& who) {
        authorised(call, who, {Action::acquire}, [=, this] { pass_on(call, *id, text, who->caller.uid); });
    });
}

void Manager::pass_on(const Held& call, const model::LeaseId& id, const std::string& text, unsigned uid) {
    const auto lease = find_lease(id);
    if (!lease) return reply_error(call, lease.error());
    if (model::is_over((*lease)->state)) return reply_error(call, {Errc::not_now, id + " is over: nobody holds it"});
    const auto at = now().boot;
    std::erase_if(asked_, [&](const auto& item) { return at - item.second >= kAskEvery; });
    if (!asked_.emplace(uid, at).second)
        return reply_error(call, {Errc::quota, "one message in 10 s; wait a little and ask again"});
    const auto from = parts_.accounts->user_name(uid);
    log::event(log::Level::info, log::kAsked, from + " asks about lease " + id + ": " + text,
               {{"LEASE", id},
                {"UID", std::to_string((*lease)->caller.uid)},
                {"ASKED_BY", from},
                {"ASKED_BY_UID", std::to_string(uid)}});
    model::Value::Strings through{std::string(log::destination())};
    const auto line =
        "\r\n\aMessage from " + from + " about your lease " + id + " (numa-leasectl ask): " + text + "\r\n";
    const auto written = host::write_to_one_of(parts_.machine->proc, (*lease)->holders, line);
    if (written) through.push_back("terminal " + *written);
    model::Dict out{{"lease", id}, {"through", through}};
    if (!written) out["no_terminal"] = written.error().detail;
    reply_dict(call, out);
}

}  // namespace numalease::service
