#include "service/runtime_directory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace numalease::service {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;

Result<void> refuse(const std::string& path, const std::string& why) {
    return fail(Errc::denied, "--runtime-dir: " + path + ' ' + why +
                                  ", and the journal there decides what is written to the kernel; say one that only "
                                  "root may write, such as /run/numa-lease");
}

}  // namespace

Result<void> check_runtime_directory(const std::string& path) {
    struct stat link{};
    struct stat facts{};
    if (lstat(path.c_str(), &link) != 0 || stat(path.c_str(), &facts) != 0) {
        if (errno == ENOENT) return {};
        return fail(Errc::io, "--runtime-dir: " + path + ": " + std::strerror(errno), errno);
    }
    if (!S_ISDIR(facts.st_mode))
        return fail(Errc::io, "--runtime-dir: " + path + " is no directory; say another", ENOTDIR);
    for (const auto uid : {link.st_uid, facts.st_uid})  // who owns a symbolic link says where it leads
        if (uid != 0 && uid != geteuid()) return refuse(path, "belongs to uid " + std::to_string(uid));
    if ((facts.st_mode & kOthersMayWrite) != 0) return refuse(path, "can be written by others than its owner");
    return {};
}

}  // namespace numalease::service
