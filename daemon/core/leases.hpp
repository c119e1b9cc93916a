#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "model/lease.hpp"

namespace numalease::core {

/// Leases by id. A step copies the state, and thousands of requests may wait: copies share every lease that neither has
/// changed since. Looking is const; `edit`, `at` and `[]` of one that is not const make the lease its own first.
/// A `const Lease&` taken before an edit of the same lease shows what it was.
class Leases {
    using Map = std::map<model::LeaseId, std::shared_ptr<model::Lease>>;

public:
    struct Entry {
        const model::LeaseId& first;
        const model::Lease& second;
    };
    class Iterator {
    public:
        using value_type = Entry;
        using difference_type = std::ptrdiff_t;
        using iterator_concept = std::forward_iterator_tag;

        Iterator() = default;
        explicit Iterator(Map::const_iterator at) : at_(at) {}
        Entry operator*() const { return {at_->first, *at_->second}; }
        struct Arrow {
            Entry entry;
            const Entry* operator->() const { return &entry; }
        };
        Arrow operator->() const { return {**this}; }
        Iterator& operator++() {
            ++at_;
            return *this;
        }
        Iterator operator++(int) { return Iterator(at_++); }
        bool operator==(const Iterator&) const = default;

    private:
        Map::const_iterator at_;
    };

    [[nodiscard]] Iterator begin() const { return Iterator(leases_.begin()); }
    [[nodiscard]] Iterator end() const { return Iterator(leases_.end()); }
    [[nodiscard]] Iterator find(const model::LeaseId& id) const { return Iterator(leases_.find(id)); }
    [[nodiscard]] bool contains(const model::LeaseId& id) const { return leases_.contains(id); }
    [[nodiscard]] std::size_t size() const { return leases_.size(); }
    [[nodiscard]] bool empty() const { return leases_.empty(); }
    [[nodiscard]] const model::Lease& at(const model::LeaseId& id) const { return *leases_.at(id); }

    model::Lease& at(const model::LeaseId& id) { return own(leases_.at(id)); }
    model::Lease& edit(const model::LeaseId& id) { return at(id); }
    /// Makes it where there is none.
    model::Lease& operator[](const model::LeaseId& id) {
        auto& place = leases_[id];
        if (!place) place = std::make_shared<model::Lease>();
        return own(place);
    }
    void add(model::Lease lease) {
        auto& place = leases_[lease.id];
        place = std::make_shared<model::Lease>(std::move(lease));
    }
    void erase(const model::LeaseId& id) { leases_.erase(id); }

    /// The ids of those of which `wanted` is true, for a loop that edits.
    template <class Wanted>
    [[nodiscard]] std::vector<model::LeaseId> where(Wanted&& wanted) const {
        std::vector<model::LeaseId> out;
        for (const auto& [id, lease] : leases_)
            if (wanted(*lease)) out.push_back(id);
        return out;
    }

    /// It outlives every change.
    [[nodiscard]] std::shared_ptr<const model::Lease> share(const model::LeaseId& id) const { return leases_.at(id); }

    /// True where both have the very same lease: cheap, and never wrong. False says nothing.
    [[nodiscard]] bool shares(const Leases& other, const model::LeaseId& id) const {
        const auto one = leases_.find(id);
        const auto two = other.leases_.find(id);
        return one != leases_.end() && two != other.leases_.end() && one->second == two->second;
    }

    bool operator==(const Leases& other) const {
        return std::ranges::equal(leases_, other.leases_, [](const auto& one, const auto& two) {
            return one.first == two.first && (one.second == two.second || *one.second == *two.second);
        });
    }

private:
    static model::Lease& own(std::shared_ptr<model::Lease>& lease) {
        if (lease.use_count() > 1) lease = std::make_shared<model::Lease>(*lease);
        return *lease;
    }

    Map leases_;
};

}  // namespace numalease::core
