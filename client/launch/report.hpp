#pragma once

#include <optional>
#include <string>

#include "reach/starting.hpp"

/// `run --report FILE`: the grant, and the kernel state before and after, as JSON.
namespace numalease::client {

/// The file's content. Pure.
///
///     {"version": 1, "complete": true, "command": "…", "lease": {…}, "before": {"knobs": […]}, "after": {…},
///      "page_cache": {"before": {…}, "after": {…}}, "notes": […]}
struct Report {
    std::string command;
    model::Dict lease;       ///< as granted; after the end as it ended
    model::Dict page_cache;  ///< of the model's files, as settle_page_cache found and left them
    std::optional<model::Value::Dicts> before;
    std::optional<model::Value::Dicts> after;
    std::vector<std::string> notes;
    bool complete = false;

    [[nodiscard]] std::string text() const;
};

/// Writes FILE. "After" can only be seen when the command is gone, and nothing of ours stays in its tree: so a process
/// of its own session, forked before there is a lease, waits for the lease's end and writes the file once more.
class Reporter {
public:
    /// Creates FILE and starts the process that waits.  Errors: unreadable, io.
    static model::Result<Reporter> start(const std::string& file, const Endpoint& endpoint);

    Reporter(Reporter&& other) noexcept;
    Reporter& operator=(Reporter&&) = delete;
    Reporter(const Reporter&) = delete;
    ~Reporter();

    /// What was before the lease.
    void before(std::string command, model::Result<model::Value::Dicts> knobs);
    /// Writes what is known and hands over to the process that waits.
    model::Result<void> granted(const std::string& id, const model::Dict& lease);
    /// No lease: the file says why.
    void refused(const model::Error& error);

private:
    Reporter(std::string file, int socket) : file_(std::move(file)), socket_(socket) {}

    std::string file_;  ///< absolute
    int socket_;        ///< to the process that waits
    Report report_;
};

/// FILE.XXXXXX, then renamed over FILE.  Errors: io.
model::Result<void> write_atomically(const std::string& file, const std::string& text);

}  // namespace numalease::client
