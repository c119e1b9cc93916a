#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace numalease::service::log {

/// error: an operator must act; warning: degraded, or somebody else's doing; info: leases and knobs change.
enum class Level { debug, info, warning, error };

/// One field of an event. Names are those of the journal, upper case: LEASE, STATE, KNOB, OLD, NEW, …
struct Field {
    std::string_view name;
    std::string value;
};
using Fields = std::vector<Field>;

/// Kinds of event, as MESSAGE_ID= in the journal. They never change.
inline constexpr std::string_view kStarted = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a01";
inline constexpr std::string_view kStopped = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a02";
inline constexpr std::string_view kLease = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a03";
inline constexpr std::string_view kKnob = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a04";
inline constexpr std::string_view kStuck = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a05";
inline constexpr std::string_view kJournal = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a06";
inline constexpr std::string_view kDegraded = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a07";
inline constexpr std::string_view kDenied = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a08";
inline constexpr std::string_view kConfinement = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a09";
inline constexpr std::string_view kOutOfMemory = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a0a";
inline constexpr std::string_view kWarned = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a0b";
inline constexpr std::string_view kConfigured = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a0c";
inline constexpr std::string_view kSquatters = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a0d";
inline constexpr std::string_view kAsked = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a0e";
inline constexpr std::string_view kVerified = "8f7a3c1e5b2d4f60a9c4e8d17b3f6a0f";

/// Errors: false where `text` is none of debug, info, warning, error.
bool parse_level(std::string_view text, Level& level);

/// Where events go: natively into the systemd journal where standard error is connected to it (JOURNAL_STREAM= of
/// systemd.exec(5)), else as one `key=value` line each on standard error.
void start(Level least);

/// "journal", or "log" where that is standard error.
std::string_view destination();

/// One event. `text` is a sentence for people, the fields are for programs.
void event(Level level, std::string_view message_id, std::string_view text, const Fields& fields = {});

}  // namespace numalease::service::log
