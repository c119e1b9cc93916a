#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "service/event.hpp"

namespace numalease::service {

/// Log lines about what was denied: one a second for each user, so that nobody can fill the log. What came between is
/// a number in the next line.
class Denials {
public:
    explicit Denials(Later& later) : later_(later) {}

    void say(unsigned uid, std::string text, std::string reason);

private:
    struct Unsaid {
        std::uint64_t count = 0;
        std::string text;  ///< of the latest
        std::string reason;
    };
    void lift(unsigned uid);

    Later& later_;
    std::map<unsigned, Unsaid> quiet_;  ///< who was in the log within the last second
};

}  // namespace numalease::service
