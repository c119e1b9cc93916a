#include "model/residency.hpp"

namespace numalease::model {

Dict to_dict(const Residency& residency) {
    Value::Dicts nodes;
    for (const auto& [node, bytes] : residency.nodes) nodes.push_back({{"node", node}, {"bytes", bytes}});
    Value::Dicts mappers;
    for (const auto& it : residency.mapped_by)
        mappers.push_back({{"pid", static_cast<unsigned>(it.pid)}, {"command", it.command}});
    return {{"size", residency.size},
            {"resident", residency.resident},
            {"sampled", residency.sampled},
            {"nodes", std::move(nodes)},
            {"mapped_by", std::move(mappers)}};
}

Residency residency_from_dict(const Dict& dict) {
    Residency out{.size = get_number(dict, "size"),
                  .resident = get_number(dict, "resident"),
                  .sampled = get_flag(dict, "sampled"),
                  .nodes = {},
                  .mapped_by = {}};
    for (const auto& it : get_dicts(dict, "nodes"))
        out.nodes[static_cast<unsigned>(get_number(it, "node"))] = get_number(it, "bytes");
    for (const auto& it : get_dicts(dict, "mapped_by"))
        out.mapped_by.push_back({static_cast<int>(get_number(it, "pid")), get_text(it, "command")});
    return out;
}

}  // namespace numalease::model
