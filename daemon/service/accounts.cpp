#include "service/accounts.hpp"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "service/daemon.hpp"

namespace numalease::service {

namespace {

constexpr std::size_t kAccountBuffer = 16384;
constexpr std::size_t kMostGroupBuffer = 4U << 20U;

}  // namespace

bool is_member(unsigned uid, const std::string& group) {
    std::vector<char> buffer(kAccountBuffer);
    passwd account{};
    passwd* found = nullptr;
    if (getpwuid_r(uid, &account, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return false;
    std::vector<char> group_buffer(kAccountBuffer);
    ::group entry{};
    ::group* wanted = nullptr;
    const auto look = [&] {
        return getgrnam_r(group.c_str(), &entry, group_buffer.data(), group_buffer.size(), &wanted);
    };
    int got = look();
    for (; got == ERANGE && group_buffer.size() < kMostGroupBuffer; got = look())  // its members are all named there
        group_buffer.resize(group_buffer.size() * 2);
    if (got != 0 || wanted == nullptr) return false;
    int count = 64;
    std::vector<gid_t> groups(static_cast<std::size_t>(count));
    while (getgrouplist(account.pw_name, account.pw_gid, groups.data(), &count) < 0)
        groups.resize(static_cast<std::size_t>(count));
    groups.resize(static_cast<std::size_t>(count));
    return std::ranges::find(groups, entry.gr_gid) != groups.end();
}

std::string user_name(unsigned uid) {
    std::vector<char> buffer(kAccountBuffer);
    passwd account{};
    passwd* found = nullptr;
    if (getpwuid_r(uid, &account, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
        return std::to_string(uid);
    return account.pw_name;
}

bool Accounts::is_member(unsigned uid, const std::string& group) {
    return members_.get({uid, group}, now().boot, [&] { return service::is_member(uid, group); });
}

std::string Accounts::user_name(unsigned uid) {
    return names_.get(uid, now().boot, [&] { return service::user_name(uid); });
}

}  // namespace numalease::service
