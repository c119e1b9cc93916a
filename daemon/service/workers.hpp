#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/step.hpp"
#include "host/root.hpp"
#include "service/event.hpp"

namespace numalease::service {

/// Kernel writes that block (huge pages: minutes) in threads of their own, and their completions back on the loop.
/// The threads run with every signal blocked: a signal cuts a huge-page write short, and the kernel reports success.
class Workers {
public:
    using Job = std::function<core::Done(const std::atomic<bool>& cancel)>;

    /// `done` is called on the loop's thread.
    Workers(sd_event* event, std::function<void(core::Done)> done);
    /// Asks what still runs to stop at the next chunk, and waits for it.
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    /// Thread: any number of jobs run at the same time; the ledger keeps two from the same pool.
    void run(const model::KnobKey& key, Job job);
    /// Asks the jobs about `key` to stop at their next chunk; they complete as usual.
    void cancel(const model::KnobKey& key);
    [[nodiscard]] std::size_t in_flight() const { return running_.size(); }

private:
    struct Running {
        std::thread thread;
        std::shared_ptr<std::atomic<bool>> cancel;
        model::KnobKey key;
    };
    struct Finished {
        std::thread::id thread;
        core::Done done;
    };
    void finish(core::Done done);
    void collect();
    static int on_finished(sd_event_source* source, int fd, std::uint32_t events, void* data);

    std::function<void(core::Done)> done_;
    host::UniqueFd wake_;  ///< eventfd
    EventSource source_;
    std::mutex mutex_;
    std::vector<Finished> finished_;  ///< guarded by mutex_
    std::vector<Running> running_;
};

}  // namespace numalease::service
