#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/request.hpp"
#include "policies/variables.hpp"
#include "policies/yaml.hpp"

namespace numalease::policies {

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

    model::Micros duration(const Item& item) {
        const auto value = model::parse_duration(text(item));
        if (!value) wrong(item.at, label(item) + value.error().detail);
        return value.value_or(model::Micros(0));
    }

    model::Bytes bytes(const Item& item) {
        const auto value = model::parse_bytes(text(item));
        if (!value) wrong(item.at, label(item) + value.error().detail);
        return value.value_or(0);
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

}  // namespace numalease::policies
