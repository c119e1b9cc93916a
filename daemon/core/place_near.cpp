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

/// "81:00.0" is "0000:81:00.0": lspci leaves domain 0 out, and so do people.
std::string full_address(const std::string& text) {
    const auto address = lower(text);
    return std::ranges::count(address, ':') == 1 ? "0000:" + address : address;
}

/// All devices of a kind, in bus order: a driver's own numbers are not the bus order (CASES 35).
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

/// What there is instead: "0: 0000:81:00.0, 1: …" or the names.
std::string existing(const std::vector<const Device*>& devices, const std::string& kind) {
    if (devices.empty()) return "this machine has no " + (kind.empty() ? std::string("PCI device") : kind) + " we know";
    constexpr std::size_t kShown = 16;
    std::string out = "this machine has ";
    for (std::size_t i = 0; i < devices.size() && i < kShown; ++i) {
        if (i > 0) out += ", ";
        if (kind == "gpu") out += "gpu:" + std::to_string(i) + " (" + devices[i]->pci + ")";
        if (kind == "netdev" || kind == "block") out += kind + ":" + devices[i]->name;
        if (kind.empty()) out += "pci:" + devices[i]->pci;
    }
    return devices.size() > kShown ? out + ", …" : out;
}

model::Result<const Device*> find_device(const Topology& topology, const std::string& text) {
    const auto colon = text.find(':');
    const auto kind = text.substr(0, colon);
    const auto value = colon == std::string::npos ? std::string() : text.substr(colon + 1);
    if (value.empty() || (kind != "pci" && kind != "gpu" && kind != "netdev" && kind != "block"))
        return model::fail(Errc::invalid_request,
                           "near '" + text + "': write pci:ADDRESS, gpu:N, netdev:NAME or block:NAME");
    std::vector<const Device*> all;
    if (kind == "pci") {
        const auto address = full_address(value);
        for (const auto& device : topology.devices) {
            if (device.pci.empty()) continue;
            if (full_address(device.pci) == address) return &device;
            all.push_back(&device);
        }
        return model::fail(Errc::impossible, "near " + text + ": no such device; " + existing(all, ""));
    }
    all = of_kind(topology, kind);
    if (kind == "gpu") {
        if (!std::ranges::all_of(value, [](unsigned char c) { return std::isdigit(c) != 0; }))
            return model::fail(Errc::invalid_request,
                               "near '" + text + "': a GPU is named by its number in bus order (gpu:0) or pci:ADDRESS");
        const auto index = model::parse_unsigned(value, "near gpu", 65535);
        if (index && *index < all.size()) return all[*index];
    }
    for (const auto* device : all)
        if (kind != "gpu" && device->name == value) return device;
    return model::fail(Errc::impossible, "near " + text + ": no such device; " + existing(all, kind));
}

}  // namespace

model::Result<Near> find_near(const Topology& topology, const std::string& text) {
    Near near;
    near.cost.assign(topology.nodes.size(), 0);
    if (text.empty()) return near;
    const auto device = find_device(topology, text);
    if (!device) return std::unexpected(device.error());
    near.label = text;
    if (const auto& pci = (*device)->pci; !pci.empty() && !text.starts_with("pci:")) near.label += " (" + pci + ")";
    near.nodes = (*device)->nodes & topology.node_ids();
    for (std::size_t i = 0; i < topology.nodes.size() && near.decides(); ++i) {
        unsigned best = ~0U;
        for (const unsigned id : near.nodes.items())
            best = std::min(best, topology.distance_between(topology.nodes[i].id, id));
        near.cost[i] = best;
    }
    return near;
}

}  // namespace numalease::core::placing
