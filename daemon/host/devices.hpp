#pragma once

#include <hwloc.h>

#include "host/root.hpp"
#include "model/topology.hpp"

namespace numalease::host {

/// Members of a bitmap below `limit`.
model::IndexSet from_bitmap(hwloc_const_bitmap_t bitmap, unsigned limit);

/// GPUs, network interfaces and block devices, GPUs first in the order of their PCI addresses. A GPU is a PCI device of
/// the class of displays or of accelerators, with a driver or without; the graphics chip of a board's management
/// controller is left out: it is never what "gpu:0" means. Its vendor is that of the chip, its UUID not known here.
std::vector<model::Device> read_devices(const Root& root, hwloc_topology_t hwloc, const model::NodeSet& nodes);

}  // namespace numalease::host
