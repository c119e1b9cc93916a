#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "simulator/simulation.hpp"

// The real core under random streams of requests, on random machines, with a clock of its own.

namespace numalease {
namespace {

using model::Micros;
using test::Plain;

std::string text_of(const std::vector<std::string>& lines) {
    std::string out;
    for (const auto& line : lines) out += "\n  " + line;
    return out;
}

double seconds(Micros time) { return std::chrono::duration<double>(time).count(); }

/// No job waits longer than is documented, where everything has an end and no limit of its user holds it back.
void check_bound(unsigned seed, const test::Stream& stream, const test::Outcome& outcome) {
    if (!std::ranges::all_of(stream.jobs, [](const test::Job& job) { return job.limit.has_value(); })) return;
    for (std::size_t i = 0; i < stream.jobs.size(); ++i) {
        const auto& job = stream.jobs[i];
        const auto& fate = outcome.fates[i];
        if (fate.refused || !fate.started ||
            stream.limits.at(job.uid) != model::Limits{.weight = stream.limits.at(job.uid).weight})
            continue;
        EXPECT_LE(seconds(*fate.started), seconds(bound_of(stream, job, fate)))
            << "seed " << seed << ", job " << i << ": " << job.fields << ", arrived at " << seconds(job.arrives);
    }
}

void run_seed(unsigned seed) {
    const auto stream = test::random_stream(seed);
    const auto outcome = simulate(stream);
    EXPECT_TRUE(outcome.problems.empty()) << "seed " << seed << text_of(outcome.problems);
    for (std::size_t i = 0; i < stream.jobs.size(); ++i)
        EXPECT_EQ(outcome.fates[i].started && !outcome.fates[i].ended, false)
            << "seed " << seed << ", job " << i << " never ended";
    check_bound(seed, stream, outcome);
}

/// Streams that once found something. Each is run for ever after.
constexpr unsigned kKept[] = {1004, 1010, 1133, 1160, 2290, 2392, 3487, 4625};

TEST(Simulator, StreamsThatOnceFoundSomething) {
    for (const unsigned seed : kKept) run_seed(seed);
}

constexpr unsigned kARun = 150;  ///< --gtest_repeat=20 goes on with the next ones
unsigned next_seed = 1000;

TEST(Simulator, RandomStreamsKeepEveryPromise) {
    for (unsigned i = 0; i < kARun && !HasFailure(); ++i) run_seed(next_seed++);
}

TEST(Simulator, UseIsSharedByWeight) {
    const auto stream = test::saturated_stream(1);
    const auto horizon = Micros(std::int64_t{6} * 3600 * 1'000'000);
    const auto outcome = simulate(stream, horizon);
    EXPECT_TRUE(outcome.problems.empty()) << text_of(outcome.problems);
    std::map<unsigned, double> used;
    for (std::size_t i = 0; i < stream.jobs.size(); ++i)
        if (const auto& fate = outcome.fates[i]; fate.started)
            used[stream.jobs[i].uid] += seconds(fate.ended.value_or(horizon) - *fate.started) * fate.cores;
    const auto all =
        std::accumulate(used.begin(), used.end(), 0.0, [](double sum, const auto& it) { return sum + it.second; });
    std::printf("use by weight 1:2:4, 6 h: ");
    for (const auto& [uid, amount] : used) {
        const auto share = amount / all;
        const auto due = stream.limits.at(uid).weight / 7.0;
        std::printf(" %.1f %% of %.1f %%;", share * 100, due * 100);
        EXPECT_NEAR(share / due, 1, 0.1) << "uid " << uid;
    }
    std::printf("\n");
}

TEST(Simulator, TheWholeMachineIsHadUnderAnEndlessStreamOfSmallOnes) {
    const auto stream = test::starving_stream(1);
    const auto whole =
        std::ranges::find_if(stream.jobs, [](const auto& job) { return job.fields.contains("node=all"); }) -
        stream.jobs.begin();
    const auto at = static_cast<std::size_t>(whole);
    const auto ours = simulate(stream);
    EXPECT_TRUE(ours.problems.empty()) << text_of(ours.problems);
    const auto& job = stream.jobs[at];
    ASSERT_TRUE(ours.fates[at].started);
    EXPECT_LE(*ours.fates[at].started, bound_of(stream, job, ours.fates[at]));
    const auto first_fit = simulate_plain(stream, Plain::first_fit);
    std::printf(
        "the whole machine, asked for at %.0f s: ours after %.0f s, stated bound %.0f s, first fit after %.0f s\n",
        seconds(job.arrives), seconds(*ours.fates[at].started - job.arrives),
        seconds(bound_of(stream, job, ours.fates[at]) - job.arrives),
        first_fit.fates[at].started ? seconds(*first_fit.fates[at].started - job.arrives) : -1.0);
}

/// The figures of ours beside the plain ones, over the same streams. They are printed, not judged: what is promised is
/// judged above.
TEST(Simulator, BesideFifoAndFirstFit) {
    constexpr unsigned kStreams = 40;
    struct Sum {
        const char* name;
        test::Merit merit;
    };
    Sum sums[] = {{"FIFO", {}}, {"first fit", {}}, {"numa-lease", {}}};
    for (unsigned seed = 5000; seed < 5000 + kStreams; ++seed) {
        auto stream = test::random_stream(seed);
        stream.limits.clear();  // plain schedulers know none
        for (auto& job : stream.jobs) {
            if (!job.limit) job.limit = job.runs * 2;
            job.runs = std::min(job.runs, *job.limit);
            job.ignores_term = false;
            for (const char* word : {" wait=10min", " wait=no", " wait=forever"})
                if (const auto found = job.fields.find(word); found != std::string::npos) job.fields.erase(found);
            job.fields += " wait=forever";
        }
        const test::Merit each[] = {merit_of(stream, simulate_plain(stream, Plain::fifo)),
                                    merit_of(stream, simulate_plain(stream, Plain::first_fit)),
                                    merit_of(stream, simulate(stream))};
        EXPECT_EQ(each[0].ran, each[2].ran) << "seed " << seed;
        for (std::size_t i = 0; i < 3; ++i) {
            sums[i].merit.utilisation += each[i].utilisation / kStreams;
            sums[i].merit.mean_wait += each[i].mean_wait / kStreams;
            sums[i].merit.p95_wait += each[i].p95_wait / kStreams;
            sums[i].merit.makespan += each[i].makespan / kStreams;
        }
    }
    std::printf("%-12s %12s %12s %12s %12s\n", "", "utilisation", "mean wait s", "p95 wait s", "makespan s");
    for (const auto& [name, merit] : sums)
        std::printf("%-12s %11.1f%% %12.0f %12.0f %12.0f\n", name, merit.utilisation * 100, merit.mean_wait,
                    merit.p95_wait, merit.makespan);
}

}  // namespace
}  // namespace numalease
