#include <algorithm>
#include <array>

#include "engines/engine.hpp"
#include "engines/wrapper.hpp"

namespace numalease::client {

namespace {

/// Options of docker, nerdctl, podman and compose that stand before the verb and take a value.
constexpr std::array<std::string_view, 40> kValued{"-H",
                                                   "--host",
                                                   "-c",
                                                   "--context",
                                                   "--config",
                                                   "-l",
                                                   "--log-level",
                                                   "-f",
                                                   "--file",
                                                   "-p",
                                                   "--project-name",
                                                   "--profile",
                                                   "--env-file",
                                                   "--project-directory",
                                                   "-n",
                                                   "--namespace",
                                                   "-a",
                                                   "--address",
                                                   "--url",
                                                   "--connection",
                                                   "--root",
                                                   "--runroot",
                                                   "--cgroup-manager",
                                                   "--storage-driver",
                                                   "--tlscacert",
                                                   "--tlscert",
                                                   "--tlskey",
                                                   "--runtime",
                                                   "--runtime-flag",
                                                   "--storage-opt",
                                                   "--identity",
                                                   "--tmpdir",
                                                   "--module",
                                                   "--conmon",
                                                   "--events-backend",
                                                   "--data-root",
                                                   "--snapshotter",
                                                   "--parallel",
                                                   "--progress",
                                                   "--ansi"};

/// Verbs that start work in a container.
constexpr std::array<std::string_view, 7> kStarting{"run", "start", "restart", "exec", "up", "deploy", "play"};

template <class Words>
bool is_one_of(const Words& words, std::string_view word) {
    return std::ranges::find(words, word) != words.end();
}

/// The words that name what is done ("compose up", "container run"), and where the verb's own words begin.
struct Verb {
    std::string text;
    std::size_t end = 0;
    bool starts = false;
};

Verb verb_of(const Argv& argv, std::size_t program) {
    Verb verb;
    bool compose = base_name(argv[program]).ends_with("-compose");
    for (auto i = program + 1; i < argv.size(); ++i) {
        if (is_one_of(kValued, argv[i])) {
            ++i;
            continue;
        }
        if (argv[i].starts_with('-')) continue;
        verb.text += ' ' + argv[i];
        verb.end = i + 1;
        if (!compose && (argv[i] == "compose" || argv[i] == "container" || argv[i] == "pod" || argv[i] == "stack" ||
                         argv[i] == "kube")) {
            compose = true;
            continue;
        }
        verb.starts = is_one_of(kStarting, argv[i]);
        return verb;
    }
    return verb;
}

/// podman run --cgroups=split keeps the container below the cgroup it was started from.
bool is_split(const Argv& argv, std::size_t from) {
    for (auto i = from; i < argv.size(); ++i)
        if (argv[i] == "--cgroups=split" || (argv[i] == "--cgroups" && i + 1 < argv.size() && argv[i + 1] == "split"))
            return true;
    return false;
}

}  // namespace

std::optional<std::string> container_refusal(const Argv& argv) {
    constexpr std::array<std::string_view, 5> kClients{"docker", "nerdctl", "podman", "docker-compose",
                                                       "podman-compose"};
    const auto program = unwrap(argv).program;
    if (program >= argv.size() || !is_one_of(kClients, base_name(argv[program]))) return std::nullopt;
    const std::string client(base_name(argv[program]));
    const auto verb = verb_of(argv, program);
    if (!verb.starts) return std::nullopt;
    const bool runs = verb.text == " run" || verb.text == " container run";
    if (client == "podman" && runs && is_split(argv, verb.end)) return std::nullopt;

    std::string use;
    if (client == "podman" && runs)
        use = "numa-leasectl run -- podman run --cgroups=split …";
    else if (runs)
        use = "numa-leasectl run -- sh -c 'exec " + client +
              " run --cpuset-cpus=$NUMA_LEASE_CPUS --cpuset-mems=$NUMA_LEASE_NODES IMAGE …' (without -d)";
    else if (verb.text.ends_with(" up") || verb.text.ends_with(" run") || client.ends_with("-compose"))
        use = "`cpuset: ${NUMA_LEASE_CPUS}` in the service, and numa-leasectl run -- sh -c 'exec " + client +
              verb.text + " …' (without -d)";
    else
        use = "numa-leasectl run -- sh -c 'exec " + client +
              " run --cpuset-cpus=$NUMA_LEASE_CPUS --cpuset-mems=$NUMA_LEASE_NODES IMAGE …'";
    const bool composes = verb.text.ends_with(" up") || client.ends_with("-compose");
    const std::string named =
        composes ? "`cgroup_parent: numalease-NAME.slice` (numa-leasectl show NAME --as compose)"
                 : client + " run --cgroup-parent=numalease-NAME.slice … (numa-leasectl show NAME --as " +
                       (client == "podman" ? "quadlet)" : "docker)");
    return client + verb.text + ": its container has a cgroup of its own, so a lease would confine only the client; " +
           "use instead: " + use + "; or in a named lease (numa-leasectl hold NAME): " + named;
}

}  // namespace numalease::client
