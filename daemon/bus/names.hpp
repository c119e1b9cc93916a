#pragma once

namespace numalease::bus {

/// Every outward name, once.
inline constexpr const char* kService = "org.numalease1";
inline constexpr const char* kManagerPath = "/org/numalease1";
inline constexpr const char* kLeasePrefix = "/org/numalease1/lease";
inline constexpr const char* kManagerInterface = "org.numalease1.Manager";
inline constexpr const char* kLeaseInterface = "org.numalease1.Lease";
inline constexpr const char* kErrorPrefix = "org.numalease1.Error.";
inline constexpr const char* kRuntimeDirectory = "/run/numa-lease";
inline constexpr const char* kSocketName = "socket";  ///< in the runtime directory

/// Methods of the manager; their signatures are in org.numalease1.xml.
inline constexpr const char* kAcquire = "Acquire";        ///< a{sv} request → s id, a{sv} lease
inline constexpr const char* kWait = "Wait";              ///< s id, s "active"|"ended" → a{sv} lease, when it is so
inline constexpr const char* kJoin = "Join";              ///< s id → a{sv} lease; the calling process is inside
inline constexpr const char* kRelease = "Release";        ///< s id
inline constexpr const char* kStop = "Stop";              ///< s id, t grace µs
inline constexpr const char* kExtend = "Extend";          ///< s id, t µs more → a{sv} lease
inline constexpr const char* kVerify = "Verify";          ///< s id → a{sv}: where its memory is, against what it leased
inline constexpr const char* kPlan = "Plan";              ///< a{sv} request → a{sv} placement
inline constexpr const char* kListLeases = "ListLeases";  ///< → aa{sv}: also those that are over
/// u waiting → aa{sv}: those that are not over; of those that wait the first so many, in their order.
inline constexpr const char* kListCurrent = "ListCurrent";
inline constexpr const char* kGetLease = "GetLease";          ///< s id → a{sv}
inline constexpr const char* kGetTopology = "GetTopology";    ///< → a{sv}
inline constexpr const char* kGetKnobs = "GetKnobs";          ///< → aa{sv}: every knob of this machine, now and prior
inline constexpr const char* kGetStatus = "GetStatus";        ///< → a{sv}
inline constexpr const char* kHistory = "History";            ///< u max → aa{sv}: leases that are over, newest first
inline constexpr const char* kGetSquatters = "GetSquatters";  ///< → aa{sv}: busy on leased CPUs without a lease
inline constexpr const char* kAsk =
    "Ask";  ///< s id, s text → a{sv}: a message to who holds it, and what it went through
/// h file → a{sv}: what of it is in the page cache, by node, and who maps it; see model::Residency.
inline constexpr const char* kCacheResidency = "CacheResidency";
/// s id, s state, s reason: every change of a lease.
inline constexpr const char* kLeaseChanged = "LeaseChanged";

}  // namespace numalease::bus
