#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "model/lease.hpp"

namespace numalease::core {

/// Leases by id. A step copies the state, and thousands of requests may wait: copies share every lease that neither has
/// changed since. Looking is const; `edit`, `at` and `[]` of one that is not const make the lease its own first.
/// A `const Lease&` taken before an edit of the same lease shows what it was.
///
/// Those that do not wait are few, and most questions are about them alone: `begun` are all of those. Among them may be
/// some that wait, touched since `settle`.
class Leases {
    struct Slot {
        model::LeaseId id;
        std::shared_ptr<model::Lease> lease;
    };
    using Slots = std::vector<Slot>;  // by id; in one piece, since every step copies and walks it

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
        explicit Iterator(Slots::const_iterator at) : at_(at) {}
        Entry operator*() const { return {at_->id, *at_->lease}; }
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
        Slots::const_iterator at_;
    };

    [[nodiscard]] Iterator begin() const { return Iterator(leases_.begin()); }
    [[nodiscard]] Iterator end() const { return Iterator(leases_.end()); }
    [[nodiscard]] Iterator find(const model::LeaseId& id) const {
        return Iterator(leases_.begin() + static_cast<std::ptrdiff_t>(index_of(id)));
    }
    [[nodiscard]] bool contains(const model::LeaseId& id) const { return get(id) != nullptr; }
    [[nodiscard]] std::size_t size() const { return leases_.size(); }
    [[nodiscard]] bool empty() const { return leases_.empty(); }
    [[nodiscard]] const model::Lease& at(const model::LeaseId& id) const { return *leases_.at(index_of(id)).lease; }
    /// Null where there is none.
    [[nodiscard]] const model::Lease* get(const model::LeaseId& id) const {
        const auto index = index_of(id);
        return index == size() ? nullptr : leases_[index].lease.get();
    }

    model::Lease& at(const model::LeaseId& id) { return own(leases_.at(index_of(id))); }
    model::Lease& edit(const model::LeaseId& id) { return at(id); }
    /// Makes it where there is none.
    model::Lease& operator[](const model::LeaseId& id) {
        auto& slot = made(id);
        if (!slot.lease) slot.lease = std::make_shared<model::Lease>();
        return own(slot);
    }
    void add(model::Lease lease) {
        begun_.insert(lease.id);
        auto& slot = made(lease.id);
        slot.lease = std::make_shared<model::Lease>(std::move(lease));
    }
    void erase(const model::LeaseId& id) {
        begun_.erase(id);
        if (const auto index = index_of(id); index != size())
            leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(index));
    }

    [[nodiscard]] auto begun() const {
        return begun_ | std::views::transform([this](const model::LeaseId& id) { return Entry{id, at(id)}; });
    }
    /// When no reference to one that may be changed is left.
    void settle() {
        std::erase_if(begun_, [this](const model::LeaseId& id) {
            return std::as_const(*this).at(id).state == model::LeaseState::queued;
        });
    }

    /// The ids of those of which `wanted` is true, for a loop that edits.
    template <class Wanted>
    [[nodiscard]] std::vector<model::LeaseId> where(Wanted&& wanted) const {
        return where_in(*this, wanted);
    }
    template <class Wanted>
    [[nodiscard]] std::vector<model::LeaseId> begun_where(Wanted&& wanted) const {
        return where_in(begun(), wanted);
    }

    /// It outlives every change.
    [[nodiscard]] std::shared_ptr<const model::Lease> share(const model::LeaseId& id) const {
        return leases_.at(index_of(id)).lease;
    }

    /// The ids of those that may have changed, come or gone; of all others both have the very same. Looks at no lease.
    [[nodiscard]] std::vector<model::LeaseId> changed_since(const Leases& before) const {
        std::vector<model::LeaseId> out;
        auto old = before.leases_.begin();
        for (const auto& [id, lease] : leases_) {
            for (; old != before.leases_.end() && old->id < id; ++old) out.push_back(old->id);
            const bool known = old != before.leases_.end() && old->id == id;
            if (!known || old->lease != lease) out.push_back(id);
            if (known) ++old;
        }
        for (; old != before.leases_.end(); ++old) out.push_back(old->id);
        return out;
    }

    bool operator==(const Leases& other) const {
        return std::ranges::equal(leases_, other.leases_, [](const Slot& one, const Slot& two) {
            return one.id == two.id && (one.lease == two.lease || *one.lease == *two.lease);
        });
    }

private:
    /// `size()` where there is none.
    [[nodiscard]] std::size_t index_of(const model::LeaseId& id) const {
        const auto found = std::ranges::lower_bound(leases_, id, {}, &Slot::id);
        const bool is_there = found != leases_.end() && found->id == id;
        return is_there ? static_cast<std::size_t>(found - leases_.begin()) : size();
    }
    Slot& made(const model::LeaseId& id) {
        const auto place = std::ranges::lower_bound(leases_, id, {}, &Slot::id);
        if (place != leases_.end() && place->id == id) return *place;
        return *leases_.insert(place, Slot{.id = id, .lease = nullptr});
    }
    model::Lease& own(Slot& slot) {
        begun_.insert(slot.id);
        if (slot.lease.use_count() > 1) slot.lease = std::make_shared<model::Lease>(*slot.lease);
        return *slot.lease;
    }
    template <class Range>
    static std::vector<model::LeaseId> where_in(const Range& range, const auto& wanted) {
        std::vector<model::LeaseId> out;
        for (const auto& [id, lease] : range)
            if (wanted(lease)) out.push_back(id);
        return out;
    }

    Slots leases_;
    std::set<model::LeaseId> begun_;
};

}  // namespace numalease::core
