#pragma once

#include <functional>
#include <string>

#include "model/limits.hpp"
#include "service/accounts.hpp"
#include "service/site.hpp"

namespace numalease::service {

/// What the account databases say of a user, asked only where the configuration names accounts.
struct AccountFacts {
    std::function<std::string()> name;
    std::function<bool(const std::string& group)> is_in;
};

/// What a user may have, field by field: what is said of the user, else the most generous of what is said of the user's
/// groups, else what is said of everybody. Root is bounded by what is said of root alone.
model::Limits limits_of(const policies::SiteConfig& config, unsigned uid, const AccountFacts& facts);

/// The same for this site, looked up once in 30 s for each user.
class LimitTable {
public:
    LimitTable(const Site& site, Accounts& accounts) : site_(site), accounts_(accounts) {}

    /// Good until the next call.
    const model::Limits& of(unsigned uid);
    /// The configuration is another one.
    void forget() { limits_.clear(); }

private:
    const Site& site_;
    Accounts& accounts_;
    Recent<unsigned, model::Limits> limits_{model::Micros(30'000'000)};
};

}  // namespace numalease::service
