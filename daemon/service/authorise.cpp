#include "service/authorise.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include "model/levers.hpp"

namespace numalease::service {

namespace {

using model::Errc;
using model::fail;
using model::Request;
using model::Result;

constexpr std::array<std::string_view, 5> kActions{"acquire", "acquire-kernel-state", "shield", "drop-caches",
                                                   "manage"};

/// Of the group, by our rule for polkit as without one. The rest is an administrator's.
constexpr bool is_for_members(Action action) {
    return action == Action::acquire || action == Action::acquire_kernel_state || action == Action::shield;
}

std::string way_out(Action action, const std::string& user, const std::string& group) {
    if (is_for_members(action)) return "an administrator can run: usermod -aG " + group + ' ' + user;
    return "only root, or whom polkit allows " + action_id(action);
}

/// (sa{sv}): on a broker polkit looks the name up itself; on the socket we name the process the kernel named to us.
int append_subject(sd_bus_message* ask, sd_bus_message* call, const model::Caller& caller) {
    const char* sender = sd_bus_message_get_sender(call);
    if (sender != nullptr) return sd_bus_message_append(ask, "(sa{sv})", "system-bus-name", 1, "name", "s", sender);
    return sd_bus_message_append(ask, "(sa{sv})", "unix-process", 3, "pid", "u",
                                 static_cast<unsigned>(caller.process.pid), "start-time", "t",
                                 caller.process.start_time, "uid", "i", static_cast<int>(caller.uid));
}

/// Nobody has the name. A polkit that does not answer is not absent: silence must not open the other way in.
bool is_absent(const model::Error& error) { return error.code == Errc::no_daemon && error.err != ETIMEDOUT; }

}  // namespace

std::string action_id(Action action) {
    return "org.numalease1." + std::string(kActions.at(static_cast<std::size_t>(action)));
}

std::vector<Action> actions_of(const Request& request) {
    std::vector<Action> out{Action::acquire};
    // Two of the levers have an action of their own.
    const bool drops = request.page_cache == model::PageCache::drop;
    const auto is_of_kernel_state = [&](const model::KernelLever& lever) {
        return lever.field != "shield" && !(drops && lever.field == "page-cache") && lever.pulled(request);
    };
    if (std::ranges::any_of(model::kernel_levers(), is_of_kernel_state)) out.push_back(Action::acquire_kernel_state);
    if (drops) out.push_back(Action::drop_caches);
    // Its slice is the system's: units and containers of others will run in it.
    if (!request.name.empty()) out.push_back(Action::manage);
    if (request.shield) out.push_back(Action::shield);
    return out;
}

Result<void> decide_without_polkit(Action action, unsigned uid, bool in_group, const std::string& user,
                                   const std::string& group) {
    if (uid == 0) return {};
    if (in_group && is_for_members(action)) return {};
    return fail(Errc::denied, user + " is not allowed " + action_id(action) + "; " + way_out(action, user, group));
}

void Authoriser::check(const Held& call, const model::Caller& caller, std::vector<Action> actions,
                       const std::string& group, const Verdict& verdict) {
    if (caller.uid == 0) return verdict({});
    ask(call, caller, std::make_shared<std::vector<Action>>(actions.rbegin(), actions.rend()), group, verdict);
}

void Authoriser::ask(const Held& call, const model::Caller& caller, const std::shared_ptr<std::vector<Action>>& rest,
                     const std::string& group, const Verdict& verdict) {
    if (rest->empty()) return verdict({});
    const Action action = rest->back();
    rest->pop_back();
    const auto by_group = [=, this] {
        auto decided = decide_without_polkit(action, caller.uid, accounts_.is_member(caller.uid, group),
                                             accounts_.user_name(caller.uid), group);
        if (!decided) return verdict(decided);
        ask(call, caller, rest, group, verdict);
    };
    if (bus_ == nullptr) return by_group();
    sd_bus_message* raw = nullptr;
    int made = sd_bus_message_new_method_call(bus_, &raw, "org.freedesktop.PolicyKit1",
                                              "/org/freedesktop/PolicyKit1/Authority",
                                              "org.freedesktop.PolicyKit1.Authority", "CheckAuthorization");
    bus::Message question(raw);
    const unsigned interaction = sd_bus_message_get_allow_interactive_authorization(call.get()) > 0 ? 1 : 0;
    if (made >= 0) made = append_subject(raw, call.get(), caller);
    if (made >= 0) made = sd_bus_message_append(raw, "sa{ss}us", action_id(action).c_str(), 0, interaction, "");
    if (made < 0) return verdict(fail(Errc::internal, "cannot ask polkit about " + action_id(action), -made));
    constexpr std::uint64_t kTimeForAPassword = 120'000'000;
    later_.call(bus_, std::move(question), kTimeForAPassword, [=, this](Result<sd_bus_message*> reply) {
        if (!reply && is_absent(reply.error())) return by_group();
        int allowed = 0;
        int challenge = 0;
        if (!reply)
            return verdict(
                fail(Errc::denied, "polkit could not decide " + action_id(action) + ": " + reply.error().detail));
        if (sd_bus_message_enter_container(*reply, 'r', "bba{ss}") >= 0)
            sd_bus_message_read(*reply, "bb", &allowed, &challenge);
        if (allowed != 0) return ask(call, caller, rest, group, verdict);
        const auto user = accounts_.user_name(caller.uid);
        verdict(fail(Errc::denied, "polkit does not allow " + user + ' ' + action_id(action) +
                                       (challenge != 0 ? " without a password" : "") + "; " +
                                       way_out(action, user, group)));
    });
}

}  // namespace numalease::service
