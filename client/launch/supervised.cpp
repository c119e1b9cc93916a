#include "launch/supervised.hpp"

#include <systemd/sd-daemon.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "launch/supervisor.hpp"
#include "launch/together.hpp"
#include "launch/warming.hpp"
#include "reach/obtain.hpp"
#include "reach/starting.hpp"
#include "text/output.hpp"

namespace numalease::client {

using model::Dict;
using model::Errc;
using model::fail;
using model::Lease;
using model::Result;

namespace {

/// Those of the lease's nodes that have some of its CPUs.
std::vector<unsigned> nodes_to_run_on(const model::Placement& placement, const Dict& topology) {
    std::vector<unsigned> out;
    for (const auto& node : model::get_dicts(topology, "nodes")) {
        const auto id = static_cast<unsigned>(model::get_number(node, "id"));
        const auto cpus = model::CpuSet::parse(model::get_text(node, "cpus")).value_or(model::CpuSet{});
        if (placement.nodes.contains(id) && cpus.intersects(placement.cpus)) out.push_back(id);
    }
    return out;
}

/// How the command will be run, as far as that says where it answers.
std::optional<Serving> serving(const Kept& run, const LeaseFacts& facts) {
    auto env = current_environment();
    const auto adapted = adapt(run.library, &run.policy, run.command, env, facts, run.expand);
    for (const auto& [name, value] : adapted.env) env[name] = value;
    return serving_of(run.library, adapted.argv, env);
}

void say_stays(const Kept& run, const std::string& why) {
    if (run.quiet) return;
    say(run.policy.name + ": this process stays to " + why +
        "; it hands signals on, and ends with the first status that is a failure");
}

void hear(const Kept& run, const std::string& line) {
    if (!run.quiet) say(run.policy.name + ": " + line);
    tell_manager(line);
}

/// To the manager that waits for us, and in words where it is known to be true.
void announce(const Kept& run, const std::string& what) {
    if (!run.quiet && !what.empty()) say(run.policy.name + ": ready" + what);
    sd_notify(0, "READY=1");
}

/// Instances as they are started.
class Instances {
public:
    Instances(const Kept& run, std::vector<unsigned> nodes, const Lease& whole)
        : run_(run), nodes_(std::move(nodes)), gpus_(whole.placement.gpus), lease_(whole.id) {}

    int run_all() {
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            together_.add();
            const auto name = "instance " + std::to_string(i) + " on node " + std::to_string(nodes_[i]);
            const auto pid = supervisor_.start(name, [this, i] { return be(i); });
            together_.added();
            if (!pid) return say_failure(pid.error());  // the others see that nobody tells them to begin
        }
        // Where one has no lease, its status is ours, and the others end without a word.
        begun_ = together_.begin();
        if (!begun_) return supervisor_.watch(false);
        await_all();
        return supervisor_.watch(run_.policy.run.restart);
    }

private:
    /// In the child: a lease of its own, then the command, once all have theirs.
    int be(std::size_t index) {
        together_.enter();
        Entry entry{.library = run_.library,
                    .policy = &run_.policy,
                    .request = {},
                    .facts = {},
                    .command = run_.command,
                    .expand = run_.expand,
                    .quiet = run_.quiet};
        {
            auto daemon = reach(run_.endpoint, Need::changing);
            if (!daemon) return say_failure(daemon.error());
            const auto dict =
                obtain(*daemon, run_.endpoint, request_of_one(run_.asked.dict, nodes_[index]), run_.quiet);
            if (!dict) return say_failure(dict.error());
            const auto lease = model::lease_from_dict(*dict);
            if (!lease) return say_failure(lease.error());
            entry.request = lease->request;
            entry.facts = facts_of(lease->id, lease->placement, lease->confinement, run_.topology);
            entry.facts.gpus = gpus_;
            entry.set_affinity = true;
        }
        if (!run_.quiet)
            say("instance " + std::to_string(index) + ": lease " + entry.facts.id + ", node " +
                entry.facts.nodes.text() + ", CPUs " + entry.facts.cpus.text());
        entry.facts.huge_pages = has_huge_pages(run_.asked.request);
        entry.facts.index = static_cast<unsigned>(index);
        entry.facts.instances = static_cast<unsigned>(nodes_.size());
        if (!begun_ && !together_.wait_for_all(index)) return 0;
        return enter(entry);
    }

    void await_all() {
        std::vector<Serving> servers;
        std::string ports;
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            const LeaseFacts facts{.nodes = model::NodeSet{nodes_[i]},
                                   .index = static_cast<unsigned>(i),
                                   .instances = static_cast<unsigned>(nodes_.size())};
            auto server = serving(run_, facts);
            if (!server || !server->is_here()) return announce(run_, "");
            ports += (ports.empty() ? ": port " : ", ") + std::to_string(server->port);
            servers.push_back(std::move(*server));
        }
        const auto helped = supervisor_.help(
            [this, servers](int lines) { return await_ready(servers, run_.endpoint, lease_, lines); },
            [this](const std::string& line) { hear(run_, line); }, [this, ports](bool) { announce(run_, ports); });
        if (!helped) say_failure(helped.error());
    }

    const Kept& run_;
    std::vector<unsigned> nodes_;
    std::vector<model::Gpu> gpus_;  ///< of the whole, which every instance may use
    std::string lease_;             ///< the whole
    Together together_;
    bool begun_ = false;     ///< who is started now need not wait for the others
    Supervisor supervisor_;  // the last: its children are to see the rest
};

Bounds bounds_of(const Lease& lease, const std::string& model_file) {
    std::error_code error;
    const auto real = std::filesystem::canonical(model_file, error);
    Bounds out{.lease = lease.id,
               .nodes = lease.placement.nodes,
               .cpus = lease.placement.cpus,
               .policy = {},
               .weights = {},
               .machine = {},
               .model = error ? model_file : real.string(),
               .verified = {}};
    out.policy = memory_policy(lease.request, out.nodes, out.nodes.size());
    return out;
}

}  // namespace

Dict request_of_all(const Dict& asked) {
    auto out = asked;
    out.erase("memory");
    out.erase("memory-is-estimate");
    return out;
}

Dict request_of_one(const Dict& asked, unsigned node) {
    constexpr std::array<const char*, 7> kOwn{"policy",    "mode",    "memory", "memory-is-estimate",
                                              "mempolicy", "command", "reason"};
    // Whose turn it is was settled by the whole: only the last run of this instance can be in the way, and it ends.
    Dict out{{"node", std::to_string(node)}, {"wait", "1min"}};
    for (const auto* field : kOwn)
        if (const auto found = asked.find(field); found != asked.end()) out.emplace(field, found->second);
    return out;
}

model::Placement place_of_one(const model::Placement& all, const Dict& topology) {
    const auto nodes = nodes_to_run_on(all, topology);
    if (nodes.empty()) return all;
    model::Placement out;
    out.nodes = model::NodeSet{nodes.front()};
    out.gpus = all.gpus;
    for (const auto& core : model::get_dicts(topology, "cores")) {
        const auto cpus = model::CpuSet::parse(model::get_text(core, "cpus")).value_or(model::CpuSet{}) & all.cpus;
        if (model::get_number(core, "node") != nodes.front() || cpus.empty()) continue;
        out.cpus |= cpus;
        ++out.cores;
    }
    out.threads = all.threads == all.cpus.size() ? out.cpus.size() : out.cores;
    return out;
}

Result<void> check_instances(const policies::Library& library, const Asked& asked, const Argv& command, bool expand,
                             const Dict& topology) {
    const auto& nodes = asked.request.nodes;
    auto most = static_cast<std::size_t>(model::get_dicts(topology, "nodes").size());
    if (nodes.kind == model::Choice::Kind::list) most = nodes.items.size();
    if (nodes.kind == model::Choice::Kind::any) most = nodes.count;
    if (most < 2) return {};
    if (const auto refusal = port_refusal(library, command, current_environment(), expand))
        return fail(Errc::invalid_request, *refusal);
    return {};
}

int run_instances(const Kept& run, const Lease& lease) {
    auto nodes = nodes_to_run_on(lease.placement, run.topology);
    if (nodes.empty()) return say_failure({Errc::impossible, "no node of " + lease.id + " has CPUs of it", 0});
    say_stays(run, "watch " + std::to_string(nodes.size()) + (nodes.size() == 1 ? " instance" : " instances"));
    return Instances(run, std::move(nodes), lease).run_all();
}

int run_warmed(const Kept& run, const Lease& lease, const std::function<int()>& become) {
    auto server = serving(run, facts_of(lease.id, lease.placement, lease.confinement, run.topology));
    const auto program = run.command.front();
    if (!server || server->warm.empty()) {
        say(run.policy.name + ": " + program + " is no server that can be made to generate: it is not warmed");
        return become();
    }
    if (!server->is_here()) {
        say(run.policy.name + ": the server listens at " + server->host + ", not at 127.0.0.1: it is not warmed");
        return become();
    }
    say_stays(run, "warm the server before it is announced");
    Supervisor supervisor;
    const auto pid = supervisor.start(program, become);
    if (!pid) return say_failure(pid.error());
    const ToWarm what{.serving = std::move(*server),
                      .rule = *run.policy.run.warm,
                      .pid = *pid,
                      .bounds = bounds_of(lease, run.asked.model),
                      .endpoint = run.endpoint};
    const auto helped = supervisor.help(
        [&what](int lines) { return warm_up(what, lines); }, [&run](const std::string& line) { hear(run, line); },
        [&](bool warmed) {
            announce(run, (warmed ? ": port " : ", and not warmed: port ") + std::to_string(what.serving.port));
        });
    if (!helped) say_failure(helped.error());
    return supervisor.watch(false);
}

int run_verified(const Kept& run, const Lease& lease, const std::function<int()>& become) {
    const auto server = serving(run, facts_of(lease.id, lease.placement, lease.confinement, run.topology));
    say_stays(run, "say where its memory is once it has loaded");
    Supervisor supervisor;
    const auto pid = supervisor.start(run.command.front(), become);
    if (!pid) return say_failure(pid.error());
    const ToWarm what{.serving = server && server->is_here() ? *server : Serving{},
                      .rule = {},
                      .pid = *pid,
                      .bounds = bounds_of(lease, run.asked.model),
                      .endpoint = run.endpoint};
    const auto helped = supervisor.help(
        [&what](int lines) { return verify(what, lines); }, [&run](const std::string& line) { hear(run, line); },
        [&run](bool fine) { announce(run, fine ? ": verified" : ": not as it was leased"); });
    if (!helped) say_failure(helped.error());
    return supervisor.watch(false);
}

}  // namespace numalease::client
