#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/error.hpp"

namespace numalease::model {

struct Value;

/// Named values: the one shape in which model types leave a process. The bus carries it as a{sv}, the client prints it
/// as JSON, and the journal writes it as one flat line.
using Dict = std::map<std::string, Value, std::less<>>;

/// One value of a Dict. Numbers are unsigned 64-bit; sizes are bytes, times microseconds.
struct Value {
    using Strings = std::vector<std::string>;
    using Dicts = std::vector<Dict>;
    std::variant<std::string, bool, std::uint64_t, double, Strings, Dict, Dicts> v;

    Value() = default;
    Value(const char* text) : v(std::string(text)) {}
    Value(std::string text) : v(std::move(text)) {}
    Value(std::string_view text) : v(std::string(text)) {}
    Value(bool flag) : v(flag) {}
    Value(unsigned number) : v(std::uint64_t{number}) {}
    Value(std::uint64_t number) : v(number) {}
    Value(double number) : v(number) {}
    Value(Strings list) : v(std::move(list)) {}
    Value(Dict dict) : v(std::move(dict)) {}
    Value(Dicts list) : v(std::move(list)) {}

    bool operator==(const Value&) const = default;
};

/// Reads one key, converting from text where the value came out of a journal line.
/// A missing key or another type gives the default: the writer of a Dict decides what it holds, and a reader that
/// meets an older or newer writer goes on with what is there.
std::string get_text(const Dict& dict, std::string_view key, std::string_view fallback = {});
std::uint64_t get_number(const Dict& dict, std::string_view key, std::uint64_t fallback = 0);
bool get_flag(const Dict& dict, std::string_view key, bool fallback = false);
Value::Strings get_strings(const Dict& dict, std::string_view key);
Dict get_dict(const Dict& dict, std::string_view key);
Value::Dicts get_dicts(const Dict& dict, std::string_view key);

/// `a=1 b.0=x b.1=y c.k=v`: keys sorted, bytes outside [!-~], '%' and '=' as %XX. Lists count from 0 under their key.
std::string flatten(const Dict& dict);

/// The inverse, with every leaf as text.  Bounded: at most `kFlatMaxLeaves` leaves and `kFlatMaxDepth` levels.
/// Errors: invalid_request.
Result<Dict> unflatten(std::string_view line);
inline constexpr std::size_t kFlatMaxLeaves = 65536;
inline constexpr std::size_t kFlatMaxDepth = 8;

}  // namespace numalease::model
