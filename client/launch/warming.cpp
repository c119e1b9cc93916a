#include "launch/warming.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "launch/http.hpp"
#include "policies/variables.hpp"
#include "where/where_read.hpp"

namespace numalease::client {

using model::Result;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kAskAgain = std::chrono::milliseconds(250);
constexpr auto kAnswerTime = std::chrono::seconds(30);  ///< of a server that is only asked whether it is ready
constexpr auto kProgressEvery = std::chrono::seconds(30);
constexpr int kGood = 2;  ///< 2xx
constexpr int kHundred = 100;

class Lines {
public:
    explicit Lines(int fd) : fd_(fd) {}
    void operator()(const std::string& text) {
        said_ = Clock::now();
        const auto line = text + '\n';
        // Shorter than a pipe's buffer; where nobody reads it any more, nothing is left to be done for.
        if (write(fd_, line.data(), line.size()) < 0) _exit(1);
    }
    /// Now and then only.
    template <class Text>
    void sometimes(Text text) {
        if (Clock::now() - said_ >= kProgressEvery) (*this)(text());
    }

private:
    int fd_;
    Clock::time_point said_ = Clock::now();
};

/// The engine itself, behind sudo and the like: of a process and all below it the one with the most memory.
int engine_below(int pid) {
    constexpr std::size_t kMost = 64;
    std::vector<int> all{pid};
    for (std::size_t i = 0; i < all.size() && all.size() < kMost; ++i)
        for (const auto child : read_children(all[i])) all.push_back(child);
    const auto resident = [](int one) {
        const auto status = read_status(one);
        return status ? status->resident() : 0;
    };
    return *std::ranges::max_element(all, {}, resident);
}

WarmSample sample_of(int pid) {
    const auto status = read_status(pid);
    return {.seconds = std::chrono::duration<double>(Clock::now().time_since_epoch()).count(),
            .major_faults = read_major_faults(pid),
            .resident = status ? status->file : 0};
}

std::string resident_text(int pid) {
    const auto status = read_status(engine_below(pid));
    return model::bytes_text(status ? status->resident() : 0) + " resident";
}

bool await(const Serving& server, Lines& say, int pid) {
    for (const auto since = Clock::now();; std::this_thread::sleep_for(kAskAgain)) {
        const auto answer = ask_http(server.port, server.ready, kAnswerTime);
        if (answer && *answer / kHundred == kGood) return true;
        if (!answer && answer.error().err == EPROTO) {
            say("not waited for: " + server.ready + " at port " + std::to_string(server.port) + ": " +
                answer.error().detail);
            return false;
        }
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since);
        say.sometimes([&] {
            return "port " + std::to_string(server.port) + " is not ready after " + model::duration_text(seconds) +
                   (pid == 0 ? "" : ", " + resident_text(pid));
        });
    }
}

/// What loads grows; what has not grown for a while has loaded.
void await_still(int pid, Lines& say) {
    constexpr auto kLookAgain = std::chrono::seconds(1);
    constexpr unsigned kStill = 3;
    constexpr auto kMost = std::chrono::minutes(10);
    constexpr Bytes kHundredth = 100;
    Bytes last = 0;
    unsigned still = 0;
    for (const auto since = Clock::now(); still < kStill && Clock::now() - since < kMost;) {
        std::this_thread::sleep_for(kLookAgain);
        const auto status = read_status(engine_below(pid));
        const auto now = status ? status->resident() + status->hugetlb : 0;
        still = now != 0 && now <= last + last / kHundredth ? still + 1 : 0;
        last = now;
        say.sometimes([&] { return "it grows: " + model::bytes_text(now) + " resident"; });
    }
}

enum class Say { what_is_amiss, everything };

/// What the daemon finds, who keeps it with the lease. Nothing where it could not look.
std::optional<model::Verification> have_verified(const Endpoint& endpoint, const std::string& lease, Lines& say) {
    auto daemon = find_daemon(endpoint);
    const auto answer = daemon ? daemon->verify(lease) : Result<model::Dict>(std::unexpected(daemon.error()));
    if (!answer) {
        say("not verified by the daemon: " + answer.error().detail);
        return std::nullopt;
    }
    auto verified = model::verification_from_dict(*answer);
    say("lease " + lease + ": " + model::verification_text(verified));
    for (const auto& warning : verified.warnings) say("amiss: " + warning);
    if (!verified.unknown.empty()) return std::nullopt;
    return verified;
}

/// Where its memory is now, and what is amiss with that. False where something is.
bool say_residency(int pid, const ToWarm& what, Lines& say, Say which = Say::what_is_amiss) {
    const auto verified = have_verified(what.endpoint, what.bounds.lease, say);
    const auto machine = read_machine();
    const auto status = read_status(pid);
    if (!status) return false;
    Tally tally;
    Found found;
    const Look look{.samples = status->resident() + status->hugetlb > kSampleFrom ? kSamples : 0};
    if (const auto done = read_memory(pid, *status, look, machine, tally, found); !done) {
        say("where its memory is: " + done.error().detail);
        return false;
    }
    read_threads(pid, machine, what.bounds.cpus, found);
    tally.finish(found);
    PerNode files;
    PerNode others;
    for (const auto& [node, use] : found.nodes) {
        if (use.file > 0) files[node] = use.file;
        if (use.unnamed() > 0) others[node] = use.unnamed();
    }
    if (sum_of(files) > 0) say(model::bytes_text(sum_of(files)) + " of files: " + spread_text(files));
    if (sum_of(others) > 0) say(model::bytes_text(sum_of(others)) + " of no file: " + spread_text(others));
    auto judged = what.bounds;
    judged.machine = machine.memory;
    judged.nodes_are_judged = verified.has_value();
    bool fine = !verified || verified->warnings.empty();
    for (const auto& judgement : judge(found, judged)) {
        fine = fine && judgement.fine;
        if (!judgement.fine || which == Say::everything) say((judgement.fine ? "" : "amiss: ") + judgement.text);
    }
    return fine;
}

/// True where it was generated until nothing changed, or until the time was up.
bool generate(const ToWarm& what, int pid, Lines& say) {
    using State = Warmth::State;
    Warmth warmth(what.rule, sample_of(pid));
    const auto until = Clock::now() + what.rule.most;
    for (auto state = State::going; state == State::going;) {
        const auto number = std::to_string(warmth.rounds() + 1);
        const auto request = policies::expand(what.serving.warm, [&](std::string_view name) {
            return name == "round" ? std::optional(number) : std::nullopt;
        });
        const auto answer =
            ask_http(what.serving.port, request, std::max<Clock::duration>(until - Clock::now(), kAskAgain),
                     [&] { say.sometimes([&] { return "round " + number + " goes on: " + resident_text(pid); }); });
        const bool late = !answer && answer.error().err == ETIMEDOUT;
        if (!late && (!answer || *answer / kHundred != kGood)) {
            const auto name = request.substr(0, request.find(' ', request.find(' ') + 1));
            say("not warmed: " + name +
                (answer ? " is answered with " + std::to_string(*answer) : ": " + answer.error().detail));
            return false;
        }
        state = warmth.add(sample_of(pid));
        if (warmth.rounds() == 1) say(warmth.text());
        say.sometimes([&] { return warmth.text(); });
        if (late) state = State::out_of_time;
        if (state == State::out_of_time)
            say("not warm after " + model::duration_text(what.rule.most) + ", goes on all the same; " + warmth.text());
        if (state == State::warm) say("warm: " + warmth.text());
    }
    return true;
}

}  // namespace

int await_ready(const std::vector<Serving>& servers, const Endpoint& endpoint, const std::string& lease, int lines) {
    Lines say(lines);
    bool all = true;
    for (const auto& server : servers) all = await(server, say, 0) && all;
    (void)have_verified(endpoint, lease, say);
    return all ? 0 : 1;
}

int warm_up(const ToWarm& what, int lines) {
    Lines say(lines);
    if (!await(what.serving, say, what.pid)) return 1;
    const auto pid = engine_below(what.pid);
    say("the server answers on port " + std::to_string(what.serving.port) + "; it is warmed now");
    const bool warmed = generate(what, pid, say);
    (void)say_residency(pid, what, say);
    return warmed ? 0 : 1;
}

int verify(const ToWarm& what, int lines) {
    Lines say(lines);
    if (what.serving.ready.empty())
        await_still(what.pid, say);
    else if (!await(what.serving, say, what.pid))
        return 1;
    return say_residency(engine_below(what.pid), what, say, Say::everything) ? 0 : 1;
}

}  // namespace numalease::client
