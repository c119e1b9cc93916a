#pragma once

#include <termios.h>

#include <functional>
#include <string>
#include <vector>

#include "model/units.hpp"

namespace numalease::client {

/// The whole of a terminal, for as long as this lives: its other screen, no cursor, keys as they are pressed. However
/// we leave, short of SIGKILL, it is as it was.
class Screen {
public:
    Screen();
    Screen(const Screen&) = delete;
    Screen& operator=(const Screen&) = delete;
    ~Screen();

    struct Size {
        std::size_t columns = 80;
        std::size_t rows = 24;
    };
    [[nodiscard]] static Size size();
    /// False where the terminal is gone.
    bool show(const std::vector<std::string>& lines);
    enum class Event { time, resized, quit };
    /// Until `time` is over, the size changes, or somebody wants to leave: `q`, Ctrl-C, SIGTERM, SIGHUP. Ctrl-Z stops
    /// us with the terminal as it was.
    Event wait(model::Micros time);

private:
    void enter();
    void leave();

    int signals_;  ///< signalfd
    termios before_{};
    bool has_keys_ = false;
};

}  // namespace numalease::client
