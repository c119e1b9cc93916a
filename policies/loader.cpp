#include "policies/loader.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <sstream>

#include "policies/variables.hpp"
#include "policies/yaml.hpp"

namespace numalease::policies {

using model::Result;

namespace {

/// Reading goes on only while nothing is wrong; the first thing that is wrong is what the user is told.
class Reader {
public:
    explicit Reader(const std::string& file) : file_(file) {}

    [[nodiscard]] bool ok() const { return !error_; }
    [[nodiscard]] model::Error error() const { return *error_; }

    void wrong(Position at, const std::string& what) {
        if (!error_) error_ = fail_at(file_, at, what).error();
    }

    struct Key {
        std::string_view name;
        std::function<void(const Item&)> read;
    };

    /// A map of the keys named, each at most once and none needed.
    void keys(const Item& map, std::string_view what, const std::vector<Key>& known) {
        if (map.kind != Item::Kind::map) return wrong(map.at, std::string(what) + ": must be a map of keys");
        for (const auto& item : map.items) {
            const auto key = std::ranges::find(known, std::string_view(item.key), &Key::name);
            if (key == known.end()) return wrong(item.key_at, unknown(item.key, known, &Key::name));
            if (ok()) key->read(item);
        }
    }

    template <class Range, class Projection>
    static std::string unknown(std::string_view key, const Range& known, Projection name) {
        std::string allowed;
        for (const auto& one : known) allowed += (allowed.empty() ? "" : ", ") + std::string(std::invoke(name, one));
        return "unknown key '" + std::string(key.substr(0, 64)) + "'; allowed: " + allowed;
    }

    std::string text(const Item& item) {
        if (item.kind != Item::Kind::text) wrong(item.at, label(item) + "must be text");
        return item.text;
    }

    /// Text without a line break: it becomes an argument, a variable or one line of output.
    std::string line(const Item& item) {
        if (item.text.find('\n') != std::string::npos) wrong(item.at, label(item) + "must be one line");
        return text(item);
    }

    std::vector<std::string> lines(const Item& item) {
        if (item.kind != Item::Kind::list) wrong(item.at, label(item) + "must be a list, like [a, b]");
        std::vector<std::string> out;
        for (const auto& one : item.items) out.push_back(line(one));
        return out;
    }

    bool flag(const Item& item) {
        const auto word = text(item);
        if (word == "yes" || word == "true") return true;
        if (word != "no" && word != "false") wrong(item.at, label(item) + "must be yes or no");
        return false;
    }

    unsigned number(const Item& item, unsigned max) {
        const auto value = model::parse_unsigned(text(item), item.key, max);
        if (!value) wrong(item.at, value.error().detail);
        return static_cast<unsigned>(value.value_or(0));
    }

    /// Text with ${cores} and kin, which are checked here so that a misspelt one is found before a lease is taken.
    std::string templated(const Item& item) {
        const auto value = line(item);
        if (const auto name = unknown_variable(value); !name.empty())
            wrong(item.at, label(item) + "unknown variable ${" + name + "}; allowed: " + variable_list());
        return value;
    }

    std::string word(const Item& item, const std::vector<std::string_view>& known) {
        auto value = line(item);
        if (std::ranges::find(known, std::string_view(value)) == known.end()) {
            std::string allowed;
            for (const auto& one : known) allowed += (allowed.empty() ? "" : ", ") + std::string(one);
            wrong(item.at, label(item) + "must be one of " + allowed);
        }
        return value;
    }

    std::string name(const Item& item) {
        const auto value = line(item);
        if (!is_name(value))
            wrong(item.at, label(item) + "'" + value.substr(0, 64) + "' is not a name (a-z 0-9 . _ -)");
        return value;
    }

    /// "GET /health": a request of HTTP, which may have a body on the same line.
    std::string request(const Item& item, std::string_view method) {
        auto value = line(item);
        if (!value.starts_with(std::string(method) + " /"))
            wrong(item.at, label(item) + "must be like '" + std::string(method) + " /path'");
        return value;
    }

    std::map<std::string, std::string> variables(const Item& item) {
        std::map<std::string, std::string> out;
        if (item.kind != Item::Kind::map) wrong(item.at, label(item) + "must be a map, like { NAME: value }");
        for (const auto& one : item.items) {
            if (!is_variable_name(one.key))
                wrong(one.key_at, "'" + one.key.substr(0, 64) + "' is not the name of an environment variable");
            out[one.key] = templated(one);
        }
        return out;
    }

    /// One request field, checked by setting it.
    std::pair<std::string, std::string> field(model::Request& request, const Item& item) {
        auto value = line(item);
        if (const auto set = model::set_field(request, item.key, value); ok() && !set)
            wrong(item.at, set.error().detail);
        return {item.key, std::move(value)};
    }

    static bool is_not_in_files(std::string_view field) {
        return std::ranges::find(kNotInFiles, field) != kNotInFiles.end();
    }

    /// Request fields, checked by the one table that the command line and the bus use too.
    std::vector<std::pair<std::string, std::string>> fields(const Item& item) {
        std::vector<std::pair<std::string, std::string>> out;
        if (item.kind != Item::Kind::map) wrong(item.at, label(item) + "must be a map of request fields");
        std::vector<std::string_view> allowed;
        for (const auto& field : model::request_fields())
            if (!is_not_in_files(field.name)) allowed.push_back(field.name);
        model::Request request;
        for (const auto& one : item.items) {
            if (std::ranges::find(allowed, std::string_view(one.key)) == allowed.end())
                wrong(one.key_at, unknown(one.key, allowed, std::identity()));
            out.push_back(field(request, one));
            if (!ok()) return {};
        }
        if (const auto valid = model::validate(request); !valid) wrong(item.key_at, valid.error().detail);
        return out;
    }

    static bool is_name(std::string_view text) {
        return !text.empty() && text.size() <= 64 && text.front() != '.' && text.front() != '-' &&
               std::ranges::all_of(text, [](char c) {
                   return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                          c == '_' || c == '-';
               });
    }

private:
    /// Said of one command or by the client alone; in a file they would make no sense.
    static constexpr std::array<std::string_view, 4> kNotInFiles{"policy", "name", "command", "memory-is-estimate"};

    static std::string label(const Item& item) { return item.key.empty() ? "" : item.key.substr(0, 64) + ": "; }

    static bool is_variable_name(std::string_view text) {
        return !text.empty() && text.size() <= 128 && !(text.front() >= '0' && text.front() <= '9') &&
               std::ranges::all_of(text, [](char c) {
                   return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
               });
    }

    const std::string& file_;
    std::optional<model::Error> error_;
};

model::EngineOption read_option(Reader& reader, const Item& item) {
    model::EngineOption option;
    reader.keys(
        item, item.key,
        {{"flags",
          [&](const Item& i) {
              option.flags = reader.lines(i);
              for (const auto& flag : option.flags)
                  if (flag.size() < 2 || flag.front() != '-') reader.wrong(i.at, "'" + flag + "' is no flag");
          }},
         {"env", [&](const Item& i) { option.env = reader.line(i); }},
         {"value", [&](const Item& i) { option.value = reader.templated(i); }},
         {"unset", [&](const Item& i) { option.unset = reader.lines(i); }},
         {"insert", [&](const Item& i) { option.insert = reader.flag(i); }},
         {"list", [&](const Item& i) { option.list = reader.flag(i); }},
         {"default", [&](const Item& i) { option.fallback = reader.line(i); }},
         {"unmaps", [&](const Item& i) { option.unmaps = reader.lines(i); }},
         {"only", [&](const Item& i) { option.only = reader.word(i, {"part", "whole", "node", "instance"}); }}});
    if (option.flags.empty() && option.env.empty()) reader.wrong(item.at, item.key + ": needs flags or env");
    if (option.insert && (option.flags.empty() || option.value.empty()))
        reader.wrong(item.at, item.key + ": insert needs flags and a value");
    return option;
}

model::Warming read_warming(Reader& reader, const Item& item) {
    model::Warming warming;
    constexpr unsigned kMostRounds = 100;
    reader.keys(item, "warm",
                {{"still",
                  [&](const Item& i) {
                      warming.still = reader.number(i, kMostRounds);
                      if (warming.still == 0) reader.wrong(i.at, "still: must be at least 1");
                  }},
                 {"most", [&](const Item& i) {
                      const auto most = model::parse_duration(reader.text(i));
                      if (!most) reader.wrong(i.at, "most: " + most.error().detail);
                      warming.most = most.value_or(warming.most);
                  }}});
    return warming;
}

model::Supervision read_supervision(Reader& reader, const Item& item) {
    model::Supervision run;
    bool on_failure = false;
    reader.keys(item, "run",
                {{"per",
                  [&](const Item& i) {
                      reader.word(i, {"node"});
                      run.per_node = true;
                  }},
                 {"on-failure",
                  [&](const Item& i) {
                      on_failure = true;
                      run.restart = reader.word(i, {"end", "restart"}) == "restart";
                  }},
                 {"warm", [&](const Item& i) { run.warm = read_warming(reader, i); }}});
    if (on_failure && !run.per_node) reader.wrong(item.at, "on-failure: needs per: node");
    if (run.warm && run.per_node) reader.wrong(item.at, "warm: not with per: node");
    return run;
}

std::string stem(const std::string& file) {
    auto name = file.substr(file.rfind('/') + 1);
    if (name.ends_with(".yaml")) name.resize(name.size() - 5);
    return name;
}

}  // namespace

Result<model::Policy> parse_policy(const std::string& text, const std::string& file) {
    const auto document = read_yaml(text, file);
    if (!document) return std::unexpected(document.error());
    model::Policy policy;
    policy.name = stem(file);
    policy.file = file;
    Reader reader(file);
    reader.keys(*document, "a policy",
                {{"name", [&](const Item& i) { policy.name = reader.name(i); }},
                 {"why", [&](const Item& i) { policy.why = reader.text(i); }},
                 {"evidence", [&](const Item& i) { policy.evidence = reader.text(i); }},
                 {"request", [&](const Item& i) { policy.fields = reader.fields(i); }},
                 {"env", [&](const Item& i) { policy.env = reader.variables(i); }},
                 {"run", [&](const Item& i) { policy.run = read_supervision(reader, i); }}});
    if (!Reader::is_name(policy.name)) reader.wrong({}, "the file's name is no policy name; add a name: key");
    if (!reader.ok()) return std::unexpected(reader.error());
    return policy;
}

Result<model::Engine> parse_engine(const std::string& text, const std::string& file) {
    const auto document = read_yaml(text, file);
    if (!document) return std::unexpected(document.error());
    model::Engine engine;
    engine.name = stem(file);
    engine.file = file;
    Reader reader(file);
    reader.keys(*document, "an engine",
                {{"name", [&](const Item& i) { engine.name = reader.name(i); }},
                 {"programs", [&](const Item& i) { engine.programs = reader.lines(i); }},
                 {"folders",
                  [&](const Item& i) {
                      engine.folders = reader.lines(i);
                      for (const auto& folder : engine.folders)
                          if (folder.empty() || folder.find('/') != std::string::npos)
                              reader.wrong(i.at, "folders: '" + folder + "' is not the name of one folder");
                  }},
                 {"options",
                  [&](const Item& i) {
                      if (i.kind != Item::Kind::map) reader.wrong(i.at, "options: must be a map of options");
                      for (const auto& one : i.items) engine.options[one.key] = read_option(reader, one);
                  }},
                 {"env", [&](const Item& i) { engine.env = reader.variables(i); }},
                 {"servers", [&](const Item& i) { engine.servers = reader.lines(i); }},
                 {"ready", [&](const Item& i) { engine.ready = reader.request(i, "GET"); }},
                 {"warm", [&](const Item& i) { engine.warm = reader.request(i, "POST"); }},
                 {"hugepages", [&](const Item& i) { engine.hugepages = reader.line(i); }},
                 {"facts", [&](const Item& i) { engine.facts = reader.lines(i); }}});
    if (!Reader::is_name(engine.name)) reader.wrong({}, "the file's name is no engine name; add a name: key");
    if (engine.programs.empty() && !engine.folders.empty()) reader.wrong({}, "folders: needs programs");
    for (const auto& server : engine.servers)
        if (std::ranges::find(engine.programs, server) == engine.programs.end())
            reader.wrong({}, "servers: '" + server + "' is none of the programs");
    if (!reader.ok()) return std::unexpected(reader.error());
    return engine;
}

namespace {

/// As the package ships it: every line a comment.
bool says_nothing(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        if (const auto first = line.find_first_not_of(" \t\r"); first != std::string::npos && line[first] != '#')
            return false;
    return true;
}

}  // namespace

Result<LeaseFile> parse_lease(const std::string& text, const std::string& file) {
    if (says_nothing(text)) return LeaseFile{};
    const auto document = read_yaml(text, file);
    if (!document) return std::unexpected(document.error());
    LeaseFile lease;
    Reader reader(file);
    model::Request request;
    std::vector<Reader::Key> keys{
        {"engine", [&](const Item& i) { lease.engine = reader.name(i); }},
        {"model", [&](const Item& i) { lease.model = reader.line(i); }},
        {"policy", [&](const Item& i) { lease.fields.emplace_back("policy", reader.name(i)); }}};
    for (const auto& field : model::request_fields()) {
        if (Reader::is_not_in_files(field.name)) continue;
        keys.push_back({field.name, [&](const Item& i) { lease.fields.push_back(reader.field(request, i)); }});
    }
    reader.keys(*document, "a lease", keys);
    if (const auto valid = model::validate(request); reader.ok() && !valid)
        reader.wrong(document->at, valid.error().detail);
    if (!reader.ok()) return std::unexpected(reader.error());
    return lease;
}

Result<SiteConfig> parse_site_config(const std::string& text, const std::string& file) {
    if (says_nothing(text)) return SiteConfig{};
    const auto document = read_yaml(text, file);
    if (!document) return std::unexpected(document.error());
    constexpr unsigned kMostLeases = 65536;
    SiteConfig config;
    Reader reader(file);
    reader.keys(
        *document, "the configuration",
        {{"defaults", [&](const Item& i) { config.defaults = reader.fields(i); }},
         {"group", [&](const Item& i) { config.group = reader.name(i); }},
         {"max-leases-per-user", [&](const Item& i) { config.max_leases_per_user = reader.number(i, kMostLeases); }},
         {"max-queued-per-user", [&](const Item& i) { config.max_queued_per_user = reader.number(i, kMostLeases); }},
         {"reserve", [&](const Item& i) {
              const auto size = model::parse_bytes(reader.text(i));
              if (!size) reader.wrong(i.at, "reserve: " + size.error().detail);
              config.reserve = size.value_or(config.reserve);
          }}});
    if (!reader.ok()) return std::unexpected(reader.error());
    return config;
}

}  // namespace numalease::policies
