#include "model/request.hpp"

#include <algorithm>

namespace numalease::model {

namespace {

constexpr std::size_t kMaxText = 4096;

}  // namespace

Result<void> set_field(Request& request, std::string_view name, std::string_view text) {
    for (const auto& field : request_fields()) {
        if (field.name != name) continue;
        const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
        if (std::ranges::any_of(text, control))
            return fail(Errc::invalid_request, std::string(name) + ": control characters are not allowed");
        if (text.size() > kMaxText)
            return fail(Errc::invalid_request,
                        std::string(name) + ": longer than " + std::to_string(kMaxText) + " bytes");
        if (auto parsed = field.parse(request, text); !parsed)
            return fail(Errc::invalid_request, std::string(name) + ": " + parsed.error().detail);
        return {};
    }
    return fail(Errc::invalid_request, "unknown field '" + std::string(name.substr(0, 64)) + "'");
}

Result<void> validate(const Request& request) {
    if (request.sockets.kind != Choice::Kind::none && request.nodes.kind != Choice::Kind::none)
        return fail(Errc::invalid_request, "socket and node: say one of the two");
    if (request.memory_max && request.memory && !request.memory_is_estimate && *request.memory_max < *request.memory)
        return fail(Errc::invalid_request, "memory-max: " + bytes_text(*request.memory_max) + " is less than memory, " +
                                               bytes_text(*request.memory));
    if (request.gpu_share > 1 && request.gpus.none())
        return fail(Errc::invalid_request, "gpu-share: of which GPU? say gpu too");
    if (!request.weights.empty() && request.mempolicy != Mempolicy::weighted)
        return fail(Errc::invalid_request, "weights: only with mempolicy weighted");
    if (request.shield && request.share)
        return fail(Errc::invalid_request,
                    "shield contradicts share: a shield keeps everybody else off; say one of the two");
    if (request.shield && !request.name.empty())
        return fail(Errc::invalid_request, "shield: not for a named lease yet; ask for one of the two");
    // As it is kept, which may be longer than it was typed, it must be readable again.
    for (const auto& field : request_fields())
        if (field.format(request).size() > kMaxText)
            return fail(Errc::invalid_request,
                        std::string(field.name) + ": written out longer than " + std::to_string(kMaxText) + " bytes");
    for (const auto& name : request.required)
        if (std::ranges::none_of(request_fields(), [&](const RequestField& field) { return field.name == name; }))
            return fail(Errc::invalid_request, "required: unknown field '" + name + "'");
    return {};
}

Dict to_dict(const Request& request) {
    const Request defaults;
    Dict out;
    for (const auto& field : request_fields())
        if (const auto text = field.format(request); text != field.format(defaults))
            out[std::string(field.name)] = text;
    return out;
}

Result<Request> request_from_dict(const Dict& dict) {
    Request request;
    for (const auto& [key, value] : dict) {
        const auto* text = std::get_if<std::string>(&value.v);
        if (text == nullptr)
            return fail(Errc::invalid_request, "field '" + key.substr(0, 64) + "': the value must be a string");
        if (auto set = set_field(request, key, *text); !set) return std::unexpected(set.error());
    }
    if (auto valid = validate(request); !valid) return std::unexpected(valid.error());
    return request;
}

bool is_required(const Request& request, std::string_view field) {
    return request.required.contains(std::string(field));
}

}  // namespace numalease::model
