#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "client/app.hpp"
#include "launch/enter.hpp"
#include "launch/page_cache.hpp"
#include "launch/report.hpp"
#include "launch/supervised.hpp"
#include "reach/obtain.hpp"
#include "text/output.hpp"
#include "text/render.hpp"
#include "text/sharing.hpp"

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Result;

namespace {

struct RunOptions {
    Typed typed;
    bool quiet = false;
    bool expand = false;
    bool unleased = false;
    bool verify = false;
    std::string report;
};

/// systemd started this very process, not a shell above it.  Source: systemd.exec(5), SYSTEMD_EXEC_PID.
bool is_service() {
    const char* pid = std::getenv("SYSTEMD_EXEC_PID");
    return pid != nullptr && pid == std::to_string(getpid());
}

Waiting who_waits() {
    if (is_service()) return std::getenv("NOTIFY_SOCKET") != nullptr ? Waiting::usual : Waiting::in_service;
    return isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0 ? Waiting::at_terminal : Waiting::usual;
}

Result<void> check_command(const Argv& command) {
    if (command.empty()) return fail(Errc::invalid_request, "no command; say numa-leasectl run [OPTIONS] -- COMMAND");
    if (const auto refusal = container_refusal(command)) return fail(Errc::invalid_request, *refusal);
    return {};
}

/// The lease's command, once it is ours. The topology was asked for before the lease: from here on nothing more is
/// needed of the daemon, which may die at any moment.
int enter_lease(const model::Dict& dict, const model::Dict& topology, bool json, Entry entry) {
    const auto lease = model::lease_from_dict(dict);
    if (!lease) return say_failure(lease.error());
    entry.request = lease->request;
    entry.facts = facts_of(lease->id, lease->placement, lease->confinement, topology);
    entry.set_affinity = lease->confinement.kind == model::ConfinementKind::affinity ||
                         lease->confinement.kind == model::ConfinementKind::none;
    entry.facts.huge_pages = has_huge_pages(lease->request);
    if (json) {
        // Standard output is the command's.
        std::fputs(json_text(dict).c_str(), stderr);
    } else if (!entry.quiet) {
        for (const auto& line : grant_lines(dict)) say(line);
        if (const auto note = one_node_note(topology); !note.empty()) say(note);
    }
    return enter(entry);
}

/// Affinity, memory policy and threads only, for anybody: nobody else is kept away.
int run_unleased(const Globals& globals, const RunOptions& options, const policies::Library& library,
                 const Asked& asked) {
    for (const auto* field : {"numa-balancing", "thp", "thp-defrag", "zone-reclaim", "weights", "hugepages",
                              "page-cache", "memory-max", "shield", "time", "gpu"})
        if (options.typed.fields.contains(field))
            return say_failure({Errc::invalid_request,
                                std::string("--unleased and --") + field +
                                    ": only a lease keeps, changes, limits, shields or ends anything",
                                0});
    if (asked.policy && (asked.policy->run.per_node || asked.policy->run.warm))
        return say_failure({Errc::invalid_request,
                            "--unleased and --policy " + asked.policy->name + ": only a lease is kept by a supervisor",
                            0});
    if (!options.report.empty())
        return say_failure({Errc::invalid_request, "--unleased and --report: without a lease nothing changes", 0});
    Entry entry{.library = library, .policy = asked.policy ? &*asked.policy : nullptr, .request = asked.request};
    {
        auto daemon = reach(globals.endpoint, Need::looking);
        if (!daemon) return say_failure(daemon.error());
        const auto dict = daemon->plan(asked.dict);
        if (!dict) return say_failure(dict.error());
        const auto topology = daemon->topology();
        if (!topology) return say_failure(topology.error());
        const auto placement = model::placement_from_dict(*dict);
        entry.facts = facts_of("", placement, {}, *topology);
        if (!options.quiet) say("unleased: CPUs " + placement.cpus.text() + ", nodes " + placement.nodes.text());
    }  // a daemon of ours is gone before the command starts
    entry.command = globals.command;
    entry.set_affinity = true;
    entry.expand = options.expand;
    entry.quiet = options.quiet;
    return enter(entry);
}

struct Granted {
    model::Dict lease;
    model::Dict topology;
};

/// Only where somebody reads it: looking takes a fifth of a second.
void say_who_is_there(Connection& daemon, const model::Dict& lease) {
    auto found = daemon.squatters().value_or(model::Value::Dicts{});
    std::erase_if(found, [&](const auto& it) { return model::get_text(it, "lease") != model::get_text(lease, "id"); });
    for (const auto& line : squatter_lines(found)) say(line);
}

/// Asks, waits, and leaves the daemon: nothing more is needed of it.
Result<Granted> take_lease(const Globals& globals, const RunOptions& options, const policies::Library& library,
                           const Asked& asked, std::optional<Reporter>& reporter) {
    const bool per_node = asked.policy && asked.policy->run.per_node;
    auto daemon = reach(globals.endpoint, Need::leasing);
    if (!daemon) return std::unexpected(daemon.error());
    if (reporter) reporter->before(shell_line(globals.command), daemon->knobs());
    auto topology = daemon->topology();
    if (!topology) return std::unexpected(topology.error());
    if (per_node)
        if (auto checked = check_instances(library, asked, globals.command, options.expand, *topology); !checked)
            return std::unexpected(checked.error());
    auto lease = obtain(*daemon, globals.endpoint, per_node ? request_of_all(asked.dict) : asked.dict, options.quiet);
    if (!lease) return std::unexpected(lease.error());
    const bool maps =
        maps_model(library, asked.policy ? &*asked.policy : nullptr, globals.command, current_environment());
    if (auto settled = settle_page_cache(*daemon, asked, maps, model::get_dicts(*topology, "nodes").size(),
                                         options.quiet || globals.json, *lease);
        !settled)
        return std::unexpected(settled.error());
    if (!options.quiet && !globals.json && isatty(STDERR_FILENO) != 0) say_who_is_there(*daemon, *lease);
    if (reporter)
        if (auto written = reporter->granted(model::get_text(*lease, "id"), *lease); !written)
            say(written.error().detail);
    return Granted{.lease = std::move(*lease), .topology = std::move(*topology)};
}

/// A run beside which we stay.
int keep(const Globals& globals, const RunOptions& options, const policies::Library& library, const Asked& asked,
         const Granted& granted, const std::function<int()>& become) {
    const auto lease = model::lease_from_dict(granted.lease);
    if (!lease) return say_failure(lease.error());
    const bool quiet = options.quiet || globals.json;
    const model::Policy none{.name = "verify"};
    const Kept run{.library = library,
                   .policy = asked.policy ? *asked.policy : none,
                   .asked = asked,
                   .endpoint = globals.endpoint,
                   .command = globals.command,
                   .topology = granted.topology,
                   .expand = options.expand,
                   .quiet = quiet};
    if (!run.policy.run.per_node)
        return run.policy.run.warm ? run_warmed(run, *lease, become) : run_verified(run, *lease, become);
    if (globals.json) std::fputs(json_text(granted.lease).c_str(), stderr);
    if (!quiet)
        for (const auto& line : grant_lines(granted.lease)) say(line);
    return run_instances(run, *lease);
}

int run_leased(const Globals& globals, const RunOptions& options, const policies::Library& library,
               const Asked& asked) {
    // Before anything else: what waits for the end must be outside of whatever the lease will hold.
    std::optional<Reporter> reporter;
    if (!options.report.empty()) {
        auto started = Reporter::start(options.report, globals.endpoint);
        if (!started) return say_failure(started.error());
        reporter.emplace(std::move(*started));
    }
    auto granted = take_lease(globals, options, library, asked, reporter);
    if (!granted) {
        if (reporter) reporter->refused(granted.error());
        return say_failure(granted.error());
    }
    reporter.reset();
    const auto become = [&] {
        return enter_lease(granted->lease, granted->topology, globals.json,
                           Entry{.library = library,
                                 .policy = asked.policy ? &*asked.policy : nullptr,
                                 .request = {},
                                 .facts = {},
                                 .command = globals.command,
                                 .set_affinity = false,
                                 .expand = options.expand,
                                 .quiet = options.quiet || globals.json});
    };
    const bool stays = asked.policy && (asked.policy->run.per_node || asked.policy->run.warm);
    return stays || options.verify ? keep(globals, options, library, asked, *granted, become) : become();
}

int run(const Globals& globals, const RunOptions& options) {
    if (auto checked = check_command(globals.command); !checked) return say_failure(checked.error());
    // With its command systemd ends all of a service's processes, the one that waits to write the rest among them.
    if (!options.report.empty() && is_service())
        return say_failure({Errc::invalid_request,
                            "--report: not in a service, whose end nothing of ours outlives; its lease is in the log: "
                            "journalctl -t numa-leased",
                            0});
    if (options.verify && options.unleased)
        return say_failure(
            {Errc::invalid_request,
             "--verify contradicts --unleased: there is no lease to hold it against; numa-leasectl where "
             "PID shows where its memory is",
             0});
    const auto library = load_library();
    for (const auto& problem : library.problems) say(problem.detail + "; left out");
    const auto asked = build_request(options.typed, globals.command, current_environment(), library, who_waits());
    if (!asked) return say_failure(asked.error());
    if (!options.quiet)
        for (const auto& note : asked->notes) say(note);
    return options.unleased ? run_unleased(globals, options, library, *asked)
                            : run_leased(globals, options, library, *asked);
}

int plan(const Globals& globals, const Typed& typed, bool expand) {
    if (const auto refusal = container_refusal(globals.command))
        return say_failure({Errc::invalid_request, *refusal, 0});
    const auto library = load_library();
    const auto asked = build_request(typed, globals.command, current_environment(), library, who_waits());
    if (!asked) return say_failure(asked.error());
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return say_failure(daemon.error());
    const bool per_node = asked->policy && asked->policy->run.per_node;
    const auto request = per_node ? request_of_all(asked->dict) : asked->dict;
    const auto placement = daemon->plan(request);
    if (!placement) return say_failure(placement.error());
    const auto topology = daemon->topology();
    if (!topology) return say_failure(topology.error());
    Adapted adapted;
    if (!globals.command.empty()) {
        auto place = model::placement_from_dict(*placement);
        const auto nodes = place.nodes;
        if (per_node) place = place_of_one(place, *topology);
        // As it would be in a cgroup: that is what a lease gives where it can, and an instance has only a part of one.
        auto facts = facts_of("ID", place, {}, *topology);
        facts.contained = !per_node;
        facts.instances = per_node ? nodes.size() : 1;
        facts.huge_pages = has_huge_pages(asked->request);
        adapted = adapt(library, asked->policy ? &*asked->policy : nullptr, globals.command, current_environment(),
                        facts, expand);
    }
    if (globals.json) {
        model::Dict env;
        for (const auto& [name, value] : adapted.env) env[name] = value;
        return print(json_text(model::Dict{{"request", request},
                                           {"placement", *placement},
                                           {"engine", adapted.engine},
                                           {"command", adapted.argv},
                                           {"environment", env},
                                           {"warnings", adapted.warnings},
                                           {"notes", asked->notes}}));
    }
    for (const auto& note : asked->notes) say(note);
    if (const auto note = one_node_note(*topology); !note.empty()) say(note);
    if (per_node)
        say(asked->policy->name + ": one instance for each node of the lease; the command is the first one's");
    return print(plan_text(*placement, request, adapted));
}

int exec(const Globals& globals, const std::string& id, bool expand, bool quiet) {
    if (auto checked = check_command(globals.command); !checked) return say_failure(checked.error());
    const auto library = load_library();
    auto daemon = reach(globals.endpoint, Need::changing);
    if (!daemon) return say_failure(daemon.error());
    const auto topology = daemon->topology();
    if (!topology) return say_failure(topology.error());
    const auto lease = daemon->join(id);
    if (!lease) return say_failure(lease.error());
    const auto name = model::get_text(model::get_dict(*lease, "request"), "policy");
    const auto policy = library.policies.find(name);
    return enter_lease(*lease, *topology, globals.json,
                       Entry{.library = library,
                             .policy = policy == library.policies.end() ? nullptr : &policy->second,
                             .request = {},
                             .facts = {},
                             .command = globals.command,
                             .set_affinity = false,
                             .expand = expand,
                             .quiet = quiet || globals.json});
}

}  // namespace

void add_run(CLI::App& verb, Globals& globals) {
    const auto options = std::make_shared<RunOptions>();
    add_request_options(verb, options->typed);
    verb.add_flag("-q,--quiet", options->quiet, "say nothing about the grant");
    verb.add_flag("--expand", options->expand, "replace ${cores} ${threads} ${nodes} ${cpus} and kin in the command");
    verb.add_flag("--unleased", options->unleased, "affinity, memory policy and threads only; no daemon, no lease");
    verb.add_flag("--verify", options->verify,
                  "stay beside the command, and say where its memory is once it has loaded");
    verb.add_option("--report", options->report,
                    "write the grant and the state before and after as JSON; not in a service")
        ->type_name("FILE");
    verb.callback([&globals, options] { globals.go = [&globals, options] { return run(globals, *options); }; });
}

void add_plan(CLI::App& verb, Globals& globals) {
    const auto typed = std::make_shared<Typed>();
    const auto expand = std::make_shared<bool>(false);
    add_request_options(verb, *typed);
    verb.add_flag("--expand", *expand, "replace ${cores} ${threads} ${nodes} ${cpus} and kin in the command");
    verb.callback([&globals, typed, expand] {
        globals.go = [&globals, typed, expand] { return plan(globals, *typed, *expand); };
    });
}

void add_exec(CLI::App& verb, Globals& globals) {
    const auto id = std::make_shared<std::string>();
    const auto expand = std::make_shared<bool>(false);
    const auto quiet = std::make_shared<bool>(false);
    verb.add_option("ID", *id, "the lease, by id or name")->required();
    verb.add_flag("--expand", *expand, "replace ${cores} ${threads} ${nodes} ${cpus} and kin in the command");
    verb.add_flag("-q,--quiet", *quiet, "say nothing about the grant");
    verb.callback([&globals, id, expand, quiet] {
        globals.go = [&globals, id, expand, quiet] { return exec(globals, *id, *expand, *quiet); };
    });
}

}  // namespace numalease::client
