#include "model/knob.hpp"

#include "model/index_set.hpp"

namespace numalease::model {

namespace {

constexpr std::string_view kNodeMark = "{node}";
constexpr std::string_view kSizeMark = "{kib}";

bool has(std::string_view path, std::string_view mark) { return path.find(mark) != std::string_view::npos; }

void fill(std::string& path, std::string_view mark, std::uint64_t value) {
    const auto at = path.find(mark);
    if (at != std::string::npos) path.replace(at, mark.size(), std::to_string(value));
}

}  // namespace

std::string KnobKey::text() const {
    std::string out(row().name);
    if (has(row().path, kSizeMark)) out += '/' + bytes_text(page_size);
    if (has(row().path, kNodeMark)) out += "/node" + std::to_string(node);
    return out;
}

Result<KnobKey> KnobKey::parse(std::string_view text) {
    const auto unknown = [&] { return fail(Errc::invalid_request, "unknown knob '" + std::string(text) + "'"); };
    const auto slash = text.find('/');
    const auto name = text.substr(0, slash);
    auto rest = slash == std::string_view::npos ? std::string_view{} : text.substr(slash + 1);
    for (const auto& row : kKnobTable) {
        if (row.name != name) continue;
        KnobKey key{.knob = row.knob};
        if (has(row.path, kSizeMark)) {
            const auto end = rest.find('/');
            const auto size = parse_bytes(rest.substr(0, end));
            if (!size || end == std::string_view::npos) return unknown();
            key.page_size = *size;
            rest.remove_prefix(end + 1);
        }
        if (has(row.path, kNodeMark)) {
            if (!rest.starts_with("node")) return unknown();
            const auto node = parse_unsigned(rest.substr(4), "node", kNodeLimit - 1);
            if (!node) return unknown();
            key.node = static_cast<unsigned>(*node);
            rest = {};
        }
        if (!rest.empty()) return unknown();
        return key;
    }
    return unknown();
}

std::string KnobKey::path() const {
    std::string out(row().path);
    fill(out, kNodeMark, node);
    fill(out, kSizeMark, page_size / kKiB);
    return out;
}

}  // namespace numalease::model
