#pragma once

#include <functional>
#include <list>

#include "host/root.hpp"
#include "model/residency.hpp"
#include "service/event.hpp"

namespace numalease::service {

/// Looks into the page cache, each time in a child of its own with a deadline: somebody may cut the file short
/// meanwhile, and a disk or a file system may not answer. The child is this very program again, since a thread of ours
/// may hold any lock at a fork(2).
class Residencies {
public:
    using Answer = std::function<void(model::Result<model::Residency>)>;

    explicit Residencies(sd_event* event) : event_(event) {}
    /// Kills what still looks, and does not wait for it.
    ~Residencies();
    Residencies(const Residencies&) = delete;
    Residencies& operator=(const Residencies&) = delete;

    /// `file` is lent until the answer.
    /// Errors: as host::read_residency; quota; not_now after the deadline.
    void ask(unsigned uid, int file, Answer answer);

private:
    struct Child {
        Residencies* owner = nullptr;
        unsigned uid = 0;
        int pid = 0;
        host::UniqueFd pidfd;
        host::UniqueFd output;
        EventSource exit;
        EventSource deadline;
        Answer answer;  ///< empty once it was given
    };
    model::Result<void> start(Child& child, int file);
    static int on_exit(sd_event_source* source, int fd, std::uint32_t events, void* data);
    static int on_deadline(sd_event_source* source, std::uint64_t usec, void* data);

    sd_event* event_;
    std::list<Child> children_;
};

/// What the child does: the file is its standard input; the answer goes to its standard output. Returns its exit
/// status.
int answer_residency();

}  // namespace numalease::service
