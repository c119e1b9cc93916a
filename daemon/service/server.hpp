#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "host/root.hpp"
#include "service/identity.hpp"
#include "service/manager.hpp"

namespace numalease::service {

/// Peer-to-peer connections: the listening socket, and what was accepted on it.
class Server {
public:
    struct Parts {
        sd_event* event = nullptr;
        Later* later = nullptr;
        Manager* manager = nullptr;
        Identifier* identifier = nullptr;
        Accounts* accounts = nullptr;
        Denials* denials = nullptr;
        std::function<std::string()> group;  ///< who may connect besides root; empty: nobody
        std::function<void()> disconnected;  ///< a connection has ended
    };
    explicit Server(Parts parts) : parts_(std::move(parts)) {}

    /// Listens on `path`, or on a socket that was `handed_over`. Mode 0660 where `group` exists, else 0600.
    /// Errors: io.
    model::Result<void> listen(const std::string& path, host::UniqueFd handed_over);
    /// Serves one connected descriptor, whoever is at its other end.  Errors: io.
    model::Result<void> serve(host::UniqueFd fd);
    /// Removes the socket from the file system where this made it.
    void unlink_socket();

    [[nodiscard]] std::size_t connections() const { return connections_.size(); }
    [[nodiscard]] bool was_used() const { return used_; }

private:
    struct Connection {
        Server* owner = nullptr;
        std::unique_ptr<sd_bus, bus::Deleter<sd_bus_close_unref>> bus;
        unsigned uid = 0;
        bool closing = false;
    };
    void accept_one();
    model::Result<void> add(host::UniqueFd fd, Peer peer);
    [[nodiscard]] model::Result<void> may_connect(const Peer& peer) const;
    static int on_connect(sd_event_source* source, int fd, std::uint32_t events, void* data);
    static int on_connected(sd_bus_message* message, void* data, sd_bus_error* error);
    void read_buffered(const std::shared_ptr<sd_bus>& bus);
    static int on_disconnect(sd_bus_message* message, void* data, sd_bus_error* error);

    Parts parts_;
    host::UniqueFd listening_;
    EventSource source_;
    std::string path_;  ///< ours to remove
    bool used_ = false;
    std::list<Connection> connections_;
};

}  // namespace numalease::service
