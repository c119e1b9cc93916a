#include "core/place.hpp"

#include <algorithm>

#include "core/placing.hpp"

namespace numalease::core {

namespace {

using model::Choice;
using model::Errc;
using model::Placement;
using model::Request;
using placing::Candidate;
using placing::Facts;
using placing::Level;
using placing::Near;
using placing::Scope;
using placing::View;

/// One look for room at one level.
struct Search {
    View view;
    Scope scope;
    std::vector<Candidate> found;  ///< best first
};

/// Errors: what no level changes (a node that does not exist, …).
model::Result<Search> search(const Observed& observed, const Occupancy& occupancy, const Request& request,
                             const Near& near, const Facts& facts, Level level) {
    auto view = placing::look_at(observed, occupancy, request, near, facts, level);
    auto scope = placing::scope_of(view);
    if (!scope) return std::unexpected(scope.error());
    auto found = placing::select(view, *scope);
    return Search{.view = std::move(view), .scope = std::move(*scope), .found = std::move(found)};
}

Placement placement_of(const Search& search) {
    const auto& view = search.view;
    const auto& chosen = search.found.front();
    Placement out;
    const auto cores = placing::pick_cores(view, search.scope, chosen.units);
    for (const unsigned core : cores) out.cpus |= view.topology().cores[core].cpus;
    if (view.partial) out.cpus &= view.occupancy.allowed_cpus;
    out.cores = static_cast<unsigned>(cores.size());
    out.threads = view.request.mode == model::Mode::all ? out.cpus.size() : out.cores;
    const auto memory = placing::memory_nodes(search.scope, chosen.units);
    for (const unsigned at : memory) out.nodes.add(view.nodes[at].id);
    if (out.nodes.empty())  // a machine that does not tell its memory: the nodes of the cores
        for (const unsigned unit : chosen.units)
            for (const unsigned at : search.scope.units[unit].nodes) out.nodes.add(view.nodes[at].id);
    if (view.request.memory && !memory.empty()) {
        const auto parts = placing::memory_parts(view, memory);
        for (std::size_t i = 0; i < memory.size(); ++i)
            if (parts[i] > 0) out.promise[view.nodes[memory[i]].id] = parts[i];
    }
    out.why = placing::reasons(view, search.scope, chosen, out);
    out.runners_up = placing::runners_up(view, search.scope, search.found);
    return out;
}

bool holds_memory_on(const Observed& observed, const Occupant& occupant, const model::NodeSet& nodes) {
    const auto positive = [&](const std::map<unsigned, model::Bytes>& bytes) {
        return std::ranges::any_of(bytes, [&](const auto& at) { return at.second > 0 && nodes.contains(at.first); });
    };
    const auto used = observed.used.find(occupant.id);
    return positive(occupant.outstanding) || (used != observed.used.end() && positive(used->second));
}

/// Whose cores and memory the request would get if they were gone: `ideal` is where it would then be.
std::vector<model::LeaseId> in_the_way_of(const Search& ideal, const View& now) {
    const auto& units = ideal.found.front().units;
    model::CpuSet cpus;
    for (const unsigned core : placing::pick_cores(ideal.view, ideal.scope, units)) {
        cpus |= ideal.view.topology().cores[core].cpus;
        cpus |= ideal.view.topology().cores[core].offline;
    }
    const auto memory = placing::memory_nodes(ideal.scope, units);
    model::NodeSet nodes;
    for (const unsigned at : memory) nodes.add(now.nodes[at].id);
    const bool memory_short = !placing::memory_fits(now, memory);
    std::vector<model::LeaseId> out;
    for (const auto& occupant : now.occupancy.occupants) {
        if (occupant.over) continue;
        const bool on_cores = placing::conflicts(occupant, now.request) && occupant.cpus.intersects(cpus);
        if (on_cores || (memory_short && holds_memory_on(now.observed, occupant, nodes))) out.push_back(occupant.id);
    }
    return out;
}

/// Looks for a smaller or looser request that would be granted at once.
class FitsNow {
public:
    FitsNow(const Observed& observed, const Occupancy& occupancy, const Request& request, const Near& near,
            const Facts& facts)
        : observed_(observed), occupancy_(occupancy), request_(request), near_(near), facts_(facts) {}

    /// "--node 2 or --share"; empty where nothing helps.
    [[nodiscard]] std::string text() const {
        std::string out;
        for (const auto& option : {elsewhere(), shared(), fewer_cores()})
            if (!option.empty()) out += (out.empty() ? "" : " or ") + option;
        return out;
    }

private:
    [[nodiscard]] model::Result<Search> now(const Request& request) const {
        return search(observed_, occupancy_, request, near_, facts_, Level::now);
    }
    [[nodiscard]] bool fits(const Request& request) const {
        const auto found = now(request);
        return found && !found->found.empty();
    }

    /// As many other nodes or sockets instead of the named ones.
    [[nodiscard]] std::string elsewhere() const {
        Request other = request_;
        const bool sockets = request_.sockets.kind == Choice::Kind::list;
        auto& choice = sockets ? other.sockets : other.nodes;
        if (choice.kind != Choice::Kind::list) return {};
        choice = {.kind = Choice::Kind::any, .items = {}, .count = choice.items.size()};
        const auto found = now(other);
        if (!found || found->found.empty()) return {};
        model::IndexSet ids;
        for (const unsigned unit : found->found.front().units) ids.add(found->scope.units[unit].id);
        return (sockets ? "--socket " : "--node ") + ids.text();
    }

    [[nodiscard]] std::string shared() const {
        if (request_.share) return {};
        Request other = request_;
        other.share = true;
        return fits(other) ? "--share" : "";
    }

    /// The largest number of cores that fits: fewer never fit worse, so halving finds it.
    [[nodiscard]] std::string fewer_cores() const {
        const auto found = now(request_);
        if (!found) return {};
        unsigned most = 0;  // that could fit
        for (const auto& unit : found->scope.units)
            most = request_.cores || found->scope.exactly > 0 ? most + unit.usable : std::max(most, unit.usable);
        if (request_.cores) most = std::min(most, *request_.cores - 1);
        Request other = request_;
        unsigned least = 0;  // that surely fits
        while (least < most) {
            other.cores = least + (most - least + 1) / 2;
            if (fits(other)) {
                least = *other.cores;
            } else {
                most = *other.cores - 1;
            }
        }
        return least > 0 ? "--cores " + std::to_string(least) : "";
    }

    const Observed& observed_;
    const Occupancy& occupancy_;
    const Request& request_;
    const Near& near_;
    const Facts& facts_;
};

}  // namespace

std::expected<Placement, NoPlace> placing::place_near(const Observed& observed, const Occupancy& occupancy,
                                                      const Request& request, const Near& near) {
    const auto refuse = [](model::Error error) { return std::unexpected(NoPlace{.error = std::move(error)}); };
    const auto facts = placing::facts_of(observed, occupancy);
    const auto now = search(observed, occupancy, request, near, facts, Level::now);
    if (!now) return refuse(now.error());
    if (!now->found.empty()) return placement_of(*now);
    if (!occupancy.explain) return refuse({Errc::not_now, "no room"});

    for (const auto level : {Level::leases_gone, Level::all_gone}) {
        const auto ideal = search(observed, occupancy, request, near, facts, level);
        if (!ideal) return refuse(ideal.error());
        if (ideal->found.empty()) continue;
        NoPlace out{.error = {Errc::not_now, "no room now: " + placing::shortage(now->view, now->scope)}};
        out.in_the_way = in_the_way_of(*ideal, now->view);
        if (level == Level::all_gone) out.error.detail += "; what is missing is held outside numa-lease";
        out.fits_now = FitsNow(observed, occupancy, request, near, facts).text();
        return std::unexpected(std::move(out));
    }
    const auto never = search(observed, occupancy, request, near, facts, Level::all_gone);
    if (!never) return refuse(never.error());
    return refuse({Errc::impossible, "never on this machine: " + placing::shortage(never->view, never->scope)});
}

std::expected<Placement, NoPlace> place(const Observed& observed, const Occupancy& occupancy, const Request& request) {
    const auto near = placing::find_near(observed.topology, request.near);
    if (!near) return std::unexpected(NoPlace{.error = near.error()});
    return request.gpus.none() ? placing::place_near(observed, occupancy, request, *near)
                               : placing::place_with_gpus(observed, occupancy, request, *near);
}

}  // namespace numalease::core
