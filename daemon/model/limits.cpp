#include "model/limits.hpp"

#include <algorithm>

namespace numalease::model {

namespace {

/// Every limit that may be left unsaid.
template <class Visit>
void each_limit(Visit visit) {
    visit("cores", &Limits::cores);
    visit("nodes", &Limits::nodes);
    visit("gpus", &Limits::gpus);
    visit("memory", &Limits::memory);
    visit("hugepages", &Limits::hugepages);
    visit("leases", &Limits::leases);
    visit("queued", &Limits::queued);
    visit("time", &Limits::time);
    visit("classes", &Limits::classes);
    visit("policies", &Limits::policies);
    visit("levers", &Limits::levers);
}

Value as_value(unsigned number) { return number; }
Value as_value(Bytes bytes) { return bytes; }
Value as_value(Micros time) { return static_cast<std::uint64_t>(time.count()); }
Value as_value(const std::set<std::string>& names) { return Value::Strings(names.begin(), names.end()); }

void take_more(std::set<std::string>& names, const std::set<std::string>& others) {
    names.insert(others.begin(), others.end());
}
template <class Amount>
void take_more(Amount& amount, const Amount& other) {
    amount = std::max(amount, other);
}

}  // namespace

Dict to_dict(const Scheduling& scheduling) {
    Dict classes;
    for (const auto& [name, job_class] : scheduling.classes) {
        Dict one{{"priority", static_cast<std::uint64_t>(job_class.priority)}};
        if (job_class.time) one["time"] = as_value(*job_class.time);
        classes[name] = std::move(one);
    }
    return {{"half_life", as_value(scheduling.half_life)},
            {"aging", as_value(scheduling.aging)},
            {"classes", std::move(classes)}};
}

Dict to_dict(const Limits& limits) {
    Dict out;
    if (limits.weight != 0) out["weight"] = limits.weight;
    each_limit([&](const char* name, auto member) {
        if (const auto& said = limits.*member) out[name] = as_value(*said);
    });
    return out;
}

void fill(Limits& limits, const Limits& other) {
    if (limits.weight == 0) limits.weight = other.weight;
    each_limit([&](const char*, auto member) {
        if (!(limits.*member)) limits.*member = other.*member;
    });
}

void widen(Limits& limits, const Limits& other) {
    limits.weight = std::max(limits.weight, other.weight);
    each_limit([&](const char*, auto member) {
        if (!(other.*member)) return;
        if (limits.*member)
            take_more(*(limits.*member), *(other.*member));
        else
            limits.*member = other.*member;
    });
}

}  // namespace numalease::model
