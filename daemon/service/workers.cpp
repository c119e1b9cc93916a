#include "service/workers.hpp"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace numalease::service {

Workers::Workers(sd_event* event, std::function<void(core::Done)> done)
    : done_(std::move(done)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    sd_event_source* source = nullptr;
    sd_event_add_io(event, &source, wake_.get(), EPOLLIN, on_finished, this);
    source_.reset(source);
}

Workers::~Workers() {
    for (auto& job : running_) *job.cancel = true;
    for (auto& job : running_) job.thread.join();
}

void Workers::cancel(const model::KnobKey& key) {
    for (auto& job : running_)
        if (job.key == key) *job.cancel = true;
}

void Workers::run(const model::KnobKey& key, Job job) {
    auto cancel = std::make_shared<std::atomic<bool>>(false);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the thread from its first instruction
    std::thread thread([this, cancel, job = std::move(job)] { finish(job(*cancel)); });
    running_.push_back({std::move(thread), std::move(cancel), key});
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Workers::finish(core::Done done) {
    const std::scoped_lock lock(mutex_);
    finished_.push_back({std::this_thread::get_id(), std::move(done)});
    const std::uint64_t one = 1;
    // Cannot fail but for a counter at its end, and then the loop is awake already.
    [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

void Workers::collect() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = read(wake_.get(), &count, sizeof count);
    std::vector<Finished> finished;
    {
        const std::scoped_lock lock(mutex_);
        finished.swap(finished_);
    }
    for (auto& item : finished) {
        const auto job =
            std::ranges::find_if(running_, [&](const Running& it) { return it.thread.get_id() == item.thread; });
        job->thread.join();
        running_.erase(job);
        done_(std::move(item.done));
    }
}

int Workers::on_finished(sd_event_source* /*source*/, int /*fd*/, std::uint32_t /*events*/, void* data) {
    static_cast<Workers*>(data)->collect();
    return 0;
}

}  // namespace numalease::service
