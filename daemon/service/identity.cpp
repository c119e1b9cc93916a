#include "service/identity.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace numalease::service {

namespace {

using model::Errc;
using model::fail;
using model::Result;

bool is_inside(const std::string& cgroup, const std::string& outer) {
    if (outer.empty() || outer == "/" || !cgroup.starts_with(outer)) return false;
    return cgroup.size() == outer.size() || cgroup[outer.size()] == '/';
}

host::UniqueFd duplicate(const host::UniqueFd& fd) { return host::UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)); }

int read_entry(sd_bus_message* reply, std::string_view key, Credentials& out, bool& has_uid) {
    const char* type = nullptr;
    int got = sd_bus_message_peek_type(reply, nullptr, &type);
    if (got < 0) return got;
    const std::string_view signature = type;
    std::uint32_t number = 0;
    int fd = -1;
    if (key == "ProcessID" && signature == "u") {
        got = sd_bus_message_read(reply, "v", "u", &number);
        out.pid = static_cast<int>(number);
    } else if (key == "UnixUserID" && signature == "u") {
        got = sd_bus_message_read(reply, "v", "u", &number);
        out.uid = number;
        has_uid = got > 0;
    } else if (key == "ProcessFD" && signature == "h") {
        got = sd_bus_message_read(reply, "v", "h", &fd);
        if (got > 0) out.pidfd = host::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 3));  // the message owns its own
    } else {
        got = sd_bus_message_skip(reply, "v");
    }
    return got;
}

}  // namespace

Result<Peer> read_peer(int socket) {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
        return fail(Errc::denied, "the kernel does not say who connected", errno);
    Peer peer{.pid = credentials.pid, .uid = credentials.uid, .pidfd = {}};
    int pidfd = -1;
    size = sizeof pidfd;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) {
        peer.pidfd = host::UniqueFd(pidfd);
        return peer;
    }
    auto opened = host::open_pidfd(peer.pid);
    if (!opened) return fail(Errc::denied, "whoever connected is gone already", opened.error().err);
    peer.pidfd = std::move(*opened);
    return peer;
}

Result<Credentials> read_credentials(sd_bus_message* reply) {
    Credentials out;
    bool has_uid = false;
    int got = sd_bus_message_enter_container(reply, 'a', "{sv}");
    while (got >= 0 && (got = sd_bus_message_enter_container(reply, 'e', "sv")) > 0) {
        const char* key = nullptr;
        got = sd_bus_message_read(reply, "s", &key);
        if (got >= 0) got = read_entry(reply, key, out, has_uid);
        if (got >= 0) got = sd_bus_message_exit_container(reply);
    }
    if (got < 0) return fail(Errc::denied, "the bus described the caller in a way that cannot be read", -got);
    if (out.pid <= 0 || !has_uid)
        return fail(Errc::denied,
                    "the bus does not say which process the caller is: it is gone, or not to be seen from here");
    return out;
}

model::LeaseId find_parent(const core::State& state, const std::string& cgroup,
                           const std::vector<model::Process>& ancestry) {
    const model::Lease* innermost = nullptr;
    for (const auto& [id, lease] : state.leases.begun()) {
        const auto& outer = lease.confinement.cgroup;
        if (lease.state != model::LeaseState::active || !is_inside(cgroup, outer)) continue;
        if (innermost == nullptr || outer.size() > innermost->confinement.cgroup.size()) innermost = &lease;
    }
    if (innermost != nullptr) return innermost->id;
    for (const auto& ancestor : ancestry)
        for (const auto& [id, lease] : state.leases.begun())
            if (lease.state == model::LeaseState::active &&
                std::ranges::find(lease.holders, ancestor) != lease.holders.end())
                return id;
    return {};
}

void Identifier::add_peer(sd_bus* connection, Peer peer) { peers_.insert_or_assign(connection, std::move(peer)); }

Result<std::shared_ptr<Identity>> Identifier::verify(int pid, unsigned uid, host::UniqueFd pidfd) const {
    auto caller = host::read_caller(machine_.proc, pid, pidfd.get(), uid);
    if (!caller) return std::unexpected(caller.error());
    if (!host::pidfd_alive(pidfd.get())) return fail(Errc::denied, "the caller is gone already", ESRCH);
    caller->invocation = host::read_invocation(machine_.root, caller->cgroup);
    caller->parent = find_parent(state_(), caller->cgroup, host::read_ancestry(machine_.proc, pid));
    return std::make_shared<Identity>(Identity{.caller = std::move(*caller), .pidfd = std::move(pidfd)});
}

void Identifier::identify(const Held& message, const Answer& answer) {
    sd_bus* connection = sd_bus_message_get_bus(message.get());
    if (const auto peer = peers_.find(connection); peer != peers_.end())
        return answer(verify(peer->second.pid, peer->second.uid, duplicate(peer->second.pidfd)));
    const char* sender = sd_bus_message_get_sender(message.get());
    if (sender == nullptr) return answer(fail(Errc::denied, "a message without a sender"));
    sd_bus_message* raw = nullptr;
    int made = sd_bus_message_new_method_call(connection, &raw, "org.freedesktop.DBus", "/org/freedesktop/DBus",
                                              "org.freedesktop.DBus", "GetConnectionCredentials");
    bus::Message question(raw);
    if (made >= 0) made = sd_bus_message_append(raw, "s", sender);
    if (made < 0) return answer(fail(Errc::internal, "cannot ask the bus who is calling", -made));
    later_.call(connection, std::move(question), 0, [this, answer](Result<sd_bus_message*> reply) {
        if (!reply) return answer(fail(Errc::denied, "the bus does not know the caller: " + reply.error().detail));
        auto credentials = read_credentials(*reply);
        if (!credentials) return answer(std::unexpected(credentials.error()));
        if (!credentials->pidfd) {
            auto opened = host::open_pidfd(credentials->pid);
            if (!opened) return answer(fail(Errc::denied, "the caller is gone already", opened.error().err));
            credentials->pidfd = std::move(*opened);
        }
        answer(verify(credentials->pid, credentials->uid, std::move(credentials->pidfd)));
    });
}

}  // namespace numalease::service
