#include "model/verification.hpp"

#include <cmath>

#include "model/index_set.hpp"

namespace numalease::model {

namespace {

Dict to_dict(const Charged& it) { return {{"anonymous", it.anonymous}, {"file", it.file}, {"file_mapped", it.mapped}}; }

}  // namespace

Charged& Charged::operator+=(const Charged& other) {
    anonymous += other.anonymous;
    file += other.file;
    mapped += other.mapped;
    return *this;
}

Charged sum_of(const ChargedByNode& nodes) {
    Charged out;
    for (const auto& [node, charged] : nodes) out += charged;
    return out;
}

Dict to_dict(const Verification& it) {
    Dict nodes;
    for (const auto& [node, charged] : it.nodes) nodes[std::to_string(node)] = to_dict(charged);
    Dict out{{"at", static_cast<std::uint64_t>(it.at.count())},
             {"nodes", nodes},
             {"total", sum_of(it.nodes).total()},
             {"inside", it.inside},
             {"warnings", it.warnings},
             {"text", verification_text(it)}};
    if (!it.unknown.empty()) out["unknown"] = it.unknown;
    if (it.imbalance_permille) out["imbalance_permille"] = *it.imbalance_permille;
    return out;
}

Verification verification_from_dict(const Dict& dict) {
    Verification out{.at = Micros(static_cast<std::int64_t>(get_number(dict, "at"))),
                     .unknown = get_text(dict, "unknown"),
                     .nodes = {},
                     .inside = get_number(dict, "inside"),
                     .imbalance_permille = {},
                     .warnings = get_strings(dict, "warnings")};
    const auto nodes = get_dict(dict, "nodes");
    for (const auto& [name, value] : nodes) {
        const auto id = parse_unsigned(name, "node", kNodeLimit - 1);
        if (!id) continue;
        const auto one = get_dict(nodes, name);
        out.nodes[static_cast<unsigned>(*id)] = {.anonymous = get_number(one, "anonymous"),
                                                 .file = get_number(one, "file"),
                                                 .mapped = get_number(one, "file_mapped")};
    }
    if (dict.contains("imbalance_permille")) out.imbalance_permille = get_number(dict, "imbalance_permille");
    return out;
}

std::string verification_text(const Verification& it) {
    if (!it.unknown.empty()) return "not known: " + it.unknown;
    const auto sum = sum_of(it.nodes);
    if (sum.total() == 0) return "it is charged for no memory";
    std::string nodes;
    for (const auto& [node, charged] : it.nodes)
        nodes += (nodes.empty() ? "node " : ", node ") + std::to_string(node) + ": " + bytes_text(charged.total());
    auto out = bytes_text(sum.total()) + ", " + share_text(it.inside, sum.total()) + " of it on leased nodes (" +
               nodes + "); " + bytes_text(sum.anonymous) + " anonymous, " + bytes_text(sum.file) + " of files";
    if (sum.file > 0) out += ", " + bytes_text(sum.mapped) + " of it mapped";
    if (it.imbalance_permille)
        out += "; the fullest node has " + std::to_string(*it.imbalance_permille / 10) + " % of its part";
    return out;
}

std::string share_text(Bytes part, Bytes whole) {
    if (part == 0 || whole == 0) return "0 %";
    const double share = 100 * static_cast<double>(part) / static_cast<double>(whole);
    if (share < 1) return "<1 %";
    if (share > 99 && part < whole) return ">99 %";
    return std::to_string(std::lround(share)) + " %";
}

}  // namespace numalease::model
