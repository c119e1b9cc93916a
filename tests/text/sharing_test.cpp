#include "text/sharing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/render.hpp"

namespace numalease::client {
namespace {

using model::Value;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kSecond = 1'000'000;
constexpr std::uint64_t kDay = 86'400 * kSecond;
constexpr std::uint64_t kNow = 100 * kDay;

Dict nine_days() {
    return {{"id", "c1"},
            {"state", "active"},
            {"started", Dict{{"real", kNow - 9 * kDay}}},
            {"request", Dict{{"command", "llama-server"}}},
            {"placement", Dict{{"cpus", "0-3"}, {"nodes", "0"}, {"cores", 4U}, {"threads", 4U}}},
            {"use", Dict{{"busy_permille", 21U}, {"cpu_pressure_usec", 720 * kSecond}, {"memory_pressure_usec", 5U}}}};
}

TEST(Sharing, SaysThatALeaseIsNineDaysOldAndTwoPercentBusy) {
    EXPECT_THAT(lease_text(nine_days(), kNow), HasSubstr("active for 9d, 2% busy; waited 12min for CPUs\n"));
    EXPECT_THAT(leases_text({nine_days()}, false, kNow, 0), HasSubstr("  2%  "));
}

TEST(Sharing, DoesNotGuessHowBusyALeaseIs) {
    auto lease = nine_days();
    lease.erase("use");
    EXPECT_EQ(busy_text(lease), "-");
    EXPECT_THAT(lease_text(lease, kNow), HasSubstr("active for 9d\n"));
    EXPECT_EQ(busy_text({{"use", Dict{{"busy_permille", 996U}, {"at_least", true}}}}), ">100%");
    EXPECT_EQ(busy_text({{"use", Dict{{"cpu_usec", 5U}}}}), "-");
}

TEST(Sharing, ShowsClassesOnlyWhereThereIsAnother) {
    auto batch = nine_days();
    EXPECT_THAT(leases_text({batch}, false, kNow, 0), Not(HasSubstr("CLASS")));
    batch["request"] = Dict{{"command", "train"}, {"class", "batch"}};
    const auto text = leases_text({nine_days(), batch}, false, kNow, 0);
    EXPECT_THAT(text, HasSubstr("CLASS  COMMAND\n"));
    EXPECT_THAT(text, HasSubstr("-      llama-server\n"));
    EXPECT_THAT(text, HasSubstr("batch  train\n"));
}

TEST(Sharing, SaysHowLongALeaseHasAndWhenOneThatWaitsWillHaveIt) {
    auto lease = nine_days();
    EXPECT_EQ(left_text(lease), "-");
    lease["left_usec"] = 6000 * kSecond + 7;
    EXPECT_EQ(left_text(lease), "1h 40min");
    const Dict waiting{{"id", "c2"},
                       {"state", "queued"},
                       {"position", 2U},
                       {"estimate", "when c1 (llama-server) ends, at the latest in 1h 40min"}};
    EXPECT_THAT(leases_text({waiting}, false, kNow, 0),
                HasSubstr("c2 waits: number 2 in line, when c1 (llama-server) ends, at the latest in 1h 40min\n"));
    EXPECT_EQ(line_text({{"state", "queued"}}), "");
}

TEST(Sharing, NamesSquattersUpToFive) {
    Value::Dicts squatters;
    for (unsigned pid = 1; pid <= 7; ++pid)
        squatters.push_back({{"lease", "c1"}, {"pid", pid}, {"command", "stress"}, {"percent", 95U}, {"cpus", "3"}});
    const auto lines = squatter_lines(squatters);
    ASSERT_EQ(lines.size(), 6U);
    EXPECT_EQ(lines[0], "stress (pid 1, root) without a lease on CPUs 3 of c1: 95% of a CPU");
    EXPECT_EQ(lines[5], "and 2 more without a lease on leased CPUs");
    squatters.resize(5);
    EXPECT_EQ(squatter_lines(squatters).size(), 5U);
}

TEST(Sharing, ShowsThePast) {
    EXPECT_EQ(history_text({}, kNow, 0), "no lease has ended yet\n");
    const Dict entry{{"id", "c7"},
                     {"command", "llama\x1b[2J"},
                     {"class", "normal"},
                     {"cores", 8U},
                     {"nodes", "0-1"},
                     {"state", "ended"},
                     {"reason", "its last process is gone"},
                     {"ended_usec", kNow - 65 * kSecond},
                     {"waited_usec", 3 * kSecond},
                     {"ran_usec", kDay},
                     {"busy_permille", 876U}};
    const Dict vain{{"id", "c8"}, {"state", "refused"}, {"reason", "gave up"}, {"ended_usec", kNow + kSecond}};
    EXPECT_EQ(
        history_text({entry, vain}, kNow, 0),
        "ID  USER  CLASS   CORES  NODES  ENDED        WAITED  RAN  BUSY  COMMAND       HOW IT ENDED\n"
        "c7  root  normal  8      0-1    1min 5s ago  3s      1d   88%   llama\\x1b[2J  ended: its last process is "
        "gone\n"
        "c8  root  -       -      -      0s ago       0s      -    -                   refused: gave up\n");
}

}  // namespace
}  // namespace numalease::client
