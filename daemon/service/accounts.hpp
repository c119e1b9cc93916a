#pragma once

#include <string>
#include <utility>

#include "service/recent.hpp"

namespace numalease::service {

/// Is the account in the group, by the account databases (not by the process's own groups, which a caller cannot prove
/// over a bus).  Source: getgrouplist(3).
bool is_member(unsigned uid, const std::string& group);
/// Login name, or the number where there is none.
std::string user_name(unsigned uid);

/// The same, asked once in 30 s for each account: a directory service may take its time, and the event loop waits.
class Accounts {
public:
    bool is_member(unsigned uid, const std::string& group);
    std::string user_name(unsigned uid);

private:
    static constexpr model::Micros kKeep{30'000'000};
    Recent<std::pair<unsigned, std::string>, bool> members_{kKeep};
    Recent<unsigned, std::string> names_{kKeep};
};

}  // namespace numalease::service
