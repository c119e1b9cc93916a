#include "engines/gpus.hpp"

#include <algorithm>
#include <array>

namespace numalease::client {

namespace {

struct Vendor {
    std::string_view name;
    std::string_view shown;
    std::string_view variable;
    std::string_view way_out;  ///< of a UUID that is not known
};
constexpr std::array kVendors{Vendor{"nvidia", "NVIDIA", "CUDA_VISIBLE_DEVICES",
                                     "nvidia-smi -L makes the driver look, nvidia-persistenced lasts"},
                              Vendor{"amd", "AMD", "ROCR_VISIBLE_DEVICES", "the driver has none for it"}};

std::vector<std::string> items_of(std::string_view list) {
    std::vector<std::string> out;
    while (!list.empty()) {
        const auto comma = list.find(',');
        if (const auto item = model::trim(list.substr(0, comma)); !item.empty()) out.emplace_back(item);
        list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    }
    return out;
}

std::string pci_list(const std::vector<model::Gpu>& gpus) {
    std::string out;
    for (const auto& gpu : gpus) out += (out.empty() ? "" : ",") + gpu.pci;
    return out;
}

/// CUDA takes the beginning of a UUID for the whole.
bool names(const std::string& item, const std::string& uuid) {
    return item.starts_with("GPU-") && uuid.starts_with(item);
}

/// Inside a lease a list that has all of ours is what was said for that lease, of which this is a part.
bool is_of_outer_lease(const Env& env, const std::vector<std::string>& theirs, const std::vector<std::string>& ours) {
    const auto leased = env.find("NUMA_LEASE_GPUS");
    return env.contains("NUMA_LEASE_ID") && leased != env.end() && !leased->second.empty() &&
           std::ranges::all_of(ours, [&](const auto& uuid) { return std::ranges::count(theirs, uuid) != 0; });
}

/// What the user's own list asks for that is not leased; empty for nothing.
std::string foreign(const std::vector<std::string>& theirs, const std::vector<std::string>& ours) {
    for (const auto& item : theirs) {
        if (item == "-1" || item == "NoDevFiles") return {};  // none, and none behind it
        if (std::ranges::none_of(ours, [&](const auto& uuid) { return names(item, uuid); })) return item;
    }
    return {};
}

void tell(const Vendor& vendor, const std::string& uuids, const Env& env, GpuWords& out) {
    const std::string name(vendor.variable);
    const auto found = env.find(name);
    const auto ours = items_of(uuids);
    if (found == env.end() || is_of_outer_lease(env, items_of(found->second), ours)) {
        out.env[name] = uuids;
        return;
    }
    const auto other = foreign(items_of(found->second), ours);
    if (other.empty()) return;
    const bool index = other.find_first_not_of("0123456789") == std::string::npos;
    out.warnings.push_back(
        name + '=' + found->second + " is yours and stays, but " + other +
        (index ? " counts in the library's own order and may be another GPU than the leased: " : " is not leased: ") +
        "unset it, or set it to " + uuids);
}

}  // namespace

std::string gpu_uuids(const std::vector<model::Gpu>& gpus, std::string_view vendor) {
    std::string out;
    for (const auto& gpu : gpus) {
        if (gpu.vendor != vendor) continue;
        if (gpu.uuid.empty()) return {};
        out += (out.empty() ? "" : ",") + gpu.uuid;
    }
    return out;
}

GpuWords gpu_words(const std::vector<model::Gpu>& gpus, const Env& env) {
    GpuWords out;
    if (gpus.empty()) return out;
    out.env["NUMA_LEASE_GPUS"] = pci_list(gpus);
    for (const auto& vendor : kVendors) {
        std::vector<model::Gpu> own;
        std::ranges::copy_if(gpus, std::back_inserter(own), [&](const auto& it) { return it.vendor == vendor.name; });
        if (own.empty()) continue;
        if (vendor.name == "nvidia" && !env.contains("CUDA_DEVICE_ORDER")) out.env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
        if (const auto uuids = gpu_uuids(own, vendor.name); !uuids.empty()) {
            tell(vendor, uuids, env, out);
            continue;
        }
        std::erase_if(own, [](const auto& it) { return !it.uuid.empty(); });
        out.warnings.push_back("GPU " + pci_list(own) + ": " + std::string(vendor.shown) +
                               "'s driver does not say its UUID, so " + std::string(vendor.variable) +
                               " is not set (an index might be another's card): " + std::string(vendor.way_out));
    }
    std::vector<model::Gpu> others;
    std::ranges::copy_if(gpus, std::back_inserter(others), [](const auto& it) {
        return std::ranges::none_of(kVendors, [&](const auto& vendor) { return it.vendor == vendor.name; });
    });
    if (!others.empty())
        out.warnings.push_back("GPU " + pci_list(others) +
                               ": no driver of NVIDIA or AMD knows it, so that no variable chooses it; its address is "
                               "in NUMA_LEASE_GPUS");
    return out;
}

}  // namespace numalease::client
