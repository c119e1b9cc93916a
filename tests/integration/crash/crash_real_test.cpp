// The crash matrix over the real kernel: the daemon dies after its n-th action (an append to the journal, or an effect)
// for every n, and the next one starts from the journal file alone. Root only; leaves the kernel as it was.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "host/journal.hpp"
#include "host/knobs.hpp"
#include "support/fake_machine.hpp"

namespace numalease {
namespace {

using model::Knob;
using model::KnobKey;
using test::Crash;
using test::FakeMachine;

constexpr KnobKey kBalancing{.knob = Knob::numa_balancing};
constexpr KnobKey kThp{.knob = Knob::thp_enabled};
constexpr KnobKey kZoneReclaim{.knob = Knob::zone_reclaim_mode};
constexpr KnobKey kPool{.knob = Knob::hugepages, .node = 0, .page_size = 2 * model::kMiB};

/// Values of the machine that the matrix changes.
struct Kernel {
    std::map<KnobKey, std::string> knobs;
    std::uint64_t pages = 0;

    bool operator==(const Kernel&) const = default;
};

const host::Root& root() {
    static const auto it = host::Root::open("/").value();
    return it;
}

Kernel read_kernel() {
    Kernel out;
    for (const auto& key : {kBalancing, kThp, kZoneReclaim})
        if (auto value = host::read_knob(root(), key)) out.knobs[key] = *value;
    out.pages = host::read_pool(root(), kPool).value_or(model::PoolReading{}).persistent();
    return out;
}

void write_kernel(const Kernel& kernel) {
    const std::atomic<bool> go_on{false};
    for (const auto& [key, value] : kernel.knobs) (void)host::write_knob(root(), key, value);
    (void)host::resize_pool(root(), kPool, kernel.pages, false, go_on);
}

/// A process that puts `kernel` back once we are gone, also where a test crashes.
class Guard {
public:
    explicit Guard(const Kernel& kernel) {
        std::array<int, 2> ends{};
        if (pipe(ends.data()) < 0) throw std::runtime_error("no pipe");
        child_ = fork();
        if (child_ == 0) {
            close(ends[1]);
            char byte = 0;
            if (read(ends[0], &byte, 1) == 0) write_kernel(kernel);
            _exit(0);
        }
        close(ends[0]);
        fd_ = ends[1];
    }
    ~Guard() {
        close(fd_);  // nothing was written: the guard does its work now, and we wait for it
        waitpid(child_, nullptr, 0);
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

private:
    int fd_ = -1;
    pid_t child_ = -1;
};

/// The shell around the step, on this kernel and with a journal in a directory of its own.
class RealMachine : public FakeMachine {
public:
    RealMachine() : FakeMachine(test::simple_topology(1, 4)) {
        std::string name = (std::filesystem::temp_directory_path() / "numa-lease-crash-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
        directory_ = name;
        boot_ = host::read_boot_id(root()).value();
        open();
    }
    ~RealMachine() override { std::filesystem::remove_all(directory_); }
    RealMachine(const RealMachine&) = delete;
    RealMachine& operator=(const RealMachine&) = delete;

protected:
    [[nodiscard]] core::KnobReading read(const KnobKey& key) const override {
        if (key.row().kind == model::KnobKind::pool) {
            auto pool = host::read_pool(root(), key);
            if (!pool) return {.value = {}, .pool = {}, .error = pool.error()};
            return {.value = {}, .pool = *pool, .error = {}};
        }
        auto value = host::read_knob(root(), key);
        if (!value) return {.value = {}, .pool = {}, .error = value.error()};
        return {.value = *value, .pool = {}, .error = {}};
    }

    std::optional<model::Error> write(const KnobKey& key, const std::string& value) override {
        auto written = host::write_knob(root(), key, value);
        return written ? std::nullopt : std::optional(written.error());
    }

    void resize(const KnobKey& key, std::uint64_t target, std::uint64_t to_surplus) override {
        const std::atomic<bool> go_on{false};
        if (auto done = host::resize_pool(root(), key, target, true, go_on, to_surplus); !done)
            problems.push_back(done.error().detail);
    }

    void append(const std::vector<model::Record>& records) override {
        if (auto done = file_->append(records); !done) problems.push_back(done.error().detail);
        FakeMachine::append(records);  // what the file must say when it is read again
    }

    /// A new daemon knows what the file says and nothing else.
    void reload() override {
        file_.reset();
        open();
    }

private:
    void open() {
        host::Journal::Found found;
        file_ = host::Journal::open(directory_, boot_, found).value();
        for (const auto& warning : found.warnings) problems.push_back(warning);
        journal = std::move(found.records);
    }

    std::string directory_;
    std::string boot_;
    std::optional<host::Journal> file_;
};

/// Overlapping leases with every kind of knob on the only node, one after the other ended.
void scenario(RealMachine& machine) {
    const auto first =
        machine.acquire("share=yes numa-balancing=off thp=always hugepages=2M=32M required=numa-balancing");
    const auto second = machine.acquire("share=yes numa-balancing=off hugepages=2M=8M");
    machine.holder_gone(first);
    machine.acquire("share=yes zone-reclaim=1 hugepages=2M=4M");
    machine.holder_gone(second);
    for (const auto& id : std::set(machine.alive)) machine.holder_gone(id);
}

/// Runs the scenario until the n-th action; true where it died there.
bool die_at(RealMachine& machine, std::size_t n) {
    machine.crash_after = n;
    try {
        scenario(machine);
    } catch (const Crash&) {
        return true;
    }
    return false;
}

class CrashReal : public testing::Test {
protected:
    void SetUp() override {
        if (geteuid() != 0) GTEST_SKIP() << "changing kernel state needs root";
        if (!host::read_knob(root(), kBalancing)) GTEST_SKIP() << "this kernel has no numa_balancing";
        if (!host::read_pool(root(), kPool)) GTEST_SKIP() << "this kernel has no huge pages of 2 MiB on node 0";
        start_ = read_kernel();
        guard_.emplace(start_);
        start_.knobs[kBalancing] = "2";
        if (start_.knobs.contains(kThp)) start_.knobs[kThp] = "madvise";
        if (start_.knobs.contains(kZoneReclaim)) start_.knobs[kZoneReclaim] = "0";
        start_.pages = 3;
        write_kernel(start_);
        start_ = read_kernel();
        ASSERT_EQ(start_.pages, 3U);
    }
    void expect_as_at_start(const RealMachine& machine) const {
        EXPECT_EQ(read_kernel(), start_);
        EXPECT_TRUE(core::idle(machine.state));
        EXPECT_TRUE(machine.problems.empty()) << machine.problems.front();
    }

    std::optional<Guard> guard_;  ///< ends with the test
    Kernel start_;
};

TEST_F(CrashReal, AtEveryActionTheMachineComesBackWhenTheHoldersAreDead) {
    bool died = true;
    std::size_t n = 0;
    for (; died; ++n) {
        SCOPED_TRACE(n);
        RealMachine machine;
        died = die_at(machine, n);
        machine.alive.clear();
        machine.restart();
        machine.settle();
        expect_as_at_start(machine);
        if (HasFailure()) return;
    }
    EXPECT_GT(n, 30U);
}

TEST_F(CrashReal, AtEveryActionLiveLeasesAreKeptAndTheMachineComesBackAfterThem) {
    bool died = true;
    for (std::size_t n = 0; died; ++n) {
        SCOPED_TRACE(n);
        RealMachine machine;
        died = die_at(machine, n);
        const auto held = core::replay(machine.journal, machine.reports);
        for (const auto& [id, lease] : held.leases)
            if (lease.state == model::LeaseState::active) machine.alive.insert(id);
        machine.restart();
        for (const auto& [id, lease] : held.leases) {
            if (lease.state != model::LeaseState::active) continue;
            EXPECT_EQ(machine.lease(id).state, model::LeaseState::active);
            if (lease.request.numa_balancing == model::Balancing::off) {
                EXPECT_EQ(host::read_knob(root(), kBalancing), "0");
            }
        }
        for (const auto& id : std::set(machine.alive)) machine.holder_gone(id);
        machine.settle();
        expect_as_at_start(machine);
        if (HasFailure()) return;
    }
}

TEST_F(CrashReal, DyingAgainWhileRecoveringIsRecoveredToo) {
    bool died = true;
    for (std::size_t n = 0; died; n += 3)
        for (std::size_t again = 1; again < 8; again += 2) {
            SCOPED_TRACE(std::to_string(n) + " then " + std::to_string(again));
            RealMachine machine;
            died = die_at(machine, n);
            machine.alive.clear();
            try {
                std::vector<std::string> ignored;
                machine.state = core::replay(machine.journal, ignored);
                machine.crash_after = machine.actions + again;
                machine.handle(core::Recover{});
                machine.settle();
            } catch (const Crash&) {
            }
            machine.restart();
            machine.settle();
            expect_as_at_start(machine);
            if (HasFailure()) return;
        }
}

TEST_F(CrashReal, AValueSetByHandBetweenTwoDaemonsStays) {
    RealMachine machine;
    machine.acquire("share=yes numa-balancing=off hugepages=2M=32M");
    ASSERT_EQ(host::read_knob(root(), kBalancing), "0");
    ASSERT_EQ(host::write_knob(root(), kBalancing, "3"), "3");
    machine.alive.clear();
    machine.restart();
    machine.settle();
    start_.knobs[kBalancing] = "3";
    expect_as_at_start(machine);
}

}  // namespace
}  // namespace numalease
