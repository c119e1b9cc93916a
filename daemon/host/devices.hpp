#pragma once

#include <hwloc.h>

#include "host/root.hpp"
#include "model/topology.hpp"

namespace numalease::host {

/// Members of a bitmap below `limit`.
model::IndexSet from_bitmap(hwloc_const_bitmap_t bitmap, unsigned limit);

/// GPUs, network interfaces and block devices, GPUs first in the order of their PCI addresses. The graphics chip of a
/// board's management controller is left out: it is never what "gpu:0" means.
std::vector<model::Device> read_devices(const Root& root, hwloc_topology_t hwloc, const model::NodeSet& nodes);

}  // namespace numalease::host
