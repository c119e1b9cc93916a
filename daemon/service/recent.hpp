#pragma once

#include <cstddef>
#include <map>

#include "model/units.hpp"

namespace numalease::service {

/// Answers that stay good for a while, so that asking often costs no more than asking once. Never more than `most`.
template <class Key, class Value>
class Recent {
public:
    explicit Recent(model::Micros keep, std::size_t most = 1024) : keep_(keep), most_(most) {}

    /// What `make` said less than `keep` ago, else what it says now. Good until the next call.
    template <class Make>
    const Value& get(const Key& key, model::Micros now, Make make) {
        const auto is_old = [&](const Item& item) { return now - item.since >= keep_; };
        if (const auto found = items_.find(key); found != items_.end() && !is_old(found->second))
            return found->second.value;
        if (items_.size() >= most_) std::erase_if(items_, [&](const auto& it) { return is_old(it.second); });
        if (items_.size() >= most_) items_.clear();
        return items_.insert_or_assign(key, Item{.value = make(), .since = now}).first->second.value;
    }

    void clear() { items_.clear(); }

private:
    struct Item {
        Value value;
        model::Micros since;
    };
    model::Micros keep_;
    std::size_t most_;
    std::map<Key, Item> items_;
};

}  // namespace numalease::service
