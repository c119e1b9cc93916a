#include "model/value.hpp"

#include <charconv>

namespace numalease::model {

namespace {

template <class T>
const T* get(const Dict& dict, std::string_view key) {
    const auto found = dict.find(key);
    return found == dict.end() ? nullptr : std::get_if<T>(&found->second.v);
}

std::string escape(std::string_view text) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte > 0x20 && byte < 0x7f && c != '%' && c != '=') {
            out += c;
        } else {
            out += '%';
            out += kHex[byte >> 4U];
            out += kHex[byte & 0xfU];
        }
    }
    return out;
}

Result<std::string> unescape(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (text[at] != '%') {
            out += text[at];
            continue;
        }
        unsigned byte = 0;
        const char* first = text.data() + at + 1;
        if (at + 2 >= text.size() || std::from_chars(first, first + 2, byte, 16).ptr != first + 2)
            return fail(Errc::invalid_request, "bad escape in '" + std::string(text) + "'");
        out += static_cast<char>(byte);
        at += 2;
    }
    return out;
}

void put(std::string& out, const std::string& key, std::string_view value) {
    if (!out.empty()) out += ' ';
    out += key + '=' + escape(value);
}

void flatten_into(std::string& out, const std::string& prefix, const Dict& dict);

void flatten_value(std::string& out, const std::string& key, const Value& value) {
    struct Visitor {
        std::string& out;
        const std::string& key;
        void operator()(const std::string& text) const { put(out, key, text); }
        void operator()(bool flag) const { put(out, key, flag ? "1" : "0"); }
        void operator()(std::uint64_t number) const { put(out, key, std::to_string(number)); }
        void operator()(double number) const { put(out, key, std::to_string(number)); }
        void operator()(const Value::Strings& list) const {
            for (std::size_t i = 0; i < list.size(); ++i) put(out, key + '.' + std::to_string(i), list[i]);
        }
        void operator()(const Dict& dict) const { flatten_into(out, key + '.', dict); }
        void operator()(const Value::Dicts& list) const {
            for (std::size_t i = 0; i < list.size(); ++i)
                flatten_into(out, key + '.' + std::to_string(i) + '.', list[i]);
        }
    };
    std::visit(Visitor{out, key}, value.v);
}

void flatten_into(std::string& out, const std::string& prefix, const Dict& dict) {
    for (const auto& [key, value] : dict) flatten_value(out, prefix + key, value);
}

/// Members "0", "1", … of a dict that was a list when it was written.
std::vector<const Value*> numbered(const Dict& dict) {
    std::vector<const Value*> out;
    for (std::size_t i = 0;; ++i) {
        const auto found = dict.find(std::to_string(i));
        if (found == dict.end()) return out;
        out.push_back(&found->second);
    }
}

Result<void> insert_path(Dict& root, std::string_view path, std::string value) {
    Dict* at = &root;
    for (std::size_t depth = 0;; ++depth) {
        if (depth >= kFlatMaxDepth) return fail(Errc::invalid_request, "nested too deeply");
        const auto dot = path.find('.');
        const std::string key(path.substr(0, dot));
        if (dot == std::string_view::npos) {
            (*at)[key] = Value(std::move(value));
            return {};
        }
        Value& child = (*at)[key];
        if (!std::holds_alternative<Dict>(child.v)) child = Value(Dict{});
        at = &std::get<Dict>(child.v);
        path.remove_prefix(dot + 1);
    }
}

}  // namespace

std::string get_text(const Dict& dict, std::string_view key, std::string_view fallback) {
    const auto* text = get<std::string>(dict, key);
    return text != nullptr ? *text : std::string(fallback);
}

std::uint64_t get_number(const Dict& dict, std::string_view key, std::uint64_t fallback) {
    if (const auto* number = get<std::uint64_t>(dict, key)) return *number;
    if (const auto* text = get<std::string>(dict, key)) {
        std::uint64_t number = 0;
        const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
        if (error == std::errc() && end == text->data() + text->size()) return number;
    }
    return fallback;
}

bool get_flag(const Dict& dict, std::string_view key, bool fallback) {
    if (const auto* flag = get<bool>(dict, key)) return *flag;
    if (const auto* text = get<std::string>(dict, key)) return *text == "1" || *text == "true";
    return fallback;
}

Value::Strings get_strings(const Dict& dict, std::string_view key) {
    if (const auto* list = get<Value::Strings>(dict, key)) return *list;
    Value::Strings out;
    if (const auto* child = get<Dict>(dict, key))
        for (const auto* item : numbered(*child))
            if (const auto* text = std::get_if<std::string>(&item->v)) out.push_back(*text);
    return out;
}

Dict get_dict(const Dict& dict, std::string_view key) {
    const auto* child = get<Dict>(dict, key);
    return child != nullptr ? *child : Dict{};
}

Value::Dicts get_dicts(const Dict& dict, std::string_view key) {
    if (const auto* list = get<Value::Dicts>(dict, key)) return *list;
    Value::Dicts out;
    if (const auto* child = get<Dict>(dict, key))
        for (const auto* item : numbered(*child))
            if (const auto* entry = std::get_if<Dict>(&item->v)) out.push_back(*entry);
    return out;
}

std::string flatten(const Dict& dict) {
    std::string out;
    flatten_into(out, "", dict);
    return out;
}

Result<Dict> unflatten(std::string_view line) {
    Dict out;
    std::size_t leaves = 0;
    while (!line.empty()) {
        const auto blank = line.find(' ');
        const auto leaf = line.substr(0, blank);
        line.remove_prefix(blank == std::string_view::npos ? line.size() : blank + 1);
        const auto equals = leaf.find('=');
        if (equals == std::string_view::npos || equals == 0)
            return fail(Errc::invalid_request, "'" + std::string(leaf) + "' is not key=value");
        if (++leaves > kFlatMaxLeaves) return fail(Errc::invalid_request, "too many values");
        auto value = unescape(leaf.substr(equals + 1));
        if (!value) return std::unexpected(value.error());
        if (auto put = insert_path(out, leaf.substr(0, equals), std::move(*value)); !put)
            return std::unexpected(put.error());
    }
    return out;
}

}  // namespace numalease::model
