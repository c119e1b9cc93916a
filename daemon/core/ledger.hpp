#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/observed.hpp"
#include "model/lease.hpp"
#include "model/record.hpp"

namespace numalease::core {

/// A lease's part of a huge-page pool.  Units: pages.
struct PoolShare {
    std::uint64_t asked = 0;
    std::uint64_t at_least = 0;
    std::uint64_t got = 0;   ///< new free pages, ours to give back
    bool done = false;       ///< the growth was tried; `got` is what came of it
    bool releasing = false;  ///< to be given back

    bool operator==(const PoolShare&) const = default;
};

/// One knob that is, or may be, off its prior. The unit of the journal.
///
/// Life: created with the prior before the first write → `writing` set and journalled → the write → read back →
/// `written` → … → `writing` = prior → read back equals the prior → the row is forgotten.
struct Row {
    model::KnobKey key;
    std::string prior;                            ///< shared: value before the first holder. First prior wins
    std::optional<std::string> written;           ///< last value of ours that read back
    std::optional<std::string> writing;           ///< recorded, perhaps written, not yet read back
    std::map<model::LeaseId, std::string> wants;  ///< shared: who wants what; all equal
    std::map<model::LeaseId, PoolShare> shares;   ///< pool
    std::uint64_t pool_expected = 0;              ///< pool: persistent count we last left behind
    std::uint64_t pool_surplus = 0;               ///< pool: surplus pages when the growth in `writing` began
    std::uint64_t taken_over =
        0;                    ///< pool: a bystander's surplus pages that growing made persistent; his again at the end
    model::LeaseId pool_for;  ///< pool: whose pages `writing` is about
    std::set<model::LeaseId> settling;  ///< leases whose ending waits for this row

    // Not journalled: a restart begins with nothing in flight and every retry due.
    bool in_flight = false;
    std::uint64_t op = 0;
    unsigned failures = 0;  ///< of restoring, in a row; drives the retry time
    model::Micros retry_at{0};
    std::string stuck;     ///< why it is not restored yet, for people
    std::string reported;  ///< foreign value already reported while held

    bool operator==(const Row&) const = default;
};

/// Every row, by knob; the order is the order of restoring.
using Ledger = std::map<model::KnobKey, Row>;

}  // namespace numalease::core
