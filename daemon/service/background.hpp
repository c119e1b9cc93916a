#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "host/root.hpp"
#include "service/event.hpp"

namespace numalease::service {

/// One thread, with every signal blocked, for what may take its time and no lease waits for: a disk, a walk through
/// /proc. Jobs are done one after the other.
class Background {
public:
    using Then = std::function<void()>;
    using Job = std::function<Then()>;  ///< runs in the thread; what it returns runs on the loop

    explicit Background(sd_event* event);
    /// Does what was posted, and drops what was to follow on the loop.
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    /// False where so much waits already that nothing is added.
    bool post(Job job);

private:
    void work();
    void collect();
    static int on_done(sd_event_source* source, int fd, std::uint32_t events, void* data);

    host::UniqueFd wake_;  ///< eventfd
    EventSource source_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;    ///< guarded by mutex_
    std::vector<Then> done_;  ///< guarded by mutex_
    bool ends_ = false;       ///< guarded by mutex_
    std::thread thread_;      ///< since the first job
};

}  // namespace numalease::service
