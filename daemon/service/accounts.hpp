#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "service/recent.hpp"

namespace numalease::service {

/// The groups of an account by the account databases (not the process's own groups, which a caller cannot prove over a
/// bus). None where there is no such account.  Source: getgrouplist(3).
std::vector<gid_t> groups_of(unsigned uid);
std::optional<gid_t> group_id(const std::string& group);
/// Login name, or the number where there is none.
std::string user_name(unsigned uid);

/// The same, asked once in 30 s for each account: a directory service may take its time, and the event loop waits.
class Accounts {
public:
    bool is_member(unsigned uid, const std::string& group);
    std::string user_name(unsigned uid);

private:
    static constexpr model::Micros kKeep{30'000'000};
    Recent<unsigned, std::vector<gid_t>> groups_{kKeep};
    Recent<std::string, std::optional<gid_t>> ids_{kKeep};
    Recent<unsigned, std::string> names_{kKeep};
};

}  // namespace numalease::service
