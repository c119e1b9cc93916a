#include "model/levers.hpp"
#include "policies/loader.hpp"
#include "policies/reader.hpp"

namespace numalease::policies {

using model::Limits;
using model::Result;

namespace {

constexpr unsigned kMostPriority = 1000;
constexpr unsigned kMostWeight = 10'000;
constexpr unsigned kMostLeases = 65'536;
constexpr unsigned kMostGpus = 65'536;
constexpr std::size_t kLongestAccount = 256;
constexpr std::size_t kMostClasses = 64;
constexpr std::size_t kMostGroups = 256;  // each is looked up for each user

/// Words that may stand in a list.
using Known = std::vector<std::string>;

class SiteReader : public Reader {
public:
    using Reader::Reader;

    model::Micros duration_or_never(const Item& item) {
        return item.kind == Item::Kind::text && item.text == "never" ? model::kNever : duration(item);
    }

    /// The same, and not nothing.
    model::Micros time(const Item& item) {
        const auto value = duration_or_never(item);
        if (value == model::Micros(0)) wrong(item.at, item.key + ": must be longer than nothing");
        return value;
    }

    void check_known(const Item& item, const std::string& name, std::string_view what, const Known& known) {
        if (!ok() || std::ranges::find(known, name) != known.end()) return;
        std::string all;
        for (const auto& one : known) all += (all.empty() ? "" : ", ") + one;
        wrong(item.at, "'" + name.substr(0, 64) + "' is no " + std::string(what) + "; there are: " + all);
    }

    std::set<std::string> names(const Item& list) {
        std::set<std::string> out;
        for (const auto& name : lines(list))
            if (!out.insert(name).second) wrong(list.at, list.key + ": '" + name.substr(0, 64) + "' is there twice");
        return out;
    }

    std::set<std::string> names_of(const Item& list, std::string_view what, const Known& known) {
        auto out = names(list);
        for (const auto& one : list.items) check_known(one, one.text, what, known);
        return out;
    }

    /// "" is a request that names none.
    std::set<std::string> policies(const Item& list) {
        auto out = names(list);
        for (const auto& one : list.items)
            if (!one.text.empty()) name(one);
        return out;
    }
};

void check_count(SiteReader& reader, const Item& map, std::size_t most) {
    if (map.items.size() > most) reader.wrong(map.at, map.key + ": more than " + std::to_string(most));
}

model::Scheduling read_classes(SiteReader& reader, const Item& map, model::Scheduling scheduling) {
    if (map.kind != Item::Kind::map) reader.wrong(map.at, "classes: must be a map, like {batch: {priority: 0}}");
    check_count(reader, map, kMostClasses);
    for (const auto& one : map.items) {
        if (!SiteReader::is_name(one.key))
            reader.wrong(one.key_at, "'" + one.key.substr(0, 64) + "' is not the name of a class (a-z 0-9 . _ -)");
        if (!reader.ok()) break;
        auto& job_class = scheduling.classes[one.key];
        reader.keys(one, one.key,
                    {{"priority",
                      [&](const Item& i) { job_class.priority = static_cast<int>(reader.number(i, kMostPriority)); }},
                     {"time", [&](const Item& i) { job_class.time = reader.time(i); }}});
        if (job_class.time == model::kNever) job_class.time.reset();
    }
    return scheduling;
}

void read_scheduling(SiteReader& reader, const Item& map, model::Scheduling& scheduling) {
    reader.keys(map, "scheduling",
                {{"half-life", [&](const Item& i) { scheduling.half_life = reader.time(i); }},
                 {"aging", [&](const Item& i) { scheduling.aging = reader.duration_or_never(i); }}});
}

Limits read_limits(SiteReader& reader, const Item& map, const Known& classes, const Known& levers) {
    Limits out{.weight = 0};
    reader.keys(map, map.key,
                {{"weight",
                  [&](const Item& i) {
                      out.weight = reader.number(i, kMostWeight);
                      if (out.weight == 0) reader.wrong(i.at, "weight: must be at least 1");
                  }},
                 {"cores", [&](const Item& i) { out.cores = reader.number(i, model::kCpuLimit); }},
                 {"nodes", [&](const Item& i) { out.nodes = reader.number(i, model::kNodeLimit); }},
                 {"gpus", [&](const Item& i) { out.gpus = reader.number(i, kMostGpus); }},
                 {"memory", [&](const Item& i) { out.memory = reader.bytes(i); }},
                 {"hugepages", [&](const Item& i) { out.hugepages = reader.bytes(i); }},
                 {"leases", [&](const Item& i) { out.leases = reader.number(i, kMostLeases); }},
                 {"queued", [&](const Item& i) { out.queued = reader.number(i, kMostLeases); }},
                 {"time", [&](const Item& i) { out.time = reader.time(i); }},
                 {"classes", [&](const Item& i) { out.classes = reader.names_of(i, "class", classes); }},
                 {"policies", [&](const Item& i) { out.policies = reader.policies(i); }},
                 {"levers", [&](const Item& i) { out.levers = reader.names_of(i, "lever", levers); }}});
    return out;
}

/// By account. One that nobody has is no mistake: it may come from a directory service, later.
std::map<std::string, Limits> read_accounts(SiteReader& reader, const Item& map, const Known& classes,
                                            const Known& levers) {
    std::map<std::string, Limits> out;
    if (map.kind != Item::Kind::map) reader.wrong(map.at, map.key + ": must be a map, like {NAME: {cores: 8}}");
    for (const auto& one : map.items) {
        if (one.key.empty() || one.key.size() > kLongestAccount || one.key.find_first_of(":\n") != std::string::npos)
            reader.wrong(one.key_at, map.key + ": '" + one.key.substr(0, 64) + "' is not the name of an account");
        out[one.key] = read_limits(reader, one, classes, levers);
    }
    return out;
}

}  // namespace

Result<SiteConfig> parse_site_config(const std::string& text, const std::string& file) {
    if (says_nothing(text)) return SiteConfig{};
    const auto document = read_yaml(text, file);
    if (!document) return std::unexpected(document.error());
    SiteConfig config;
    SiteReader reader(file);
    // What names classes is read when they are all known.
    std::map<std::string, const Item*> later;
    const auto keep = [&](const Item& i) { later[i.key] = &i; };
    reader.keys(
        *document, "the configuration",
        {{"defaults", keep},
         {"group", [&](const Item& i) { config.group = reader.name(i); }},
         {"reserve", [&](const Item& i) { config.reserve = reader.bytes(i); }},
         {"overcommit", [&](const Item& i) { config.overcommit = reader.word(i, {"refuse", "warn"}) == "warn"; }},
         {"scheduling", [&](const Item& i) { read_scheduling(reader, i, config.scheduling); }},
         {"classes", [&](const Item& i) { config.scheduling = read_classes(reader, i, std::move(config.scheduling)); }},
         {"limits", keep},
         {"users", keep},
         {"groups", keep}});
    Known classes;
    for (const auto& [name, job_class] : config.scheduling.classes) classes.push_back(name);
    Known levers;
    for (const auto& lever : model::kernel_levers()) levers.emplace_back(lever.field);
    if (const auto* item = later["defaults"]; item != nullptr) {
        config.defaults = reader.fields(*item);
        for (const auto& one : item->items)
            if (one.key == "class") reader.check_known(one, one.text, "class", classes);
    }
    if (const auto* item = later["limits"]; item != nullptr) {
        auto limits = read_limits(reader, *item, classes, levers);
        model::fill(limits, config.limits);
        config.limits = std::move(limits);
    }
    if (const auto* item = later["users"]; item != nullptr)
        config.users = read_accounts(reader, *item, classes, levers);
    if (const auto* item = later["groups"]; item != nullptr) {
        check_count(reader, *item, kMostGroups);
        config.groups = read_accounts(reader, *item, classes, levers);
    }
    if (!reader.ok()) return std::unexpected(reader.error());
    return config;
}

}  // namespace numalease::policies
