#include "core/verify.hpp"

#include <algorithm>
#include <cmath>

#include "core/stepper.hpp"

namespace numalease::core {

using model::Bytes;
using model::bytes_text;
using model::Charged;
using model::ChargedByNode;
using model::Lease;
using model::Mempolicy;
using model::share_text;
using model::Verification;

namespace {

/// Less than this is not worth a word: libraries, and files that were in the page cache before.
constexpr Bytes kLittle = 64 * model::kMiB;
constexpr Bytes kLittlePart = 100;
constexpr std::size_t kPermille = 1000;

Charged at(const ChargedByNode& nodes, unsigned node) {
    const auto found = nodes.find(node);
    return found == nodes.end() ? Charged{} : found->second;
}

class Verifier {
public:
    Verifier(const Lease& lease, Mempolicy policy, Verification& out)
        : lease_(lease), policy_(policy), out_(out), all_(model::sum_of(out.nodes)) {}

    void verify() {
        look_outside();
        look_at_balance(look_for_unused());
        look_at_mapping();
        if (lease_.oom_kills > 0)
            warn("memory ran out in it: " + std::to_string(lease_.oom_kills) +
                 (lease_.oom_kills == 1 ? " process was killed" : " processes were killed"));
    }

private:
    void warn(std::string text) { out_.warnings.push_back(std::move(text)); }

    void look_outside() {
        for (const auto& [node, charged] : out_.nodes) {
            if (lease_.placement.nodes.contains(node)) {
                out_.inside += charged.total();
                continue;
            }
            if (charged.total() <= all_.total() / kLittlePart || (charged.anonymous == 0 && charged.file <= kLittle))
                continue;
            warn(bytes_text(charged.total()) + " (" + share_text(charged.total(), all_.total()) + ") is on node " +
                 std::to_string(node) + ", outside of its nodes " + lease_.placement.nodes.text() + ": " +
                 bytes_text(charged.anonymous) + " anonymous, " + bytes_text(charged.file) + " of files");
        }
    }

    [[nodiscard]] double weight_of(unsigned node) const {
        const auto found = lease_.request.weights.find(node);
        return policy_ == Mempolicy::weighted && found != lease_.request.weights.end() ? found->second : 1;
    }

    /// Where it was to be spread. `told`: that a node has nothing of it.
    void look_at_balance(bool told) {
        const auto& nodes = lease_.placement.nodes;
        if ((policy_ != Mempolicy::interleave && policy_ != Mempolicy::weighted) || nodes.size() < 2) return;
        constexpr double kUneven = 0.25;  // what is touched in large pieces is never quite even
        double weights = 0;
        double sum = 0;
        for (const auto node : nodes.items()) {
            weights += weight_of(node);
            sum += static_cast<double>(at(out_.nodes, node).anonymous);
        }
        if (sum < static_cast<double>(kLittle)) return;
        double fullest = 0;
        double most_off = 0;
        unsigned worst = 0;
        for (const auto node : nodes.items()) {
            const double filled = static_cast<double>(at(out_.nodes, node).anonymous) / sum * weights / weight_of(node);
            fullest = std::max(fullest, filled);
            if (std::abs(filled - 1) <= most_off) continue;
            most_off = std::abs(filled - 1);
            worst = node;
        }
        out_.imbalance_permille = static_cast<std::uint64_t>(std::llround(fullest * kPermille));
        const auto percent = [](double share) { return std::to_string(std::lround(share * 100)) + " %"; };
        if (most_off > kUneven && !told)
            warn("imbalance: node " + std::to_string(worst) + " has " +
                 percent(static_cast<double>(at(out_.nodes, worst).anonymous) / sum) + " of " +
                 std::to_string(nodes.size()) + " nodes' anonymous memory, interleave wants " +
                 percent(weight_of(worst) / weights));
    }

    /// Of several leased nodes, those that hold nothing but what libraries had there before (CASES 31).
    bool look_for_unused() {
        constexpr Bytes kIdlePart = 20;  // of an even share
        const auto& leased = lease_.placement.nodes;
        if (leased.size() < 2 || all_.total() < kLittle) return false;
        model::NodeSet idle;
        for (const auto node : leased.items())
            if (at(out_.nodes, node).total() <= all_.total() / leased.size() / kIdlePart) idle.add(node);
        if (!idle.empty())
            warn("of its nodes " + leased.text() + (idle.size() == 1 ? ", node " : ", nodes ") + idle.text() +
                 (idle.size() == 1 ? " holds" : " hold") + " next to nothing");
        return !idle.empty();
    }

    /// First touch wants each page of the model where the thread that reads it is: mapped (CASES 32). It was put out of
    /// the page cache before, so that what is mapped of it is charged here.
    void look_at_mapping() {
        constexpr Bytes kNothing = 20;
        const bool first_touch = policy_ == Mempolicy::local && lease_.request.page_cache == model::PageCache::evict;
        if (!first_touch || all_.total() < kLittle || all_.mapped > all_.anonymous / kNothing) return;
        warn("only " + bytes_text(all_.mapped) + " is file-mapped, against " + bytes_text(all_.anonymous) +
             " anonymous: for first touch its model has to be mapped, not read");
    }

    const Lease& lease_;
    Mempolicy policy_;
    Verification& out_;
    Charged all_;
};

}  // namespace

Verification verify(const Lease& lease, Mempolicy policy, ChargedByNode charged) {
    std::erase_if(charged, [](const auto& item) { return item.second.total() == 0; });
    Verification out{.nodes = std::move(charged)};
    Verifier(lease, policy, out).verify();
    return out;
}

void Stepper::operator()(const Verified& input) {
    const auto found = state_.leases.find(input.lease);
    if (found == state_.leases.end() || found->second.state != model::LeaseState::active) {
        refusal_ = model::Error{model::Errc::no_such_lease, "no active lease " + input.lease};
        return;
    }
    auto& lease = state_.leases.edit(input.lease);
    lease.verified = verify(lease, resolve_mempolicy(lease.request, lease.placement), input.charged);
    lease.verified.unknown = input.unknown;
    lease.verified.at = now_.real;
}

}  // namespace numalease::core
