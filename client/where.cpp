#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "client/app.hpp"
#include "text/output.hpp"
#include "where/where_read.hpp"

// where: the memory and threads of a process or of a lease, node by node. Looks only.

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Lease;
using model::Result;

namespace {

constexpr std::size_t kFewestSamples = 256;

enum class How { by_size, exact, sample };

struct Subject {
    std::vector<int> pids;
    Bounds bounds;
    std::string cgroup;  ///< of the lease, where that is what was asked for
    std::vector<std::string> notes;
};

void bind_to(Bounds& bounds, const Lease& lease) {
    bounds.lease = lease.id;
    bounds.nodes = lease.placement.nodes;
    bounds.cpus = lease.placement.cpus;
    bounds.policy = memory_policy(lease.request, lease.placement.nodes, bounds.machine.size());
    bounds.weights = lease.request.weights;
    bounds.verified = lease.verified;
}

bool is_held_by(const Lease& lease, int pid) {
    const auto same = [&](const model::Process& it) { return it.pid == pid && it.start_time == read_start_time(pid); };
    return std::ranges::any_of(lease.holders, same);
}

/// The lease that a process is in: the innermost cgroup counts, and only without one who holds it. What is in the
/// process's environment counts for nothing: it may say anything.
std::optional<Lease> lease_around(int pid, const model::Value::Dicts& leases) {
    const auto cgroup = read_cgroup(pid);
    std::optional<Lease> found;
    for (const auto& dict : leases) {
        auto lease = model::lease_from_dict(dict);
        if (!lease || model::is_over(lease->state) || lease->placement.nodes.empty()) continue;
        const auto& own = lease->confinement.cgroup;
        if (own.empty() ? !is_held_by(*lease, pid) : !is_in_cgroup(cgroup, own)) continue;
        if (!found || own.size() > found->confinement.cgroup.size()) found = std::move(*lease);
    }
    return found;
}

Result<Subject> of_process(const Globals& globals, int pid, const Machine& machine) {
    const auto status = read_status(pid);
    if (!status) return std::unexpected(status.error());
    Subject out{.pids = {pid}, .bounds = {}, .cgroup = {}, .notes = {}};
    out.bounds.machine = machine.memory;
    out.bounds.nodes = status->nodes & machine.memory;
    auto daemon = find_daemon(globals.endpoint, Wake::no);
    const auto leases =
        daemon ? daemon->current_leases(0) : Result<model::Value::Dicts>(std::unexpected(daemon.error()));
    if (leases) {
        if (const auto lease = lease_around(pid, *leases)) bind_to(out.bounds, *lease);
        return out;
    }
    const auto environment = read_environment(pid);
    if (const auto id = environment.find("NUMA_LEASE_ID"); id != environment.end())
        out.notes.push_back("its environment names the lease " + id->second +
                            ", but no daemon confirms it: " + leases.error().detail);
    return out;
}

Result<Subject> of_lease(const Globals& globals, const std::string& id, const Machine& machine) {
    auto daemon = reach(globals.endpoint, Need::looking);
    if (!daemon) return std::unexpected(daemon.error());
    const auto dict = daemon->lease(id);
    if (!dict) return std::unexpected(dict.error());
    const auto lease = model::lease_from_dict(*dict);
    if (!lease) return std::unexpected(lease.error());
    if (model::is_over(lease->state)) return fail(Errc::no_such_lease, "lease " + lease->id + " is over");
    if (lease->placement.nodes.empty())
        return fail(Errc::not_now, "lease " + lease->id + " has no place yet: " + lease->reason);
    Subject out{.pids = {}, .bounds = {}, .cgroup = lease->confinement.cgroup, .notes = {}};
    out.bounds.machine = machine.memory;
    bind_to(out.bounds, *lease);
    if (!out.cgroup.empty()) {
        out.pids = read_pids_in(out.cgroup);
        if (out.pids.size() >= kMostProcesses)
            out.notes.push_back("only the first " + std::to_string(kMostProcesses) + " processes were looked at");
    } else {
        for (const auto& holder : lease->holders)
            if (is_held_by(*lease, holder.pid)) out.pids.push_back(holder.pid);
        out.notes.emplace_back("it has no cgroup: children of its processes are not counted");
    }
    if (out.pids.empty()) return fail(Errc::not_now, "lease " + lease->id + " has no process now");
    return out;
}

/// The model that a command names, as the file that it is.
std::string model_of(const policies::Library& library, int pid) {
    const auto argv = read_argv(pid);
    const auto* engine = argv.empty() ? nullptr : recognise(library, argv, nullptr);
    if (engine == nullptr) return {};
    const auto file = model_file(*engine, argv, read_environment(pid));
    if (!file) return {};
    const auto path = file->starts_with('/') ? *file : "/proc/" + std::to_string(pid) + "/cwd/" + *file;
    std::error_code error;
    const auto real = std::filesystem::canonical(path, error);
    return error ? *file : real.string();
}

Result<Found> find(const Subject& subject, const Machine& machine, How how) {
    Found found;
    found.notes = subject.notes;
    std::vector<std::pair<int, ProcessStatus>> seen;
    Bytes resident = 0;
    Bytes hugetlb = 0;
    for (const auto pid : subject.pids)
        if (auto status = read_status(pid)) {
            resident += status->resident();
            hugetlb += status->hugetlb;
            seen.emplace_back(pid, std::move(*status));
        }
    const bool sample = how == How::sample || (how == How::by_size && resident > kSampleFrom);
    const auto all = std::max<Bytes>(1, resident + hugetlb);
    Tally tally;
    Result<void> problem;
    std::size_t denied = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& [pid, status] : seen) {
        const double part = static_cast<double>(status.resident() + status.hugetlb) / static_cast<double>(all);
        Look look{.samples = 0, .transparent_huge = how == How::exact};
        if (sample)
            look.samples = std::max(kFewestSamples, static_cast<std::size_t>(part * static_cast<double>(kSamples)));
        if (auto done = read_memory(pid, status, look, machine, tally, found); !done) {
            problem = done;
            denied += done.error().code == Errc::denied ? 1U : 0U;
            continue;
        }
        read_threads(pid, machine, subject.bounds.cpus, found);
    }
    found.effort.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (found.processes.empty() && !problem) return std::unexpected(problem.error());
    if (denied > 0)
        found.notes.push_back(std::to_string(denied) + " processes are left out: " + problem.error().detail);
    if (found.processes.size() > 1) found.notes.emplace_back("a page that several processes map is counted for each");
    tally.finish(found);
    if (const auto shown = found.all().hugetlb; denied == 0 && shown == 0) found.not_found = hugetlb;
    found.charged = read_charged(machine, subject.cgroup);
    return found;
}

int where(const Globals& globals, const std::string& target, How how) {
    const auto machine = read_machine();
    const auto pid = model::parse_unsigned(target, "PID", 1U << 30U);
    auto subject = pid ? of_process(globals, static_cast<int>(*pid), machine) : of_lease(globals, target, machine);
    if (!subject) return say_failure(subject.error());
    const auto found = find(*subject, machine, how);
    if (!found) return say_failure(found.error());
    const auto library = load_library();
    for (const auto process : subject->pids)
        if (subject->bounds.model.empty()) subject->bounds.model = model_of(library, process);
    return print(globals.json ? json_text(to_dict(*found, subject->bounds))
                              : where_text(*found, subject->bounds, terminal_width()));
}

}  // namespace

void add_where(CLI::App& verb, Globals& globals) {
    const auto target = std::make_shared<std::string>();
    const auto how = std::make_shared<How>(How::by_size);
    verb.add_option("PID|LEASE", *target, "a process, or all of a lease by its id or name (digits are a PID)")
        ->required();
    auto* exact = verb.add_flag_callback(
        "--exact", [how] { *how = How::exact; },
        "look at every page, twice, for transparent huge ones too: some 20 ms a GiB, in which the process's mmap "
        "waits");
    verb.add_flag_callback(
            "--sample", [how] { *how = How::sample; },
            "ask for 65536 pages only; done above 32G where neither is said (below, every page is looked at once)")
        ->excludes(exact);
    verb.callback(
        [&globals, target, how] { globals.go = [&globals, target, how] { return where(globals, *target, *how); }; });
}

}  // namespace numalease::client
