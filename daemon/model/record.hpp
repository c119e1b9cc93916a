#pragma once

#include <string>
#include <string_view>

#include "model/value.hpp"

namespace numalease::model {

/// One line of the journal: the whole state of one entity after a step, or that it is gone. Replay keeps the last.
struct Record {
    std::string type;  ///< "lease", "row" or "counter"
    std::string key;   ///< lease id, knob, or counter name
    bool gone = false;
    Dict body;

    bool operator==(const Record&) const = default;
};

/// `type key gone|body`, one line, printable ASCII.
std::string to_line(const Record& record);
Result<Record> record_from_line(std::string_view line);

}  // namespace numalease::model
