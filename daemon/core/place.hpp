#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/observed.hpp"
#include "model/lease.hpp"
#include "model/request.hpp"

namespace numalease::core {

/// One lease as the solver sees it.
struct Occupant {
    model::LeaseId id;
    model::CpuSet cpus;
    bool share = false;                            ///< others who share may use its CPUs
    bool over = false;                             ///< looked at as if it had ended: what it holds has come back
    std::map<unsigned, model::Bytes> outstanding;  ///< max(0, promise − used) per node
    std::set<std::string> gpus;                    ///< by PCI address
    unsigned gpu_share = 1;                        ///< how many leases may have one of them together
};

/// What bounds a placement besides the machine itself.
struct Occupancy {
    std::vector<Occupant> occupants;
    model::CpuSet allowed_cpus;  ///< of the caller (for a nested request: of the parent lease)
    model::NodeSet allowed_nodes;
    std::optional<std::set<std::string>> allowed_gpus;  ///< of the parent lease; nothing: all
    model::CpuSet foreign_cpus;                         ///< never leased
    model::Bytes reserve = 256 * model::kMiB;           ///< kept free on every node for the kernel and everybody else
    bool explain = true;                                ///< where there is no room: what is in the way, and what fits
};

/// Why there is no placement.
/// not_now: it would fit if those in `in_the_way` were gone; impossible: not on this machine, not for this caller.
struct NoPlace {
    model::Error error;
    std::vector<model::LeaseId> in_the_way;
    std::string fits_now;  ///< a request that would be granted at once, as options: "--node 2", or empty
};

/// The smallest set of nodes that holds the request, nearest to the device asked for and to each other; inside a node
/// whole cores, whole last-level-cache groups first; among equals the one that leaves the largest hole. GPUs are chosen
/// first, and draw the rest to them where the request names neither nodes nor a device to be near to.
/// Pure. Cost: about nodes² · log(nodes) + cores; 64 nodes and 4096 threads with 200 leases take well under 1 ms.
/// Source: DESIGN "Placement"; best fit as in Knuth, TAOCP 2.5.
std::expected<model::Placement, NoPlace> place(const Observed& observed, const Occupancy& occupancy,
                                               const model::Request& request);

}  // namespace numalease::core
