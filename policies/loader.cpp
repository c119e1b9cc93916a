#include "policies/loader.hpp"

#include <algorithm>

#include "policies/reader.hpp"

namespace numalease::policies {

using model::Result;

namespace {

std::map<std::string, unsigned> read_copies(Reader& reader, const Item& map) {
    constexpr unsigned kMost = 64;
    std::map<std::string, unsigned> out;
    if (map.kind != Item::Kind::map) reader.wrong(map.at, "copies: must be a map, like {mirror: 2}");
    for (const auto& one : map.items) {
        const auto count = reader.number(one, kMost);
        if (count == 0) reader.wrong(one.at, one.key + ": must be at least 1");
        out[one.key] = count;
    }
    return out;
}

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
         {"behind-program", [&](const Item& i) { option.behind_program = reader.flag(i); }},
         {"hub", [&](const Item& i) { option.hub = reader.flag(i); }},
         {"default", [&](const Item& i) { option.fallback = reader.line(i); }},
         {"unmaps", [&](const Item& i) { option.unmaps = reader.lines(i); }},
         {"copies", [&](const Item& i) { option.copies = read_copies(reader, i); }},
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
                 {"most", [&](const Item& i) { warming.most = reader.duration(i); }}});
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

}  // namespace numalease::policies
