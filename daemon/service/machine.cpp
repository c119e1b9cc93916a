#include "service/machine.hpp"

#include "host/process.hpp"

namespace numalease::service {

model::Result<Machine> open_machine(const std::string& root_directory, const std::string& gpu_directory) {
    auto root = host::Root::open(root_directory);
    if (!root) return std::unexpected(root.error());
    auto proc = host::Root::open("/proc");
    if (!proc) return std::unexpected(proc.error());
    auto gpus = host::Root::open(gpu_directory);
    if (!gpus) return std::unexpected(gpus.error());
    Machine machine{.root = std::move(*root), .proc = std::move(*proc), .gpus = std::move(*gpus), .cgroup2 = {}};
    machine.cgroup2 = host::find_cgroup2(machine.root, machine.proc);
    return machine;
}

}  // namespace numalease::service
