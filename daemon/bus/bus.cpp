#include "bus/bus.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "bus/names.hpp"

namespace numalease::bus {

using model::Errc;
using model::Error;
using model::fail;
using model::Result;

namespace {

std::unexpected<Error> no_daemon(const std::string& what, int negative_errno) {
    return fail(Errc::no_daemon, what + ": " + std::strerror(-negative_errno), -negative_errno);
}

Result<Bus> adopt(sd_bus* raw, int result, const std::string& what) {
    Bus bus(raw);
    if (result < 0) return no_daemon(what, result);
    return bus;
}

/// A broker behind a D-Bus address.
int open_address(const std::string& address, sd_bus** out) {
    if (const int made = sd_bus_new(out); made < 0) return made;
    if (const int set = sd_bus_set_address(*out, address.c_str()); set < 0) return set;
    if (const int client = sd_bus_set_bus_client(*out, 1); client < 0) return client;
    return sd_bus_start(*out);
}

/// Names of errors that are not ours. A trailing '*' stands for any ending.
struct Foreign {
    std::string_view name;
    Errc code;
};
constexpr std::array kForeign{
    Foreign{SD_BUS_ERROR_SERVICE_UNKNOWN, Errc::no_daemon},
    Foreign{SD_BUS_ERROR_NAME_HAS_NO_OWNER, Errc::no_daemon},
    Foreign{SD_BUS_ERROR_NO_REPLY, Errc::no_daemon},
    Foreign{SD_BUS_ERROR_NO_SERVER, Errc::no_daemon},
    Foreign{SD_BUS_ERROR_DISCONNECTED, Errc::no_daemon},
    Foreign{SD_BUS_ERROR_TIMEOUT, Errc::no_daemon},
    Foreign{"org.freedesktop.DBus.Error.TimedOut", Errc::no_daemon},
    Foreign{"org.freedesktop.DBus.Error.Spawn.*", Errc::no_daemon},
    Foreign{"org.freedesktop.systemd1.*", Errc::no_daemon},  // activation through systemd failed
    Foreign{SD_BUS_ERROR_ACCESS_DENIED, Errc::denied},
    Foreign{SD_BUS_ERROR_AUTH_FAILED, Errc::denied},
    Foreign{SD_BUS_ERROR_INTERACTIVE_AUTHORIZATION_REQUIRED, Errc::denied},
    Foreign{SD_BUS_ERROR_LIMITS_EXCEEDED, Errc::quota},
    Foreign{SD_BUS_ERROR_INVALID_ARGS, Errc::invalid_request},
};

constexpr std::array kGoneErrnos{ECONNRESET,   ENOTCONN, EPIPE,         ETIMEDOUT, ECONNREFUSED,
                                 EHOSTUNREACH, ENOENT,   EADDRNOTAVAIL, ENOTUNIQ,  ESHUTDOWN};

Errc code_of_errno(int err) {
    if (std::ranges::find(kGoneErrnos, err) != kGoneErrnos.end()) return Errc::no_daemon;
    return err == EACCES || err == EPERM ? Errc::denied : Errc::io;
}

Errc code_of_name(std::string_view name, int err) {
    constexpr std::string_view prefix(kErrorPrefix);
    if (name.starts_with(prefix)) {
        const auto ours = name.substr(prefix.size());
        for (const auto& row : model::kErrcTable)
            if (row.bus_name == ours) return row.code;
        return Errc::internal;
    }
    for (const auto& [known, code] : kForeign)
        if (known.ends_with('*') ? name.starts_with(known.substr(0, known.size() - 1)) : name == known) return code;
    // sd-bus's own failures: no name, or one made from the errno.
    return name.empty() || name.starts_with("System.Error.") ? code_of_errno(err) : Errc::io;
}

}  // namespace

Result<Bus> open_bus(const std::string& where) {
    sd_bus* raw = nullptr;
    int result = 0;
    if (where == "system")
        result = sd_bus_open_system(&raw);
    else if (where == "session")
        result = sd_bus_open_user(&raw);
    else
        result = open_address(where, &raw);
    return adopt(raw, result, "cannot reach the " + where + " bus");
}

namespace {

/// Anybody can listen on a path that we were told, and would hear what we ask and answer what they like.
/// Source: SO_PEERCRED of unix(7), which is who called listen(2).
Result<void> check_server(int fd, const std::string& path) {
    ucred server{};
    socklen_t size = sizeof server;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &size) < 0)
        return fail(Errc::denied, path + ": the kernel does not say who listens there");
    if (server.uid == 0 || server.uid == geteuid()) return {};
    return fail(Errc::denied,
                path + ": uid " + std::to_string(server.uid) +
                    " listens there, who is neither root nor you; say another socket or runtime directory");
}

}  // namespace

Result<Bus> open_socket(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        return fail(Errc::no_daemon, "socket '" + path + "': the path is empty or too long", ENAMETOOLONG);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return no_daemon("cannot make a socket", -errno);
    // A path is connected here and not given to sd-bus as an address, which would have to be escaped.
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
        const int err = errno;
        close(fd);
        if (err == EACCES || err == EPERM)
            return fail(Errc::denied,
                        path + ": " + std::strerror(err) +
                            "; it is for root, and where there is no bus for members of "
                            "the daemon's group: an administrator can run usermod -aG numa-lease USER",
                        err);
        return no_daemon("nobody answers on " + path, -err);
    }
    // Before a word is said: closing a connection waits for what was begun.
    if (auto checked = check_server(fd, path); !checked) {
        close(fd);
        return std::unexpected(checked.error());
    }
    return open_fd(fd);
}

Result<Bus> open_fd(int fd) {
    sd_bus* raw = nullptr;
    int result = sd_bus_new(&raw);
    if (result >= 0) result = sd_bus_set_fd(raw, fd, fd);
    if (result < 0) close(fd);
    if (result >= 0) result = sd_bus_start(raw);
    return adopt(raw, result, "cannot speak D-Bus over the socket");
}

int set_error(sd_bus_error* out, const Error& error) {
    const auto name = std::string(kErrorPrefix) + std::string(model::row_of(error.code).bus_name);
    return sd_bus_error_set(out, name.c_str(), error.detail.c_str());
}

Error from_bus(const sd_bus_error& error, int negative_errno) {
    const int err = negative_errno < 0 ? -negative_errno : 0;
    const std::string_view name = error.name != nullptr ? error.name : "";
    // The bus carries no errno: what sd-bus makes up for a name of ours means nothing.
    const bool ours = name.starts_with(kErrorPrefix);
    Error out{.code = code_of_name(name, err), .detail = {}, .err = ours ? 0 : err};
    if (error.message != nullptr && *error.message != '\0')
        out.detail = error.message;
    else
        out.detail = err != 0 ? std::strerror(err) : std::string(name);
    return out;
}

Result<Message> new_call(sd_bus* bus, const char* destination, const char* method) {
    sd_bus_message* raw = nullptr;
    const int result = sd_bus_message_new_method_call(bus, &raw, destination, kManagerPath, kManagerInterface, method);
    if (result < 0) return std::unexpected(from_bus(SD_BUS_ERROR_NULL, result));
    return Message(raw);
}

Result<Message> send(sd_bus* bus, sd_bus_message* call, std::uint64_t timeout_usec) {
    BusError error;
    sd_bus_message* reply = nullptr;
    const int result = sd_bus_call(bus, call, timeout_usec, error.get(), &reply);
    if (result < 0) return std::unexpected(from_bus(*error, result));
    return Message(reply);
}

}  // namespace numalease::bus
