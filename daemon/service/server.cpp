#include "service/server.hpp"

#include <grp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-id128.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "service/authorise.hpp"

namespace numalease::service {

using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::size_t kMaxConnections = 512;
constexpr std::ptrdiff_t kMaxConnectionsPerUser = 16;
constexpr int kBacklog = 64;
constexpr std::uint64_t kAcceptAgain = 1'000'000;

Result<host::UniqueFd> bind_socket(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return fail(Errc::io, "--socket: '" + path + "' is too long a path");
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    host::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail(Errc::io, "no socket to be had", errno);
    // --read-only takes no lock: the socket may be that of a living daemon.
    const host::UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN)
        return fail(Errc::already_running, "somebody serves " + path + " already; say another --socket");
    unlink(path.c_str());  // left by a dead daemon
    const auto before = umask(0177);
    const int bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    const int bind_errno = errno;
    umask(before);
    if (bound < 0 || ::listen(fd.get(), kBacklog) < 0)
        return fail(Errc::io, "cannot listen on " + path + ": " + std::strerror(bound < 0 ? bind_errno : errno),
                    bound < 0 ? bind_errno : errno);
    return fd;
}

void open_to_group(const std::string& path, const std::string& name) {
    const auto* group = name.empty() ? nullptr : getgrnam(name.c_str());
    if (group == nullptr) return;
    if (chown(path.c_str(), static_cast<uid_t>(-1), group->gr_gid) == 0) chmod(path.c_str(), 0660);
}

}  // namespace

Result<void> Server::listen(const std::string& path, host::UniqueFd handed_over) {
    if (handed_over) {
        listening_ = std::move(handed_over);
    } else {
        auto bound = bind_socket(path);
        if (!bound) return std::unexpected(bound.error());
        listening_ = std::move(*bound);
        path_ = path;
        open_to_group(path, parts_.group());
    }
    sd_event_source* source = nullptr;
    const int r = sd_event_add_io(parts_.event, &source, listening_.get(), EPOLLIN, on_connect, this);
    if (r < 0) return fail(Errc::io, "cannot watch " + path, -r);
    source_.reset(source);
    return {};
}

void Server::unlink_socket() {
    if (!path_.empty()) unlink(path_.c_str());
    path_.clear();
}

int Server::on_connect(sd_event_source* /*source*/, int /*fd*/, std::uint32_t /*events*/, void* data) {
    static_cast<Server*>(data)->accept_one();
    return 0;
}

/// Root always; others only where the group is told to come this way, so that the socket is no way around polkit.
Result<void> Server::may_connect(const Peer& peer) const {
    const auto of_user = std::ranges::count(connections_, peer.uid, &Connection::uid);
    if (connections_.size() >= kMaxConnections) return fail(Errc::quota, "too many connections");
    if (peer.uid == 0 || peer.uid == geteuid()) return {};
    if (of_user >= kMaxConnectionsPerUser) return fail(Errc::quota, "too many connections of one user");
    const auto group = parts_.group();
    if (group.empty() || !parts_.accounts->is_member(peer.uid, group))
        return fail(Errc::denied, "only root may use the socket");
    return {};
}

void Server::accept_one() {
    host::UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && (errno == EMFILE || errno == ENFILE)) {
        // It stays readable: looking again at once would take all of a CPU.
        sd_event_source_set_enabled(source_.get(), SD_EVENT_OFF);
        parts_.later->after(kAcceptAgain, [this] { sd_event_source_set_enabled(source_.get(), SD_EVENT_ON); });
    }
    if (!fd) return;
    auto peer = read_peer(fd.get());
    auto allowed = peer ? may_connect(*peer) : Result<void>(std::unexpected(peer.error()));
    const auto uid = peer ? peer->uid : static_cast<unsigned>(-1);  // (uid_t) -1 is nobody's
    if (allowed) allowed = add(std::move(fd), std::move(*peer));
    if (!allowed) parts_.denials->say(uid, "connection refused", allowed.error().detail);
}

Result<void> Server::serve(host::UniqueFd fd) {
    auto peer = read_peer(fd.get());
    if (!peer) return std::unexpected(peer.error());
    return add(std::move(fd), std::move(*peer));
}

Result<void> Server::add(host::UniqueFd fd, Peer peer) {
    const auto broken = [](int r) { return fail(Errc::io, "cannot speak D-Bus on a connection", -r); };
    sd_bus* bus = nullptr;
    sd_id128_t id{};
    if (const int r = sd_bus_new(&bus); r < 0) return broken(r);
    Connection connection{.owner = this, .bus = {}, .uid = peer.uid};
    connection.bus.reset(bus);
    int r = sd_id128_randomize(&id);
    if (r >= 0) r = sd_bus_set_fd(bus, fd.get(), fd.get());
    if (r >= 0) (void)fd.release();  // the bus closes it
    if (r >= 0) r = sd_bus_set_server(bus, 1, id);
    if (r >= 0) r = sd_bus_set_anonymous(bus, 1);  // who it is, the socket has said already
    if (r < 0) return broken(r);
    parts_.identifier->add_peer(bus, std::move(peer));
    auto& kept = connections_.emplace_back(std::move(connection));
    r = sd_bus_match_signal(bus, nullptr, "org.freedesktop.DBus.Local", "/org/freedesktop/DBus/Local",
                            "org.freedesktop.DBus.Local", "Disconnected", on_disconnect, &kept);
    if (r >= 0) r = sd_bus_set_connected_signal(bus, 1);
    if (r >= 0)
        r = sd_bus_match_signal(bus, nullptr, "org.freedesktop.DBus.Local", "/org/freedesktop/DBus/Local",
                                "org.freedesktop.DBus.Local", "Connected", on_connected, &kept);
    if (r >= 0) r = sd_bus_start(bus);
    if (r >= 0) r = sd_bus_attach_event(bus, parts_.event, SD_EVENT_PRIORITY_NORMAL);
    auto attached = r >= 0 ? parts_.manager->attach(bus) : broken(r);
    if (!attached) {
        parts_.identifier->forget_peer(bus);
        connections_.pop_back();
        return attached;
    }
    used_ = true;
    return {};
}

/// A client may send its first calls together with the last line of the authentication. sd-bus then has them in its
/// buffer already and would look there only when more arrives.
int Server::on_connected(sd_bus_message* message, void* data, sd_bus_error* /*error*/) {
    const std::shared_ptr<sd_bus> bus(sd_bus_ref(sd_bus_message_get_bus(message)), sd_bus_unref);
    auto* self = static_cast<Connection*>(data)->owner;
    self->parts_.later->soon([self, bus] { self->read_buffered(bus); });
    return 0;
}

/// One message a turn of the loop, so that nobody is kept waiting.
void Server::read_buffered(const std::shared_ptr<sd_bus>& bus) {
    if (sd_bus_process(bus.get(), nullptr) > 0) parts_.later->soon([this, bus] { read_buffered(bus); });
}

int Server::on_disconnect(sd_bus_message* /*message*/, void* data, sd_bus_error* /*error*/) {
    auto* connection = static_cast<Connection*>(data);
    auto* self = connection->owner;
    if (std::exchange(connection->closing, true)) return 0;
    self->parts_.identifier->forget_peer(connection->bus.get());
    self->parts_.manager->detach(connection->bus.get());
    // Not from inside its own handler.
    self->parts_.later->soon([self, connection] {
        self->connections_.remove_if([&](const Connection& it) { return &it == connection; });
        self->parts_.disconnected();
    });
    return 0;
}

}  // namespace numalease::service
