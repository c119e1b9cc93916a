#pragma once

#include <array>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace numalease::model {

/// Every way a request can fail. Closed: each value has exactly one row in `kErrcTable`.
enum class Errc {
    invalid_request,  ///< malformed, contradictory or out of range
    no_such_lease,    ///< the id is unknown
    unreadable,       ///< a model, policy or configuration file cannot be read or parsed
    no_daemon,        ///< nobody answers on the bus or the socket
    not_now,          ///< would fit on this machine, but not at this moment
    denied,           ///< the caller may not do this
    quota,            ///< the caller has reached a limit
    impossible,       ///< this machine can never give it
    unsupported,      ///< this kernel or system lacks the lever
    in_use,           ///< processes of the lease are still alive
    already_running,  ///< another daemon owns this kernel
    io,               ///< the kernel or a service refused; `err` says how
    internal,         ///< none of the above
};

/// One row of the error table: what a caller sees of an `Errc`.
struct ErrcRow {
    Errc code;
    std::string_view bus_name;  ///< D-Bus error name below `org.numalease1.Error.`
    int exit_status;            ///< of `numa-leasectl`, after sysexits.h
};

inline constexpr std::array kErrcTable{
    ErrcRow{Errc::invalid_request, "InvalidRequest", 64},
    ErrcRow{Errc::no_such_lease, "NoSuchLease", 64},
    ErrcRow{Errc::unreadable, "Unreadable", 66},
    ErrcRow{Errc::no_daemon, "NoDaemon", 69},
    ErrcRow{Errc::not_now, "NotNow", 75},
    ErrcRow{Errc::denied, "Denied", 77},
    ErrcRow{Errc::quota, "Quota", 77},
    ErrcRow{Errc::impossible, "Impossible", 78},
    ErrcRow{Errc::unsupported, "Unsupported", 78},
    ErrcRow{Errc::in_use, "InUse", 75},
    ErrcRow{Errc::already_running, "AlreadyRunning", 125},
    ErrcRow{Errc::io, "Io", 125},
    ErrcRow{Errc::internal, "Internal", 125},
};

constexpr const ErrcRow& row_of(Errc code) { return kErrcTable.at(static_cast<std::size_t>(code)); }

/// A failure: its kind, one line for a person (thing, cause, way out), and the kernel's errno or 0.
struct Error {
    Errc code = Errc::internal;
    std::string detail;
    int err = 0;

    bool operator==(const Error&) const = default;
};

template <class T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> fail(Errc code, std::string detail, int err = 0) {
    return std::unexpected(Error{code, std::move(detail), err});
}

}  // namespace numalease::model
