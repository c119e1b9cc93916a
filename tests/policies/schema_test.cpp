#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "model/levers.hpp"
#include "policies/loader.hpp"
#include "policies/yaml.hpp"

/// The schemas for editors say what the loader takes. They are JSON, which is YAML, so our reader reads them.
namespace numalease::policies {
namespace {

namespace fs = std::filesystem;
using testing::UnorderedElementsAreArray;

std::string text_of(const fs::path& file) {
    std::ostringstream out;
    out << std::ifstream(file).rdbuf();
    return out.str();
}

Item read(const fs::path& file) {
    auto item = read_yaml(text_of(file), file.string());
    if (!item) ADD_FAILURE() << item.error().detail;
    return item.value_or(Item{});
}

const Item* member(const Item& map, std::string_view key) {
    const auto found = std::ranges::find(map.items, key, &Item::key);
    return map.kind == Item::Kind::map && found != map.items.end() ? &*found : nullptr;
}

std::vector<std::string> keys_of(const Item* map) {
    std::vector<std::string> out;
    if (map != nullptr)
        for (const auto& item : map->items) out.push_back(item.key);
    return out;
}

/// As much of draft 7 as the schemas use; another word in one is a failure.
class Schema {
public:
    explicit Schema(const std::string& name) : root_(read(fs::path(NUMALEASE_SHIPPED) / "schema" / name)) {}

    [[nodiscard]] std::string objection(const Item& value) const { return objection(root_, value); }
    [[nodiscard]] const Item& root() const { return root_; }

private:
    [[nodiscard]] std::string objection(const Item& schema, const Item& value) const {
        for (const auto& word : schema.items)
            if (auto what = objection(word, schema, value); !what.empty()) return what;
        return {};
    }

    [[nodiscard]] std::string objection(const Item& word, const Item& schema, const Item& value) const {
        const auto wrong = [&](const std::string& what) { return value.key + ": " + what; };
        const auto& name = word.key;
        if (name == "$ref") return objection(*member(*member(root_, "definitions"), word.text.substr(14)), value);
        if (name == "type") return has_type(word, value) ? "" : wrong("type");
        if (name == "enum")
            return std::ranges::find(word.items, value.text, &Item::text) != word.items.end() ? "" : wrong("enum");
        if (name == "pattern") return std::regex_search(value.text, std::regex(word.text)) ? "" : wrong("pattern");
        if (name == "minimum") {
            const auto number = model::parse_unsigned(value.text, value.key, UINT64_MAX);
            return number && *number >= std::stoull(word.text) ? "" : wrong("minimum");
        }
        if (name == "required") return member(value, word.items.front().text) != nullptr ? "" : wrong("required");
        if (name == "anyOf")
            return std::ranges::any_of(word.items, [&](const Item& one) { return objection(one, value).empty(); })
                       ? ""
                       : wrong("anyOf");
        if (name == "items" || name == "propertyNames" || name == "properties" || name == "additionalProperties")
            return of_members(word, schema, value);
        if (name != "title" && name != "description" && name != "definitions" && name != "$schema")
            ADD_FAILURE() << "the test does not know '" << name << "'";
        return {};
    }

    [[nodiscard]] std::string of_members(const Item& word, const Item& schema, const Item& value) const {
        for (const auto& one : value.items) {
            std::string what;
            const auto* known = member(schema, "properties");
            const auto* property = known == nullptr ? nullptr : member(*known, one.key);
            if (word.key == "items") what = objection(word, one);
            if (word.key == "propertyNames") what = objection(word, Item{.kind = Item::Kind::text, .text = one.key});
            if (word.key == "properties" && property != nullptr) what = objection(*property, one);
            if (word.key == "additionalProperties" && property == nullptr)
                what = word.text == "false" ? "unknown key " + one.key : objection(word, one);
            if (!what.empty()) return what;
        }
        return {};
    }

    static bool has_type(const Item& word, const Item& value) {
        const auto fits = [&](const std::string& type) {
            switch (value.kind) {
                case Item::Kind::map: return type == "object";
                case Item::Kind::list: return type == "array";
                case Item::Kind::text: return type == "string" || type == "number" || type == "boolean";
                case Item::Kind::null: break;
            }
            return false;
        };
        if (word.kind == Item::Kind::text) return fits(word.text);
        return std::ranges::any_of(word.items, [&](const Item& one) { return fits(one.text); });
    }

    Item root_;
};

/// The keys that the loader allows, by its own message.
std::vector<std::string> allowed(const model::Result<void>& refused) {
    const auto& text = refused.error().detail;
    std::vector<std::string> out;
    std::istringstream words(text.substr(text.find("allowed: ") + 9));
    for (std::string word; std::getline(words >> std::ws, word, ',');) out.push_back(word);
    return out;
}

model::Result<void> policy(const std::string& text) {
    const auto parsed = parse_policy(text, "p.yaml");
    return parsed ? model::Result<void>() : std::unexpected(parsed.error());
}

model::Result<void> engine(const std::string& text) {
    const auto parsed = parse_engine(text, "e.yaml");
    return parsed ? model::Result<void>() : std::unexpected(parsed.error());
}

model::Result<void> site(const std::string& text) {
    const auto parsed = parse_site_config(text, "numa-lease.yaml");
    return parsed ? model::Result<void>() : std::unexpected(parsed.error());
}

TEST(EditorSchema, HasTheKeysOfTheLoader) {
    const Schema policies("policy.json");
    const Schema engines("engine.json");
    EXPECT_THAT(keys_of(member(policies.root(), "properties")), UnorderedElementsAreArray(allowed(policy("no: 1"))));
    EXPECT_THAT(keys_of(member(engines.root(), "properties")), UnorderedElementsAreArray(allowed(engine("no: 1"))));
    EXPECT_THAT(keys_of(member(*member(*member(engines.root(), "definitions"), "option"), "properties")),
                UnorderedElementsAreArray(allowed(engine("options: {t: {no: 1}}"))));
    const Schema sites("site.json");
    EXPECT_THAT(keys_of(member(sites.root(), "properties")), UnorderedElementsAreArray(allowed(site("no: 1"))));
    const auto* definitions = member(sites.root(), "definitions");
    EXPECT_THAT(keys_of(member(*member(*definitions, "limits"), "properties")),
                UnorderedElementsAreArray(allowed(site("limits: {no: 1}"))));
    EXPECT_THAT(keys_of(member(*member(*definitions, "class"), "properties")),
                UnorderedElementsAreArray(allowed(site("classes: {batch: {no: 1}}"))));
    const auto* scheduling = member(*member(sites.root(), "properties"), "scheduling");
    EXPECT_THAT(keys_of(member(*scheduling, "properties")),
                UnorderedElementsAreArray(allowed(site("scheduling: {no: 1}"))));
}

TEST(EditorSchema, HasTheLeversOfTheLoader) {
    const Schema schema("site.json");
    const auto* limits = member(*member(schema.root(), "definitions"), "limits");
    const auto* levers = member(*member(*member(*limits, "properties"), "levers"), "items");
    std::vector<std::string> words;
    for (const auto& word : member(*levers, "enum")->items) words.push_back(word.text);
    std::vector<std::string> known;
    for (const auto& lever : model::kernel_levers()) known.emplace_back(lever.field);
    EXPECT_THAT(words, UnorderedElementsAreArray(known));
}

TEST(EditorSchema, HasTheRequestFieldsThatAFileMayName) {
    const Schema schema("policy.json");
    const auto* request = member(*member(schema.root(), "properties"), "request");
    ASSERT_NE(request, nullptr);
    const auto fields = keys_of(member(*request, "properties"));
    const Schema sites("site.json");
    EXPECT_THAT(keys_of(member(*member(*member(sites.root(), "properties"), "defaults"), "properties")),
                UnorderedElementsAreArray(fields));
    EXPECT_THAT(fields, UnorderedElementsAreArray(allowed(policy("request: {no: 1}"))));
    for (const auto& field : model::request_fields()) {
        const auto taken = policy("request: {" + std::string(field.name) + ": '?'}");
        const bool known = taken || taken.error().detail.find("unknown key") == std::string::npos;
        EXPECT_EQ(std::ranges::find(fields, field.name) != fields.end(), known) << field.name;
    }
}

TEST(EditorSchema, EveryShippedFileFits) {
    std::size_t files = 0;
    for (const auto& [folder, name] : {std::pair("", "policy.json"), std::pair("engines", "engine.json")}) {
        const Schema schema(name);
        for (const auto& entry : fs::directory_iterator(fs::path(NUMALEASE_SHIPPED) / folder)) {
            if (entry.path().extension() != ".yaml") continue;
            EXPECT_EQ(schema.objection(read(entry.path())), "") << entry.path();
            ++files;
        }
    }
    const auto library = load({NUMALEASE_SHIPPED});
    EXPECT_EQ(files, library.policies.size() + library.engines.size());
}

TEST(EditorSchema, AConfigurationThatSaysEverythingFits) {
    const std::string limits =
        "{weight: 2, cores: 16, nodes: 1, gpus: 0, memory: 64G, hugepages: 8G, leases: 4, queued: 0, time: never,"
        " classes: [batch, gold], policies: [auto, ''], levers: [thp, hugepages]}";
    const auto text =
        "defaults: {wait: 5min, class: gold}\ngroup: llm\nreserve: 1G\novercommit: warn\n"
        "scheduling: {half-life: never, aging: 30min}\nclasses: {gold: {priority: 15, time: 12h}}\n"
        "limits: " +
        limits + "\ngroups: {lab: " + limits + "}\nusers: {'CORP\\bob': " + limits + "}\n";
    const auto taken = site(text);
    EXPECT_TRUE(taken) << taken.error().detail;
    EXPECT_EQ(Schema("site.json").objection(*read_yaml(text, "")), "");
}

/// What the loader refuses, the schema refuses too; values that only a table knows (node: 3-1) are not its business.
TEST(EditorSchema, RefusesAWrongFileAsTheLoaderDoes) {
    const Schema policies("policy.json");
    for (const auto* text : {"whyy: x", "why: [a]", "name: ../x", "request: x", "request: {sockets: 1}",
                             "request: {policy: x}", "request: {node: [1]}", "env: [A]", "env: {1A: x}", "- a"}) {
        EXPECT_FALSE(policy(text)) << text;
        EXPECT_NE(policies.objection(*read_yaml(text, "")), "") << text;
    }
    const Schema sites("site.json");
    for (const auto* text : {"quota: 1",
                             "limits: [a]",
                             "limits: {cores: -1}",
                             "limits: {cores: a}",
                             "limits: {weight: 0}",
                             "limits: {cpus: 1}",
                             "limits: {levers: [cores]}",
                             "limits: {levers: thp}",
                             "limits: {policies: [../x]}",
                             "limits: {time: soon}",
                             "users: [ann]",
                             "users: {ann: 3}",
                             "users: {'a:b': {}}",
                             "groups: {'': {}}",
                             "scheduling: {aging: later}",
                             "scheduling: {age: 1h}",
                             "classes: {batch: 3}",
                             "classes: {batch: {priority: -1}}",
                             "classes: {'a b': {}}",
                             "defaults: {policy: x}"}) {
        EXPECT_FALSE(site(text)) << text;
        EXPECT_NE(sites.objection(*read_yaml(text, "")), "") << text;
    }
    const Schema engines("engine.json");
    for (const auto* text : {"programs: a", "program: [a]", "options: [a]", "options: {t: {value: x}}",
                             "options: {t: {flags: [t]}}", "options: {t: {env: T, only: some}}",
                             "options: {t: {flags: [-t], insert: perhaps, value: x}}", "options: {t: {env: [T]}}"}) {
        EXPECT_FALSE(engine(text)) << text;
        EXPECT_NE(engines.objection(*read_yaml(text, "")), "") << text;
    }
}

}  // namespace
}  // namespace numalease::policies
