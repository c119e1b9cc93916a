#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "model/error.hpp"

namespace numalease::client {

/// Stays while others run: starts them, hands signals on to them, and ends with the status of the first that failed.
/// Killed itself, it leaves them running: their lease is theirs for as long as they live.
/// Thread: the only one of its process.
class Supervisor {
public:
    using Clock = std::chrono::steady_clock;
    /// Runs in a child, with signals as they were; it is to become something else, or returns the child's status.
    using Become = std::function<int()>;

    struct Patience {
        Clock::duration hand_on = std::chrono::seconds(5);  ///< of a signal whose sender sends it to all by itself
        Clock::duration kill = std::chrono::seconds(30);    ///< from SIGTERM to SIGKILL
        Clock::duration again = std::chrono::seconds(1);    ///< from a failure to the next start
        Clock::duration calm = std::chrono::minutes(5);     ///< who ran for so long has failed for the first time
        unsigned failures = 5;                              ///< in a row are given up on
    };

    explicit Supervisor(Patience patience);
    Supervisor() : Supervisor(Patience()) {}
    Supervisor(const Supervisor&) = delete;
    Supervisor& operator=(const Supervisor&) = delete;
    ~Supervisor();

    /// `name` is for people: "instance 1 on node 0".  Errors: io.
    model::Result<pid_t> start(std::string name, Become become);

    /// One that works beside them, and ends with them and with us. Each line that it writes to the descriptor it is
    /// given comes to `hear`; once it has ended by itself, `done` hears whether that was with 0.
    model::Result<void> help(std::function<int(int lines)> work, std::function<void(const std::string&)> hear,
                             std::function<void(bool)> done);

    /// Until all have ended. `restart`: who fails is started again; else it ends the others.
    int watch(bool restart);

private:
    struct Ward {
        std::string name;
        Become become;
        pid_t pid = 0;  ///< 0: does not run
        Clock::time_point started;
        Clock::time_point again = Clock::time_point::max();  ///< to be started then
        unsigned failures = 0;
        int status = 0;
    };

    model::Result<pid_t> fork_with(const Become& become);
    [[nodiscard]] bool is_over() const;
    [[nodiscard]] int patience_left() const;
    void take_signals();
    void take(int signal, bool to_all_by_itself);
    void reap(bool restart);
    void ended(Ward& ward, int status, bool restart);
    void hand_on(int signal);
    void end_the_others();
    void do_what_is_due();
    void hear_helper();
    void end_helper();

    Patience patience_;
    sigset_t before_{};
    int signals_ = -1;
    std::vector<Ward> wards_;
    int status_ = 0;
    bool ending_ = false;  ///< nobody is started any more
    int held_back_ = 0;    ///< a signal that goes to those that are still there then
    Clock::time_point hand_on_at_ = Clock::time_point::max();
    Clock::time_point kill_at_ = Clock::time_point::max();

    pid_t helper_ = 0;
    int lines_ = -1;
    std::string line_;
    std::function<void(const std::string&)> hear_;
    std::function<void(bool)> done_;
};

/// As a shell has it: the exit status, or 128 and the signal.
int shell_status(int wait_status);

}  // namespace numalease::client
