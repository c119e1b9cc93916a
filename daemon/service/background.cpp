#include "service/background.hpp"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace numalease::service {

namespace {

constexpr std::size_t kMost = 1024;

}  // namespace

Background::Background(sd_event* event) : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    sd_event_source* source = nullptr;
    sd_event_add_io(event, &source, wake_.get(), EPOLLIN, on_done, this);
    source_.reset(source);
}

Background::~Background() {
    {
        const std::scoped_lock lock(mutex_);
        ends_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
}

bool Background::post(Job job) {
    {
        const std::scoped_lock lock(mutex_);
        if (jobs_.size() >= kMost) return false;
        jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
    if (thread_.joinable()) return true;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the thread from its first instruction
    thread_ = std::thread([this] { work(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return true;
}

void Background::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        const auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        auto then = job();
        lock.lock();
        if (!then) continue;
        done_.push_back(std::move(then));
        const std::uint64_t one = 1;
        // Cannot fail but for a counter at its end, and then the loop is awake already.
        [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
    }
}

void Background::collect() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = read(wake_.get(), &count, sizeof count);
    std::vector<Then> done;
    {
        const std::scoped_lock lock(mutex_);
        done.swap(done_);
    }
    for (const auto& then : done) then();
}

int Background::on_done(sd_event_source* /*source*/, int /*fd*/, std::uint32_t /*events*/, void* data) {
    static_cast<Background*>(data)->collect();
    return 0;
}

}  // namespace numalease::service
