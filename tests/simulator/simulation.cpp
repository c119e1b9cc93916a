#include "simulator/simulation.hpp"

#include <algorithm>
#include <csignal>
#include <queue>

#include "core/place.hpp"
#include "core/stepper.hpp"
#include "support/fake_machine.hpp"

namespace numalease::test {

using model::Lease;
using model::LeaseId;
using model::LeaseState;
using model::Micros;

namespace {

constexpr Micros kEpoch{1'000'000'000};     ///< a boot clock that does not start at 0
constexpr Micros kExpiryGrace{10'000'000};  ///< between SIGTERM and SIGKILL, as documented

std::string with_time(const Job& job) {
    return job.limit ? job.fields + " time=" + std::to_string(job.limit->count()) + "us" : job.fields;
}

/// The core at work on one stream.
class Run {
public:
    Run(const Stream& stream, Micros horizon) : stream_(stream), horizon_(horizon), machine_(stream.topology) {
        out_.fates.resize(stream.jobs.size());
        machine_.light = true;
        machine_.observed.scheduling = stream.scheduling;
        machine_.observed.limits = stream.limits;
        machine_.observed.reserve = 0;
        machine_.before_effect = [this](const core::Effect& effect) {
            if (const auto* kill = std::get_if<core::Kill>(&effect)) signalled(*kill);
        };
    }

    Outcome run() {
        while (const auto next = next_event()) {
            if (*next - kEpoch > horizon_) break;
            machine_.now.boot = std::max(machine_.now.boot, *next);
            happen();
            look();
        }
        return std::move(out_);
    }

private:
    struct End {
        Micros at;
        LeaseId lease;
        bool operator>(const End& other) const { return std::tie(at, lease) > std::tie(other.at, other.lease); }
    };

    [[nodiscard]] std::optional<Micros> next_event() const {
        std::optional<Micros> out;
        const auto at = [&](Micros when) { out = out ? std::min(*out, when) : when; };
        if (next_job_ < stream_.jobs.size()) at(kEpoch + stream_.jobs[next_job_].arrives);
        if (!ends_.empty()) at(ends_.top().at);
        if (const auto due = core::next_deadline(machine_.state)) at(*due);
        return out;
    }

    void happen() {
        if (!ends_.empty() && ends_.top().at <= machine_.now.boot) {
            const auto end = ends_.top();
            ends_.pop();
            if (machine_.alive.contains(end.lease)) machine_.holder_gone(end.lease);
            return;
        }
        if (next_job_ < stream_.jobs.size() && kEpoch + stream_.jobs[next_job_].arrives <= machine_.now.boot) {
            const auto& job = stream_.jobs[next_job_];
            auto& fate = out_.fates[next_job_];
            const auto id = machine_.acquire(with_time(job), job.uid);
            fate.refused = id.empty();
            if (!id.empty()) jobs_[id] = next_job_;
            ++next_job_;
            return;
        }
        machine_.handle(core::Tick{});
    }

    void signalled(const core::Kill& kill) {
        const auto job = jobs_.find(kill.lease);
        if (job == jobs_.end()) return;
        if (kill.signal == SIGKILL || !stream_.jobs[job->second].ignores_term)
            ends_.push({machine_.now.boot, kill.lease});
    }

    void look() {
        for (const auto& [id, lease] : machine_.state.leases) {
            const auto job = jobs_.find(id);
            if (job == jobs_.end()) continue;
            auto& fate = out_.fates[job->second];
            if (lease.state == LeaseState::active && !fate.started) {
                fate.started = machine_.now.boot - kEpoch;
                for (const auto& [other, at] : jobs_)
                    if (auto& waits = out_.fates[at];
                        !waits.started && stream_.jobs[at].uid == stream_.jobs[job->second].uid)
                        waits.own_before += 1;
                fate.cores = lease.placement.cores;
                overtaken_ = overtaken_ || goes_before_first(lease);
                ends_.push({machine_.now.boot + stream_.jobs[job->second].runs, id});
            }
            if (model::is_over(lease.state) && !fate.ended) fate.ended = machine_.now.boot - kEpoch;
        }
        for (auto& problem : machine_.problems) complain(problem);
        machine_.problems.clear();
        check_limits();
        check_reservation();
    }

    void complain(const std::string& what) {
        constexpr std::size_t kEnough = 5;
        if (out_.problems.size() < kEnough)
            out_.problems.push_back(std::to_string((machine_.now.boot - kEpoch).count()) + "us: " + what);
    }

    [[nodiscard]] std::string state_text() const {
        std::string out;
        for (const auto& [id, lease] : machine_.state.leases) {
            if (model::is_over(lease.state)) continue;
            out += "\n    " + id + ' ' + std::string(model::text_of(lease.state)) + " uid " +
                   std::to_string(lease.caller.uid) + " cpus " + lease.placement.cpus.text() +
                   (lease.expires ? " until " + std::to_string((*lease.expires - kEpoch).count()) : "") + ':';
            for (const auto& [name, value] : model::to_dict(lease.request))
                out += ' ' + name + '=' + std::get<std::string>(value.v);
        }
        return out;
    }

    void check_limits() {
        struct Has {
            unsigned leases = 0, cores = 0, nodes = 0, waiting = 0;
            model::Bytes memory = 0;
        };
        std::map<unsigned, Has> users;
        for (const auto& [id, lease] : machine_.state.leases) {
            auto& has = users[lease.caller.uid];
            has.waiting += lease.state == LeaseState::queued ? 1 : 0;
            if (!model::occupies(lease.state)) continue;
            has.leases += 1;
            has.cores += lease.placement.cores;
            has.nodes += lease.placement.nodes.size();
            for (const auto& [node, bytes] : lease.placement.promise) has.memory += bytes;
        }
        for (const auto& [uid, has] : users) {
            const auto found = stream_.limits.find(uid);
            if (found == stream_.limits.end()) continue;
            const auto& limits = found->second;
            const auto check = [&](const char* name, auto value, auto limit) {
                if (limit && value > *limit)
                    complain("uid " + std::to_string(uid) + " has " + std::to_string(value) + ' ' + name + ", above " +
                             std::to_string(*limit));
            };
            check("leases", has.leases, limits.leases);
            check("cores", has.cores, limits.cores);
            check("nodes", has.nodes, limits.nodes);
            check("waiting", has.waiting, limits.queued);
            check("bytes", has.memory, limits.memory);
        }
    }

    /// By its class, or because its user has not been served for long: then it may delay the first.
    [[nodiscard]] bool goes_before_first(const Lease& lease) const {
        const auto first = machine_.state.leases.find(first_);
        if (first == machine_.state.leases.end()) return false;
        const auto priority = [&](const Lease& it) { return core::priority_of(it.request, stream_.scheduling); };
        return priority(lease) > priority(first->second) ||
               machine_.now.boot - lease.queued.boot >= stream_.scheduling.aging;
    }

    /// Whoever is first keeps what it was told, but for those who go before it.
    void check_reservation() {
        const auto& first = machine_.state.first;
        const bool same = first == first_ && !std::exchange(overtaken_, false);
        first_ = first;
        if (first.empty() || !machine_.state.leases.contains(first)) return;
        const core::Stepper now(machine_.state, machine_.observed, machine_.now);
        const auto start = now.when(std::as_const(machine_.state.leases).at(first), {}).start;
        if (same && promised_ && (!start || *start > *promised_))
            complain(first + " was promised a start at " + std::to_string((*promised_ - kEpoch).count()) + ", now " +
                     (start ? std::to_string((*start - kEpoch).count()) : "never") + state_text());
        promised_ = start;
    }

    const Stream& stream_;
    Micros horizon_;
    FakeMachine machine_;
    Outcome out_;
    std::size_t next_job_ = 0;
    std::map<LeaseId, std::size_t> jobs_;
    std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
    LeaseId first_;
    std::optional<Micros> promised_;
    bool overtaken_ = false;
};

/// A queue and a list of what runs.
class PlainRun {
public:
    PlainRun(const Stream& stream, Plain kind) : stream_(stream), kind_(kind) {
        observed_.topology = stream.topology;
        for (const auto& node : stream.topology.nodes)
            observed_.memory[node.id] = {.total = node.total, .free = node.total, .clean_cache = 0};
        occupancy_.allowed_cpus = stream.topology.online;
        occupancy_.allowed_nodes = stream.topology.node_ids();
        occupancy_.reserve = 0;
        occupancy_.explain = false;
        out_.fates.resize(stream.jobs.size());
    }

    Outcome run(Micros horizon) {
        std::size_t next = 0;
        Micros now{0};
        while (now <= horizon) {
            while (next < stream_.jobs.size() && stream_.jobs[next].arrives <= now) {
                out_.fates[next].refused = !core::place(observed_, empty(), request(stream_.jobs[next].fields));
                if (!out_.fates[next].refused) waiting_.push_back(next);
                ++next;
            }
            serve(now);
            std::optional<Micros> soonest;
            if (next < stream_.jobs.size()) soonest = stream_.jobs[next].arrives;
            for (const auto& [end, job] : running_) soonest = soonest ? std::min(*soonest, end) : end;
            if (!soonest) break;
            now = *soonest;
            finish(now);
        }
        return std::move(out_);
    }

private:
    [[nodiscard]] core::Occupancy empty() const {
        auto out = occupancy_;
        out.occupants.clear();
        return out;
    }

    void finish(Micros now) {
        std::erase_if(running_, [&](const auto& item) {
            if (item.first > now) return false;
            out_.fates[item.second].ended = now;
            std::erase_if(occupancy_.occupants,
                          [&](const core::Occupant& it) { return it.id == std::to_string(item.second); });
            return true;
        });
    }

    void serve(Micros now) {
        for (auto at = waiting_.begin(); at != waiting_.end();) {
            const auto& job = stream_.jobs[*at];
            const auto wanted = request(job.fields);
            const auto placement = core::place(observed_, occupancy_, wanted);
            if (!placement) {
                if (kind_ == Plain::fifo) return;
                ++at;
                continue;
            }
            occupancy_.occupants.push_back({.id = std::to_string(*at),
                                            .cpus = placement->cpus,
                                            .share = wanted.share,
                                            .outstanding = placement->promise});
            out_.fates[*at].started = now;
            out_.fates[*at].cores = placement->cores;
            running_.emplace_back(now + (job.limit ? std::min(*job.limit, job.runs) : job.runs), *at);
            at = waiting_.erase(at);
        }
    }

    const Stream& stream_;
    Plain kind_;
    core::Observed observed_;
    core::Occupancy occupancy_;
    std::vector<std::size_t> waiting_;
    std::vector<std::pair<Micros, std::size_t>> running_;
    Outcome out_;
};

}  // namespace

Outcome simulate(const Stream& stream, Micros horizon) { return Run(stream, horizon).run(); }

Outcome simulate_plain(const Stream& stream, Plain kind, Micros horizon) { return PlainRun(stream, kind).run(horizon); }

Micros bound_of(const Stream& stream, const Job& job, const Fate& fate) {
    Micros longest{0};
    for (const auto& it : stream.jobs) longest = std::max(longest, it.limit.value_or(Micros(0)) + kExpiryGrace);
    std::set<unsigned> users;
    for (const auto& it : stream.jobs) users.insert(it.uid);
    const auto turn = stream.scheduling.aging + longest * static_cast<std::int64_t>(users.size() + 1);
    return job.arrives + turn * static_cast<std::int64_t>(fate.own_before + 1);
}

Merit merit_of(const Stream& stream, const Outcome& outcome) {
    Merit out;
    std::vector<double> waits;
    const auto seconds = [](Micros time) { return std::chrono::duration<double>(time).count(); };
    double busy = 0;
    Micros first = Micros::max();
    Micros last{0};
    for (std::size_t i = 0; i < stream.jobs.size(); ++i) {
        const auto& fate = outcome.fates[i];
        if (!fate.started || !fate.ended) continue;
        waits.push_back(seconds(*fate.started - stream.jobs[i].arrives));
        busy += seconds(*fate.ended - *fate.started) * fate.cores;
        first = std::min(first, stream.jobs[i].arrives);
        last = std::max(last, *fate.ended);
    }
    out.ran = waits.size();
    if (waits.empty()) return out;
    std::ranges::sort(waits);
    for (const auto wait : waits) out.mean_wait += wait / static_cast<double>(waits.size());
    out.p95_wait = waits[waits.size() * 95 / 100];
    out.makespan = seconds(last - first);
    if (out.makespan > 0) out.utilisation = busy / (out.makespan * static_cast<double>(stream.topology.cores.size()));
    return out;
}

}  // namespace numalease::test
