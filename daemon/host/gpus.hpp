#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/root.hpp"
#include "model/topology.hpp"

namespace numalease::host {

/// What a driver's own files say of one GPU.
struct NamedGpu {
    std::string pci;
    std::string vendor;  ///< whose variables choose it: "nvidia" or "amd"
    std::string uuid;    ///< empty where it is not known: NVIDIA's driver learns it when the card is first used
    std::string name;    ///< its model, where the driver says

    bool operator==(const NamedGpu&) const = default;
};

/// The text of proc/driver/nvidia/gpus/ADDR/information. Pure.
NamedGpu parse_nvidia(const std::string& pci, std::string_view text);
/// The text of sys/class/kfd/kfd/topology/nodes/N/properties; nothing for a node of CPUs. Pure.
/// Source: the kernel's kfd_topology.c; ROCm's "GPU isolation techniques".
std::optional<NamedGpu> parse_amd(std::string_view text);

/// Says `vendor`, `uuid` and `name` of the GPUs that a driver below `root` knows; the others stay as they are.
void name_gpus(const Root& root, std::vector<model::Device>& devices);

/// Which GPUs the drivers below `root` know: changes when one is loaded, or finds another.
std::string gpu_fingerprint(const Root& root);

}  // namespace numalease::host
