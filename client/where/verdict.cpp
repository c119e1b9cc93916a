#include <algorithm>
#include <cmath>

#include "where/where.hpp"

namespace numalease::client {

namespace {

using model::bytes_text;
using model::Mempolicy;
using model::NodeSet;

/// Less than this is not worth a word: libraries and files that were in the page cache before.
constexpr Bytes kLittle = 64 * model::kMiB;
constexpr Bytes kLittlePart = 100;
/// A node's part of an interleaved memory may be off by a quarter: what is touched in large pieces is never quite even.
constexpr double kUneven = 0.25;

bool is_little(Bytes part, Bytes whole) { return part <= whole / kLittlePart; }

/// "1.1G anonymous, 100M file-mapped"
std::string kinds_text(const NodeUse& use) {
    std::string out;
    const auto add = [&](Bytes bytes, const char* kind) {
        if (bytes > 0) out += (out.empty() ? "" : ", ") + bytes_text(bytes) + ' ' + kind;
    };
    add(use.anonymous, "anonymous");
    add(use.shared, "shared");
    add(use.hugetlb, "huge pages");
    add(use.file, "file-mapped");
    return out;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// Interleaving as it is in force, and over which nodes: the policy of most of the memory, else the lease's.
struct Interleave {
    NodeSet nodes;
    std::map<unsigned, unsigned> weights;  ///< empty: even
};

std::optional<Interleave> interleave_of(const Found& found, const Bounds& bounds) {
    const auto by_size = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto most = std::ranges::max_element(found.policies, by_size);
    // "default" is what has no policy of its own: that of the thread that touched it.
    if (most != found.policies.end() && most->first != "default") {
        const auto& policy = most->first;
        const bool weighted = policy.starts_with("weighted");
        if (!weighted && !policy.starts_with("interleave")) return std::nullopt;
        if (weighted && bounds.weights.empty()) return std::nullopt;  // the kernel's own weights are not known here
        auto nodes = NodeSet::parse(policy.substr(policy.rfind(':') + 1));
        if (!nodes || nodes->empty()) return std::nullopt;
        return Interleave{*nodes, weighted ? bounds.weights : std::map<unsigned, unsigned>{}};
    }
    if (!bounds.policy) return std::nullopt;
    if (bounds.policy->kind == Mempolicy::interleave) return Interleave{bounds.policy->nodes, {}};
    if (bounds.policy->kind == Mempolicy::weighted && !bounds.weights.empty())
        return Interleave{bounds.policy->nodes, bounds.weights};
    return std::nullopt;
}

class Judge {
public:
    Judge(const Found& found, const Bounds& bounds) : found_(found), bounds_(bounds), all_(found.all()) {}

    std::vector<Judgement> judge() {
        if (all_.total() == 0) {
            say(true, "there is no memory of it");
        } else if (bounds_.machine.size() <= 1) {
            say(true, "one node: nothing can be elsewhere");
        } else if (!bounds_.nodes_are_judged) {
            inside();
            outside();
            if (!balance()) unused();
        }
        files();
        not_mapped();
        threads();
        if (bounds_.lease.empty()) remote();
        rest();
        return std::move(out_);
    }

private:
    void say(bool fine, std::string text) { out_.push_back({fine, std::move(text)}); }
    [[nodiscard]] bool is_inside(unsigned node) const { return bounds_.nodes.contains(node); }
    [[nodiscard]] std::string as_bound() const { return bounds_.lease.empty() ? "as allowed" : "as leased"; }
    [[nodiscard]] std::string bound() const {
        return bounds_.lease.empty() ? "outside of what it may use" : "outside of the lease";
    }

    void inside() {
        NodeUse sum;
        NodeSet used;
        for (const auto& [node, use] : found_.nodes)
            if (is_inside(node) && use.total() > 0) {
                sum += use;
                used.add(node);
            }
        const auto inside = sum.total();
        if (inside == 0) return;
        const bool all = inside == all_.total();
        say(true, (all ? "all " : "") + bytes_text(inside) +
                      (all ? "" : " (" + share_text(inside, all_.total()) + ')') + (all ? " on " : " is on ") +
                      nodes_text(used) + ", " + as_bound());
    }

    void outside() {
        for (const auto& [node, use] : found_.nodes) {
            if (is_inside(node) || use.total() == 0) continue;
            const bool only_files = use.unnamed() == 0 && use.file <= kLittle;
            say(only_files || is_little(use.total(), all_.total()),
                bytes_text(use.total()) + " (" + share_text(use.total(), all_.total()) + ") is on node " +
                    std::to_string(node) + ", " + bound() + ": " + kinds_text(use));
        }
    }

    /// True where it was to be spread, so that it has been told how it is.
    bool balance() {
        const auto wanted = interleave_of(found_, bounds_);
        if (!wanted) return false;
        std::map<unsigned, double> weight;
        double weights = 0;
        double sum = 0;
        for (const auto node : (wanted->nodes & bounds_.machine).items()) {
            const auto given = wanted->weights.find(node);
            weights += weight[node] = given == wanted->weights.end() ? 1 : given->second;
            sum += static_cast<double>(unnamed_on(node));
        }
        if (weight.size() < 2 || sum < static_cast<double>(kLittle)) return weight.size() >= 2;
        // Of two that are off alike, the fuller one.
        constexpr double kAlike = 1e-9;
        unsigned worst = 0;
        double off = -1;
        for (const auto& [node, part] : weight) {
            const double here = std::abs(static_cast<double>(unnamed_on(node)) / sum * weights / part - 1);
            if (here < off - kAlike || (here < off + kAlike && unnamed_on(node) <= unnamed_on(worst))) continue;
            off = here;
            worst = node;
        }
        const auto percent = [](double share) { return std::to_string(std::lround(share * 100)) + " %"; };
        const auto on = std::to_string(weight.size()) + " nodes' anonymous memory (interleave wants " +
                        percent(weight[worst] / weights) + ')';
        const auto got = percent(static_cast<double>(unnamed_on(worst)) / sum);
        if (off > kUneven)
            say(false, "imbalance: node " + std::to_string(worst) + " has " + got + " of " + on);
        else
            say(true,
                "balanced: no node is further off than node " + std::to_string(worst) + ", with " + got + " of " + on);
        return true;
    }

    /// Of several leased nodes, those that hold nothing but what libraries had there before (CASES 31).
    void unused() {
        constexpr Bytes kIdlePart = 20;  // of an even share
        const auto leased = bounds_.nodes & bounds_.machine;
        if (bounds_.lease.empty() || all_.total() < kLittle || leased.size() < 2) return;
        NodeSet idle;
        for (const auto node : leased.items()) {
            const auto use = found_.nodes.find(node);
            if (use == found_.nodes.end() || use->second.total() <= all_.total() / leased.size() / kIdlePart)
                idle.add(node);
        }
        if (!idle.empty())
            say(false, "of the leased nodes " + leased.text() + ", " + nodes_text(idle) +
                           (idle.size() == 1 ? " holds" : " hold") + " next to nothing");
    }

    [[nodiscard]] bool is_model(const std::string& file) const {
        if (!bounds_.model.empty()) return base_name(file) == base_name(bounds_.model);
        return file.ends_with(".gguf") || file.ends_with(".safetensors");
    }

    /// The model and the largest by name, the other large ones together.
    void files() {
        constexpr std::size_t kNamed = 8;
        Large others;
        std::size_t count = 0;
        for (const auto& file : found_.files) {
            if (file.size < kLittle && !is_model(file.name)) continue;
            if (++count <= kNamed) {
                mapped(file, "is");
                continue;
            }
            for (const auto& [node, bytes] : file.nodes) others.nodes[node] += bytes;
            others.size += file.size;
        }
        others.name = std::to_string(count - std::min(kNamed, count)) + " more files";
        if (others.size > 0) mapped(others, "are");
    }

    void mapped(const Large& file, const char* are) {
        Bytes astray = 0;
        for (const auto& [node, bytes] : file.nodes)
            if (!is_inside(node)) astray += bytes;
        const bool fine = bounds_.machine.size() <= 1 || is_little(astray, file.size);
        say(fine, (is_model(file.name) ? "the model " : "") + file.name + ' ' + are +
                      " file-mapped: " + bytes_text(file.size) + ", " + spread_text(file.nodes) +
                      (fine ? "" : "; " + share_text(astray, file.size) + " is " + bound()));
    }

    void not_mapped() {
        if (bounds_.model.empty() ||
            std::ranges::any_of(found_.files, [&](const Large& file) { return is_model(file.name); }))
            return;
        say(true, "the model " + bounds_.model + " is not file-mapped: what was read of it is anonymous memory");
    }

    void threads() {
        if (bounds_.lease.empty() || bounds_.cpus.empty() || found_.threads == 0) return;
        const auto of = std::to_string(found_.threads) + (found_.threads == 1 ? " thread" : " threads");
        const auto& cpus = bounds_.cpus.text();
        const auto astray = found_.threads_astray;
        if (astray > 0)
            say(false, std::to_string(astray) + " of " + of + " may run outside of the lease's CPUs " + cpus);
        else
            say(true, "all of " + of + " may run on the lease's CPUs " + cpus + " only");
    }

    /// Without a lease, memory that every thread has to reach over the interconnect.
    void remote() {
        constexpr Bytes kWorthAWord = 10;  // a tenth
        for (const auto& [node, use] : found_.nodes)
            if (found_.threads > 0 && use.threads == 0 && use.total() >= std::max(kLittle, all_.total() / kWorthAWord))
                say(false, bytes_text(use.total()) + " (" + share_text(use.total(), all_.total()) + ") is on node " +
                               std::to_string(node) + ", where none of its threads last ran");
    }

    void rest() {
        if (found_.swap > 0) say(false, bytes_text(found_.swap) + " is swapped out, on no node");
        if (found_.not_found > 0)
            say(false, bytes_text(found_.not_found) + " of huge pages: on which node was not found out");
    }

    [[nodiscard]] Bytes unnamed_on(unsigned node) const {
        const auto use = found_.nodes.find(node);
        return use == found_.nodes.end() ? 0 : use->second.unnamed();
    }

    const Found& found_;
    const Bounds& bounds_;
    NodeUse all_;
    std::vector<Judgement> out_;
};

}  // namespace

std::vector<Judgement> judge(const Found& found, const Bounds& bounds) { return Judge(found, bounds).judge(); }

std::string nodes_text(const NodeSet& nodes) { return (nodes.size() == 1 ? "node " : "nodes ") + nodes.text(); }

std::string spread_text(const PerNode& nodes) {
    const auto size = sum_of(nodes);
    std::vector<std::pair<Bytes, unsigned>> parts;
    for (const auto& [node, bytes] : nodes)
        if (bytes > 0) parts.emplace_back(bytes, node);
    std::ranges::sort(parts, [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    std::string out;
    for (const auto& [bytes, node] : parts)
        out += (out.empty() ? "" : ", ") + (parts.size() == 1 ? "" : share_text(bytes, size) + ' ') + "on node " +
               std::to_string(node);
    return out;
}

}  // namespace numalease::client
