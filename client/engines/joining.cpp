#include "engines/joining.hpp"

#include <algorithm>
#include <sstream>

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Lease;
using model::Result;

namespace {

constexpr std::string_view kUnbound = "not bound to the lease's life";

struct Names {
    std::string lease;
    std::string slice;
    std::string env;
    std::string cpus;
    std::string nodes;
    std::vector<std::string> uuids;  ///< of NVIDIA's GPUs: what a container is given
    std::string gpu_note;            ///< a comment on those that must be given otherwise
};

/// A container cannot fetch its environment file: that is read before there is a cgroup.
std::string while_held(const Names& it) {
    return "# while the lease is held: by numa-leasectl hold " + it.lease + ", or a unit with BindsTo=numa-lease@" +
           it.lease + ".service\n";
}

std::string joined(const std::vector<std::string>& items, const char* before, const char* between) {
    std::string out;
    for (const auto& item : items) out += (out.empty() ? "" : between) + (before + item);
    return out;
}

std::string docker_text(const Names& it) {
    // Docker reads the value as CSV, where a comma inside needs quotes of its own.
    const auto gpus = it.uuids.empty() ? "" : " --gpus '\"device=" + joined(it.uuids, "", ",") + "\"'";
    const auto sets = "--cpuset-cpus=" + it.cpus + " --cpuset-mems=" + it.nodes + gpus;
    if (it.slice.empty()) return it.gpu_note + "docker run " + sets + " IMAGE  # " + std::string(kUnbound) + '\n';
    return it.gpu_note + while_held(it) + "docker run --cgroup-parent=" + it.slice + " --env-file=" + it.env + gpus +
           " IMAGE\n# with the cgroupfs driver (docker info -f '{{.CgroupDriver}}'), " + std::string(kUnbound) +
           ":\n# docker run " + sets + " --env-file=" + it.env + " IMAGE\n";
}

std::string compose_text(const Names& it) {
    const auto cpuset = "cpuset: \"" + it.cpus + "\"  # " + std::string(kUnbound) + '\n';
    auto service = it.gpu_note + "services:\n  " + it.lease + ":\n";
    if (!it.uuids.empty())
        service +=
            "    deploy:\n      resources:\n        reservations:\n          devices:\n            - driver: nvidia\n"
            "              device_ids: [\"" +
            joined(it.uuids, "", "\", \"") + "\"]\n              capabilities: [gpu]\n";
    if (it.slice.empty()) return service + "    " + cpuset;
    return while_held(it) + service + "    cgroup_parent: " + it.slice + "\n    env_file:\n      - path: " + it.env +
           "\n        required: false  # Docker Compose 2.24\n    # with the cgroupfs driver, in place of "
           "cgroup_parent:\n    # " +
           cpuset;
}

std::string quadlet_text(const Names& it) {
    const auto unit = "numa-lease@" + it.lease + ".service";
    // By the names of the Container Device Interface, which nvidia-ctk cdi generate writes.
    const auto gpus = it.uuids.empty() ? "" : "\n" + joined(it.uuids, "AddDevice=nvidia.com/gpu=", "\n");
    return it.gpu_note + "[Unit]\nBindsTo=" + unit + "\nAfter=" + unit + "\n\n[Container]\nEnvironmentFile=" + it.env +
           gpus + "\n\n[Service]\nSlice=" + it.slice + '\n';
}

}  // namespace

Result<std::string> joining_environment(const policies::Library& library, const model::Policy* policy,
                                        const std::string& engine, const LeaseFacts& facts) {
    Argv argv{"true"};
    if (!engine.empty()) {
        const auto found = library.engines.find(engine);
        if (found == library.engines.end()) {
            std::string known;
            for (const auto& [name, it] : library.engines) known += (known.empty() ? "" : ", ") + name;
            return fail(Errc::unreadable, "engine '" + engine + "' does not exist; there are: " + known);
        }
        if (!found->second.programs.empty()) {
            argv.clear();
            std::istringstream words(found->second.programs.front());
            for (std::string word; words >> word;) argv.push_back(word);
            if (!found->second.folders.empty()) argv.front() = found->second.folders.front() + '/' + argv.front();
        }
    }
    std::string out;
    for (const auto& [name, value] : adapt(library, policy, argv, {}, facts, false).env) {
        const auto plain = [](char c) { return c != '\'' && c != '"' && c != '\\' && c != '\n'; };
        if (std::ranges::all_of(value, plain)) out += name + '=' + value + '\n';
    }
    return out;
}

std::string environment_file(const std::string& runtime_directory, const std::string& name) {
    return runtime_directory + "/env/" + name;
}

Result<std::string> joining_text(const Lease& lease, std::string_view as, const std::string& runtime_directory,
                                 const std::string& environment) {
    const auto& name = lease.request.name;
    Names it{.lease = name.empty() ? lease.id : name,
             .slice = {},
             .env = {},
             .cpus = lease.placement.cpus.text(),
             .nodes = lease.placement.nodes.text(),
             .uuids = {},
             .gpu_note = {}};
    for (const auto& gpu : lease.placement.gpus) {
        if (gpu.vendor == "nvidia" && !gpu.uuid.empty())
            it.uuids.push_back(gpu.uuid);
        else
            it.gpu_note += "# GPU " + gpu.pci +
                           (gpu.vendor == "amd" ? ": give it --device /dev/kfd --device /dev/dri; ROCR_VISIBLE_DEVICES "
                                                  "in the environment chooses it\n"
                                                : ": has no UUID, so nothing here gives it to the container\n");
    }
    if (it.cpus.empty()) return fail(Errc::not_now, lease.id + " has no place yet: " + lease.reason);
    if (!name.empty()) it.slice = "numalease-" + name + ".slice";
    if (!name.empty()) it.env = environment_file(runtime_directory, name);
    if (as == "env") return environment;
    if (as == "docker") return docker_text(it);
    if (as == "compose") return compose_text(it);
    if (as != "quadlet")
        return fail(Errc::invalid_request, "--as: '" + std::string(as) + "' is none of docker, compose, quadlet, env");
    if (name.empty())
        return fail(Errc::invalid_request,
                    lease.id + " has no name, so no unit can join it; hold one with " +
                        "numa-leasectl hold NAME, or by a unit with BindsTo=numa-lease@NAME.service");
    return quadlet_text(it);
}

}  // namespace numalease::client
