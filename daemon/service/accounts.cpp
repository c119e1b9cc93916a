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

std::optional<gid_t> group_id(const std::string& group) {
    std::vector<char> buffer(kAccountBuffer);
    ::group entry{};
    ::group* found = nullptr;
    const auto look = [&] { return getgrnam_r(group.c_str(), &entry, buffer.data(), buffer.size(), &found); };
    int got = look();
    for (; got == ERANGE && buffer.size() < kMostGroupBuffer; got = look())  // its members are all named there
        buffer.resize(buffer.size() * 2);
    if (got != 0 || found == nullptr) return std::nullopt;
    return entry.gr_gid;
}

std::vector<gid_t> groups_of(unsigned uid) {
    std::vector<char> buffer(kAccountBuffer);
    passwd account{};
    passwd* found = nullptr;
    if (getpwuid_r(uid, &account, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return {};
    int count = 64;
    std::vector<gid_t> groups(static_cast<std::size_t>(count));
    while (getgrouplist(account.pw_name, account.pw_gid, groups.data(), &count) < 0)
        groups.resize(static_cast<std::size_t>(count));
    groups.resize(static_cast<std::size_t>(count));
    return groups;
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
    const auto id = ids_.get(group, now().boot, [&] { return group_id(group); });
    const auto& groups = groups_.get(uid, now().boot, [&] { return groups_of(uid); });
    return id && std::ranges::find(groups, *id) != groups.end();
}

std::string Accounts::user_name(unsigned uid) {
    return names_.get(uid, now().boot, [&] { return service::user_name(uid); });
}

}  // namespace numalease::service
