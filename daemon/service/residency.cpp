#include "service/residency.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "host/process.hpp"
#include "host/residency.hpp"

namespace numalease::service {

namespace {

using model::Errc;
using model::fail;
using model::Result;

constexpr std::uint64_t kDeadline = 20'000'000;  // 300 GiB and more, where all of it is cached
constexpr int kNiceness = 10;                    ///< whoever may ask can make us count for all of the deadline
constexpr std::size_t kMost = 16;
constexpr std::ptrdiff_t kMostOfUser = 4;
constexpr std::size_t kMostText = 65536;  ///< what a pipe holds, so that no child waits for us

/// Of the child, and as it says itself.  Shape: flatten() of a Residency, or "code=2 error=…".
Result<model::Residency> read_answer(int output) {
    std::string text(kMostText, '\0');
    const auto got = ::read(output, text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    const auto dict = model::unflatten(text);
    if (!dict || dict->empty()) return fail(Errc::internal, "whoever looked into the page cache was killed");
    if (const auto error = get_text(*dict, "error"); !error.empty())
        return fail(static_cast<Errc>(get_number(*dict, "code")), error);
    return model::residency_from_dict(*dict);
}

void say(const model::Dict& dict) {
    const auto text = model::flatten(dict);
    [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text.data(), std::min(text.size(), kMostText));
}

/// The kernel has nothing to map where the file used to be.
void on_cut_short(int /*signal*/) {
    static constexpr std::string_view kText = "error=the%20file%20was%20cut%20short%20meanwhile code=";
    static_assert(static_cast<int>(Errc::not_now) < 10);
    const char code = static_cast<char>('0' + static_cast<int>(Errc::not_now));
    [[maybe_unused]] auto written = ::write(STDOUT_FILENO, kText.data(), kText.size());
    written = ::write(STDOUT_FILENO, &code, 1);
    _exit(0);
}

}  // namespace

int answer_residency() {
    signal(SIGBUS, on_cut_short);
    (void)setpriority(PRIO_PROCESS, 0, kNiceness);
    auto root = host::Root::open("/");
    if (!root) return 1;
    const auto found = host::read_residency(STDIN_FILENO, *root);
    if (found)
        say(to_dict(*found));
    else
        say({{"error", found.error().detail}, {"code", static_cast<unsigned>(found.error().code)}});
    return 0;
}

Residencies::~Residencies() {
    for (const auto& child : children_) kill(child.pid, SIGKILL);
}

void Residencies::ask(unsigned uid, int file, Answer answer) {
    const auto of_user = std::ranges::count(children_, uid, &Child::uid);
    if (children_.size() >= kMost || (uid != 0 && of_user >= kMostOfUser))
        return answer(fail(Errc::quota, "so many files are looked at already; ask again when one is done"));
    auto& child = children_.emplace_back();
    child.owner = this;
    child.uid = uid;
    child.answer = std::move(answer);
    if (auto started = start(child, file); !started) {
        const auto tell = std::move(child.answer);
        children_.pop_back();
        tell(std::unexpected(started.error()));
    }
}

Result<void> Residencies::start(Child& child, int file) {
    const auto failed = [](const char* what, int err) {
        return fail(Errc::io, std::string("cannot look into the page cache: ") + what + ": " + host::errno_text(err),
                    err);
    };
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) < 0) return failed("pipe", errno);
    child.output = host::UniqueFd(ends[0]);
    const host::UniqueFd input(ends[1]);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    posix_spawn_file_actions_adddup2(&files, file, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, input.get(), STDOUT_FILENO);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK);
    std::array<char*, 3> argv{const_cast<char*>("numa-leased"), const_cast<char*>("--residency"), nullptr};
    std::array<char*, 1> environment{nullptr};
    const int err = posix_spawn(&child.pid, "/proc/self/exe", &files, &how, argv.data(), environment.data());
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    if (err != 0) return failed("posix_spawn", err);
    auto pidfd = host::open_pidfd(child.pid);
    sd_event_source* exit = nullptr;
    sd_event_source* deadline = nullptr;
    int r = pidfd ? sd_event_add_io(event_, &exit, pidfd->get(), EPOLLIN, on_exit, &child) : -pidfd.error().err;
    if (r >= 0) r = sd_event_add_time_relative(event_, &deadline, CLOCK_MONOTONIC, kDeadline, 0, on_deadline, &child);
    child.exit.reset(exit);
    child.deadline.reset(deadline);
    if (r >= 0) {
        child.pidfd = std::move(*pidfd);
        return {};
    }
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    return failed("no event", -r);
}

int Residencies::on_exit(sd_event_source* /*source*/, int /*fd*/, std::uint32_t /*events*/, void* data) {
    auto& child = *static_cast<Child*>(data);
    waitpid(child.pid, nullptr, 0);  // it is a zombie by now
    const auto answer = std::move(child.answer);
    const auto found = answer ? read_answer(child.output.get()) : Result<model::Residency>();
    std::erase_if(child.owner->children_, [&](const Child& it) { return &it == &child; });
    if (answer) answer(found);
    return 0;
}

/// It counts until it is gone: one that hangs in the kernel is not killed at once.
int Residencies::on_deadline(sd_event_source* /*source*/, std::uint64_t /*usec*/, void* data) {
    auto& child = *static_cast<Child*>(data);
    kill(child.pid, SIGKILL);
    const auto answer = std::exchange(child.answer, {});
    answer(fail(Errc::not_now, "the page cache was not counted within " +
                                   model::duration_text(model::Micros(kDeadline)) +
                                   "; the disk does not answer, or the file is very large"));
    return 0;
}

}  // namespace numalease::service
