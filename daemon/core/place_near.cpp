#include <algorithm>
#include <cctype>

#include "core/placing.hpp"

namespace numalease::core::placing {

namespace {

using model::Device;
using model::Errc;
using model::Topology;

std::string lower(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

constexpr std::string_view kUuid = "GPU-";

bool is_number(const std::string& text) {
    return std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// "81:00.0" is "0000:81:00.0": lspci leaves domain 0 out, and so do people.
std::string full_address(const std::string& text) {
    const auto address = lower(text);
    return std::ranges::count(address, ':') == 1 ? "0000:" + address : address;
}

model::Result<const Device*> find_device(const Topology& topology, const std::string& text) {
    const auto colon = text.find(':');
    const auto kind = text.substr(0, colon);
    const auto value = colon == std::string::npos ? std::string() : text.substr(colon + 1);
    const auto nothing = [&](const std::string& of) {
        return model::fail(Errc::impossible, "near " + text + ": no such device; " + existing(topology, of));
    };
    if (value.empty() || (kind != "pci" && kind != "gpu" && kind != "netdev" && kind != "block"))
        return model::fail(Errc::invalid_request,
                           "near '" + text + "': write pci:ADDRESS, gpu:N, gpu:UUID, netdev:NAME or block:NAME");
    if (kind == "pci") {
        const auto address = full_address(value);
        for (const auto& device : topology.devices)
            if (!device.pci.empty() && full_address(device.pci) == address) return &device;
        return nothing("");
    }
    if (kind == "gpu") {
        if (!is_number(value) && !value.starts_with(kUuid))
            return model::fail(
                Errc::invalid_request,
                "near '" + text + "': a GPU is named by its number in bus order (gpu:0), its UUID or pci:ADDRESS");
        const auto index = find_gpu(topology, value);
        if (!index) return nothing(kind);
        return of_kind(topology, kind)[*index];
    }
    for (const auto* device : of_kind(topology, kind))
        if (device->name == value) return device;
    return nothing(kind);
}

}  // namespace

std::vector<const Device*> of_kind(const Topology& topology, const std::string& kind) {
    std::vector<const Device*> out;
    for (const auto& device : topology.devices)
        if (device.kind == kind) out.push_back(&device);
    std::ranges::stable_sort(out, [](const Device* a, const Device* b) {
        const auto left = lower(a->pci);
        const auto right = lower(b->pci);
        return left.size() != right.size() ? left.size() < right.size() : left < right;
    });
    return out;
}

std::string existing(const Topology& topology, const std::string& kind) {
    auto devices = of_kind(topology, kind);
    if (kind.empty())
        for (const auto& device : topology.devices)
            if (!device.pci.empty()) devices.push_back(&device);
    if (devices.empty()) return "this machine has no " + (kind.empty() ? std::string("PCI device") : kind) + " we know";
    constexpr std::size_t kShown = 16;
    std::string out = "this machine has ";
    for (std::size_t i = 0; i < devices.size() && i < kShown; ++i) {
        const auto& it = *devices[i];
        if (i > 0) out += ", ";
        if (kind == "gpu")
            out += "gpu:" + std::to_string(i) + " (" + it.pci + (it.uuid.empty() ? "" : ", " + it.uuid) + ")";
        if (kind == "netdev" || kind == "block") out += kind + ":" + it.name;
        if (kind.empty()) out += "pci:" + it.pci;
    }
    return devices.size() > kShown ? out + ", …" : out;
}

std::optional<unsigned> find_gpu(const Topology& topology, const std::string& text) {
    const auto all = of_kind(topology, "gpu");
    if (is_number(text)) {
        const auto index = model::parse_unsigned(text, "gpu", all.size());
        return index && *index < all.size() ? std::optional(static_cast<unsigned>(*index)) : std::nullopt;
    }
    const bool by_uuid = text.starts_with(kUuid);
    for (unsigned i = 0; i < all.size(); ++i)
        if (by_uuid ? lower(all[i]->uuid) == lower(text) : full_address(all[i]->pci) == full_address(text)) return i;
    return std::nullopt;
}

model::Result<Near> find_near(const Topology& topology, const std::string& text) {
    Near near;
    near.cost.assign(topology.nodes.size(), 0);
    if (text.empty()) return near;
    const auto device = find_device(topology, text);
    if (!device) return std::unexpected(device.error());
    near.label = text;
    if (const auto& pci = (*device)->pci; !pci.empty() && !text.starts_with("pci:")) near.label += " (" + pci + ")";
    near.nodes = (*device)->nodes & topology.node_ids();
    if (near.nodes.empty() && (*device)->kind == "gpu")
        for (const auto& gpu : homed_gpus(topology))
            if (gpu.device == *device) {
                near.nodes = gpu.home;
                near.balanced = gpu.balanced;
            }
    for (std::size_t i = 0; i < topology.nodes.size() && near.decides(); ++i) {
        unsigned best = ~0U;
        for (const unsigned id : near.nodes.items())
            best = std::min(best, topology.distance_between(topology.nodes[i].id, id));
        near.cost[i] = best;
    }
    return near;
}

}  // namespace numalease::core::placing
