#include "service/handed_over.hpp"

#include <systemd/sd-daemon.h>

#include <cstdlib>

namespace numalease::service {

namespace {

constexpr std::string_view kHolder = "holder-";

}  // namespace

std::string stored_name(const model::Process& process) {
    return std::string(kHolder) + std::to_string(process.pid) + '-' + std::to_string(process.start_time);
}

HandedOver take_handed_over() {
    HandedOver out;
    char** names = nullptr;
    const int count = sd_listen_fds_with_names(1, &names);
    for (int i = 0; i < count; ++i) {
        host::UniqueFd fd(SD_LISTEN_FDS_START + i);
        const std::string name = names[i];
        free(names[i]);
        if (name.starts_with(kHolder))
            out.holders[name] = std::move(fd);
        else if (!out.socket && sd_is_socket(fd.get(), AF_UNIX, SOCK_STREAM, 1) > 0)
            out.socket = std::move(fd);
        else
            unstore(name);
    }
    free(names);
    return out;
}

void store(const model::Process& process, int pidfd) {
    const auto text = "FDSTORE=1\nFDPOLL=0\nFDNAME=" + stored_name(process);
    sd_pid_notify_with_fds(0, 0, text.c_str(), &pidfd, 1);
}

void unstore(const std::string& name) {
    const auto text = "FDSTOREREMOVE=1\nFDNAME=" + name;
    sd_notify(0, text.c_str());
}

}  // namespace numalease::service
