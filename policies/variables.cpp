#include "policies/variables.hpp"

#include <algorithm>
#include <charconv>

namespace numalease::policies {

std::optional<unsigned> port_before_index(std::string_view name) {
    constexpr unsigned kMostPort = 65535;
    unsigned port = 0;
    const auto [end, error] = std::from_chars(name.begin(), name.end(), port);
    if (error != std::errc() || port > kMostPort || std::string_view(end, name.end()) != "+index") return std::nullopt;
    return port;
}

std::string expand(std::string_view text, const std::function<std::optional<std::string>(std::string_view)>& value) {
    std::string out;
    while (!text.empty()) {
        const auto start = text.find("${");
        const auto end = start == std::string_view::npos ? start : text.find('}', start);
        if (end == std::string_view::npos) break;
        const auto found = value(text.substr(start + 2, end - start - 2));
        out += text.substr(0, start);
        // Where the name is unknown only its "${" is taken, so that a known one inside still counts.
        out += found.value_or("${");
        text.remove_prefix(found ? end + 1 : start + 2);
    }
    return out += text;
}

std::string unknown_variable(std::string_view text) {
    std::string unknown;
    expand(text, [&](std::string_view name) -> std::optional<std::string> {
        if (unknown.empty() && std::ranges::find(kVariables, name) == kVariables.end() && !port_before_index(name))
            unknown = name.empty() ? " " : name.substr(0, 64);
        return std::string();
    });
    return unknown;
}

std::string variable_list() {
    std::string out;
    for (const auto& name : kVariables) out += (out.empty() ? "${" : ", ${") + std::string(name) + '}';
    return out;
}

}  // namespace numalease::policies
