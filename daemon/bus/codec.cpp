#include <cerrno>
#include <cstring>

#include "bus/bus.hpp"

namespace numalease::bus {

using model::Dict;
using model::Errc;
using model::fail;
using model::Result;
using model::Value;

// ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

namespace {

/// D-Bus signature of a value.
const char* signature_of(const Value& value) {
    struct Visitor {
        const char* operator()(const std::string&) const { return "s"; }
        const char* operator()(bool) const { return "b"; }
        const char* operator()(std::uint64_t) const { return "t"; }
        const char* operator()(double) const { return "d"; }
        const char* operator()(const Value::Strings&) const { return "as"; }
        const char* operator()(const Dict&) const { return "a{sv}"; }
        const char* operator()(const Value::Dicts&) const { return "aa{sv}"; }
    };
    return std::visit(Visitor{}, value.v);
}

// These return sd-bus's negative errno: the first failure ends the message, and only the outermost makes an Error.
int append_entries(sd_bus_message* message, const Dict& dict);

int append_list(sd_bus_message* message, const Value::Dicts& list) {
    if (const int open = sd_bus_message_open_container(message, 'a', "a{sv}"); open < 0) return open;
    for (const auto& dict : list)
        if (const int entries = append_entries(message, dict); entries < 0) return entries;
    return sd_bus_message_close_container(message);
}

int append_value(sd_bus_message* message, const Value& value) {
    struct Visitor {
        sd_bus_message* message;
        int operator()(const std::string& text) const {
            return sd_bus_message_append_basic(message, 's', text.c_str());
        }
        int operator()(bool flag) const {
            const int number = flag ? 1 : 0;
            return sd_bus_message_append_basic(message, 'b', &number);
        }
        int operator()(std::uint64_t number) const { return sd_bus_message_append_basic(message, 't', &number); }
        int operator()(double number) const { return sd_bus_message_append_basic(message, 'd', &number); }
        int operator()(const Value::Strings& list) const {
            if (const int open = sd_bus_message_open_container(message, 'a', "s"); open < 0) return open;
            for (const auto& text : list)
                if (const int item = (*this)(text); item < 0) return item;
            return sd_bus_message_close_container(message);
        }
        int operator()(const Dict& dict) const { return append_entries(message, dict); }
        int operator()(const Value::Dicts& list) const { return append_list(message, list); }
    };
    if (const int open = sd_bus_message_open_container(message, 'v', signature_of(value)); open < 0) return open;
    if (const int inner = std::visit(Visitor{message}, value.v); inner < 0) return inner;
    return sd_bus_message_close_container(message);
}

int append_entries(sd_bus_message* message, const Dict& dict) {
    if (const int open = sd_bus_message_open_container(message, 'a', "{sv}"); open < 0) return open;
    for (const auto& [key, value] : dict) {
        if (const int entry = sd_bus_message_open_container(message, 'e', "sv"); entry < 0) return entry;
        if (const int name = sd_bus_message_append_basic(message, 's', key.c_str()); name < 0) return name;
        if (const int inner = append_value(message, value); inner < 0) return inner;
        if (const int close = sd_bus_message_close_container(message); close < 0) return close;
    }
    return sd_bus_message_close_container(message);
}

Result<void> appended(int result) {
    if (result >= 0) return {};
    return fail(Errc::io, std::string("cannot write a D-Bus dictionary: ") + std::strerror(-result), -result);
}

}  // namespace

Result<void> append_dict(sd_bus_message* message, const Dict& dict) { return appended(append_entries(message, dict)); }

Result<void> append_dicts(sd_bus_message* message, const Value::Dicts& list) {
    return appended(append_list(message, list));
}

// ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

namespace {

/// Reads dictionaries of one message within one budget of entries.
class Reader {
public:
    Reader(sd_bus_message* message, std::size_t max_entries) : message_(message), max_entries_(max_entries) {}

    Result<Dict> dict(std::size_t depth) {
        if (depth > kMaxDepth) return fail(Errc::invalid_request, "a dictionary nested too deeply");
        if (auto entered = enter('a', "{sv}"); !entered) return std::unexpected(entered.error());
        Dict out;
        while (true) {
            const int more = sd_bus_message_enter_container(message_, 'e', "sv");
            if (more < 0) return broken(more);
            if (more == 0) break;
            if (auto spent = spend(); !spent) return std::unexpected(spent.error());
            const char* key = nullptr;
            if (const int got = sd_bus_message_read_basic(message_, 's', &key); got <= 0) return broken(got);
            // sd-bus validates the text and holds it until the message goes.
            auto read = variant(key, depth);
            if (!read) return std::unexpected(read.error());
            if (!out.emplace(key, std::move(*read)).second)
                return fail(Errc::invalid_request, "field '" + short_name(key) + "' is given twice");
            if (auto left = leave(); !left) return std::unexpected(left.error());
        }
        if (auto left = leave(); !left) return std::unexpected(left.error());
        return out;
    }

    Result<Value::Dicts> dicts(std::size_t depth) {
        if (depth > kMaxDepth) return fail(Errc::invalid_request, "a list nested too deeply");
        if (auto entered = enter('a', "a{sv}"); !entered) return std::unexpected(entered.error());
        Value::Dicts out;
        while (true) {
            const int end = sd_bus_message_at_end(message_, 0);
            if (end < 0) return broken(end);
            if (end > 0) break;
            if (auto spent = spend(); !spent) return std::unexpected(spent.error());
            auto item = dict(depth + 1);
            if (!item) return std::unexpected(item.error());
            out.push_back(std::move(*item));
        }
        if (auto left = leave(); !left) return std::unexpected(left.error());
        return out;
    }

private:
    static std::string short_name(std::string_view key) { return std::string(key.substr(0, 64)); }

    static std::unexpected<model::Error> broken(int result) {
        // A message that ends early shows as "nothing more", 0.
        const int err = result < 0 ? -result : EBADMSG;
        return fail(Errc::invalid_request, std::string("not a dictionary a{sv}: ") + std::strerror(err), err);
    }

    Result<void> enter(char type, const char* contents) {
        if (const int result = sd_bus_message_enter_container(message_, type, contents); result <= 0)
            return broken(result);
        return {};
    }
    Result<void> leave() {
        if (const int result = sd_bus_message_exit_container(message_); result < 0) return broken(result);
        return {};
    }
    Result<void> spend() {
        if (++entries_ > max_entries_)
            return fail(Errc::invalid_request, "more than " + std::to_string(max_entries_) + " entries");
        return {};
    }

    Result<Value> variant(const char* key, std::size_t depth) {
        char type = 0;
        const char* contents = nullptr;
        if (const int peeked = sd_bus_message_peek_type(message_, &type, &contents); peeked <= 0) return broken(peeked);
        const std::string signature = contents != nullptr ? contents : "";
        if (auto entered = enter('v', contents); !entered) return std::unexpected(entered.error());
        auto out = value(key, signature, depth);
        if (!out) return out;
        if (auto left = leave(); !left) return std::unexpected(left.error());
        return out;
    }

    Result<Value> value(const char* key, const std::string& signature, std::size_t depth) {
        if (signature == "as") return strings();
        if (signature == "a{sv}") return wrap(dict(depth + 1));
        if (signature == "aa{sv}") return wrap(dicts(depth + 1));
        if (signature.size() == 1) switch (signature[0]) {
                case 's': return text();
                case 'b': return number<int>('b', [](int flag) { return Value(flag != 0); });
                case 'y': return unsigned_number<std::uint8_t>('y');
                case 'q': return unsigned_number<std::uint16_t>('q');
                case 'u': return unsigned_number<std::uint32_t>('u');
                case 't': return unsigned_number<std::uint64_t>('t');
                case 'n': return signed_number<std::int16_t>('n', key);
                case 'i': return signed_number<std::int32_t>('i', key);
                case 'x': return signed_number<std::int64_t>('x', key);
                case 'd': return number<double>('d', [](double real) { return Value(real); });
                default: break;
            }
        return fail(Errc::invalid_request,
                    "field '" + short_name(key) + "': type '" + signature.substr(0, 32) + "' is not understood");
    }

    template <class T>
    static Result<Value> wrap(Result<T> inner) {
        if (!inner) return std::unexpected(inner.error());
        return Value(std::move(*inner));
    }

    template <class T, class Make>
    Result<Value> number(char type, Make make) {
        T raw{};
        if (const int got = sd_bus_message_read_basic(message_, type, &raw); got <= 0) return broken(got);
        return make(raw);
    }
    template <class T>
    Result<Value> unsigned_number(char type) {
        return number<T>(type, [](T raw) { return Value(std::uint64_t{raw}); });
    }
    template <class T>
    Result<Value> signed_number(char type, const char* key) {
        return number<T>(type, [&](T raw) -> Result<Value> {
            if (raw < 0) return fail(Errc::invalid_request, "field '" + short_name(key) + "': negative");
            return Value(static_cast<std::uint64_t>(raw));
        });
    }

    Result<Value> text() {
        const char* raw = nullptr;
        if (const int got = sd_bus_message_read_basic(message_, 's', &raw); got <= 0) return broken(got);
        return Value(raw);
    }

    Result<Value> strings() {
        if (auto entered = enter('a', "s"); !entered) return std::unexpected(entered.error());
        Value::Strings out;
        while (true) {
            const char* raw = nullptr;
            const int got = sd_bus_message_read_basic(message_, 's', &raw);
            if (got < 0) return broken(got);
            if (got == 0) break;
            if (auto spent = spend(); !spent) return std::unexpected(spent.error());
            out.emplace_back(raw);
        }
        if (auto left = leave(); !left) return std::unexpected(left.error());
        return Value(std::move(out));
    }

    sd_bus_message* message_;
    std::size_t max_entries_;
    std::size_t entries_ = 0;
};

}  // namespace

Result<Dict> read_dict(sd_bus_message* message, std::size_t max_entries) {
    return Reader(message, max_entries).dict(1);
}

Result<Value::Dicts> read_dicts(sd_bus_message* message, std::size_t max_entries) {
    return Reader(message, max_entries).dicts(1);
}

}  // namespace numalease::bus
