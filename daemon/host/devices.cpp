#include "host/devices.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <tuple>

namespace numalease::host {

using model::Device;
using model::IndexSet;
using model::NodeSet;

namespace {

constexpr unsigned kDisplayClass = 0x03;
constexpr unsigned kAccelerator = 0x12;
constexpr std::array<unsigned, 2> kManagementVendors{0x1a03, 0x102b};  // ASPEED, Matrox
constexpr std::array<std::string_view, 3> kManagementDrivers{"ast", "mgag200", "hibmc-drm"};

std::string pci_address(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%01x", static_cast<unsigned>(pci.domain), pci.bus, pci.dev,
                  pci.func);
    return text.data();
}

hwloc_obj_t pci_of(hwloc_obj_t object) {
    while (object != nullptr && object->type != HWLOC_OBJ_PCI_DEVICE) object = object->parent;
    return object;
}

bool is_management(hwloc_obj_t pci, std::string_view driver) {
    return std::ranges::count(kManagementVendors, pci->attr->pcidev.vendor_id) != 0 ||
           std::ranges::count(kManagementDrivers, driver) != 0;
}

/// Whose variables choose it: CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES.
std::string vendor_of(hwloc_obj_t pci) {
    switch (pci->attr->pcidev.vendor_id) {
        case 0x10de: return "nvidia";
        case 0x1002: return "amd";
        default: return "";
    }
}

/// Nodes a device is local to. The firmware's word is numa_node; -1 or no file: it does not say, and then hwloc's guess
/// counts only where it is narrower than the machine. With one node there is nothing to guess.
NodeSet nodes_near(const Root& root, hwloc_topology_t hwloc, hwloc_obj_t object, const std::string& pci,
                   const NodeSet& nodes) {
    if (nodes.size() == 1) return nodes;
    if (!pci.empty()) {
        if (const auto text = root.read("sys/bus/pci/devices/" + pci + "/numa_node")) {
            const auto node = model::parse_unsigned(model::trim(*text), "node", model::kNodeLimit - 1);
            if (!node) return {};
            if (nodes.contains(static_cast<unsigned>(*node))) return NodeSet{static_cast<unsigned>(*node)};
        }
    }
    const auto* around = hwloc_get_non_io_ancestor_obj(hwloc, object);
    if (around == nullptr || around->nodeset == nullptr) return {};
    if (hwloc_bitmap_isequal(around->nodeset, hwloc_get_root_obj(hwloc)->nodeset) != 0) return {};
    return from_bitmap(around->nodeset, model::kNodeLimit) & nodes;
}

/// "renderD128" and "card0" are one device: its PCI address is what tells them apart from others.
std::string gpu_name(hwloc_obj_t object) {
    for (const char* key : {"GPUModel", "PCIDevice"})
        if (const char* text = hwloc_obj_get_info_by_name(object, key)) return text;
    if (object->type != HWLOC_OBJ_PCI_DEVICE || object->attr->pcidev.vendor_id == 0)
        return object->name != nullptr ? object->name : "";
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "%04x:%04x", object->attr->pcidev.vendor_id,
                  object->attr->pcidev.device_id);
    return text.data();
}

std::string_view kind_of(hwloc_obj_t os_device) {
    switch (os_device->attr->osdev.type) {
        case HWLOC_OBJ_OSDEV_GPU:
        case HWLOC_OBJ_OSDEV_COPROC: return "gpu";
        case HWLOC_OBJ_OSDEV_NETWORK: return "netdev";
        case HWLOC_OBJ_OSDEV_BLOCK: return "block";
        default: return "";
    }
}

}  // namespace

IndexSet from_bitmap(hwloc_const_bitmap_t bitmap, unsigned limit) {
    IndexSet set;
    for (int i = hwloc_bitmap_first(bitmap); i >= 0 && static_cast<unsigned>(i) < limit;
         i = hwloc_bitmap_next(bitmap, i))
        set.add(static_cast<unsigned>(i));
    return set;
}

std::vector<Device> read_devices(const Root& root, hwloc_topology_t hwloc, const NodeSet& nodes) {
    std::vector<Device> devices;
    const auto add = [&](std::string_view kind, hwloc_obj_t object, std::string name) {
        auto* pci = pci_of(object);
        Device device{.pci = pci != nullptr ? pci_address(pci->attr->pcidev) : std::string{},
                      .kind = std::string(kind),
                      .name = std::move(name)};
        if (kind == "gpu") {
            if (pci == nullptr) return;
            device.driver = root.link_name("sys/bus/pci/devices/" + device.pci + "/driver");
            if (is_management(pci, device.driver)) return;
            device.vendor = vendor_of(pci);
        }
        device.nodes = nodes_near(root, hwloc, object, device.pci, nodes);
        const bool known = std::any_of(devices.begin(), devices.end(), [&](const Device& other) {
            return kind == "gpu" && other.kind == kind && !other.pci.empty() && other.pci == device.pci;
        });
        if (!known) devices.push_back(std::move(device));
    };
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_pcidev(hwloc, object)) != nullptr) {
        const unsigned base_class = object->attr->pcidev.class_id >> 8U;
        if (base_class == kDisplayClass || base_class == kAccelerator) add("gpu", object, gpu_name(object));
    }
    while ((object = hwloc_get_next_osdev(hwloc, object)) != nullptr) {
        const auto kind = kind_of(object);
        if (kind.empty() || object->name == nullptr) continue;
        add(kind, object, kind == "gpu" ? gpu_name(object) : std::string(object->name));
    }
    const auto rank = [](const Device& device) {
        return std::tuple(device.kind != "gpu", device.kind != "netdev", device.pci.size(), device.pci, device.name);
    };
    std::stable_sort(devices.begin(), devices.end(),
                     [&](const Device& a, const Device& b) { return rank(a) < rank(b); });
    return devices;
}

}  // namespace numalease::host
