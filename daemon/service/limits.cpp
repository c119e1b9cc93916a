#include "service/limits.hpp"

#include "service/daemon.hpp"

namespace numalease::service {

namespace {

/// By name, else by number, which is all there is of an account that no database knows.
const model::Limits* said_of_user(const policies::SiteConfig& config, unsigned uid, const AccountFacts& facts) {
    if (config.users.empty()) return nullptr;
    auto found = config.users.find(facts.name());
    if (found == config.users.end()) found = config.users.find(std::to_string(uid));
    return found == config.users.end() ? nullptr : &found->second;
}

}  // namespace

model::Limits limits_of(const policies::SiteConfig& config, unsigned uid, const AccountFacts& facts) {
    model::Limits out{.weight = 0};
    if (const auto* own = said_of_user(config, uid, facts); own != nullptr) out = *own;
    if (uid == 0) {
        model::fill(out, {});
    } else {
        model::Limits of_groups{.weight = 0};
        for (const auto& [group, limits] : config.groups)
            if (facts.is_in(group)) model::widen(of_groups, limits);
        model::fill(out, of_groups);
        model::fill(out, config.limits);
    }
    if (out.time == model::kNever) out.time.reset();
    return out;
}

const model::Limits& LimitTable::of(unsigned uid) {
    return limits_.get(uid, now().boot, [&] {
        return limits_of(site_.config, uid,
                         {.name = [&] { return accounts_.user_name(uid); },
                          .is_in = [&](const std::string& group) { return accounts_.is_member(uid, group); }});
    });
}

}  // namespace numalease::service
