#include "model/request.hpp"

#include <algorithm>
#include <array>
#include <csignal>

namespace numalease::model {

namespace {

template <class Enum>
struct Word {
    std::string_view text;
    Enum value;
};

constexpr std::array kModes{Word{"physical", Mode::physical}, Word{"all", Mode::all}};
constexpr std::array kMempolicies{Word{"auto", Mempolicy::automatic}, Word{"bind", Mempolicy::bind},
                                  Word{"interleave", Mempolicy::interleave}, Word{"weighted", Mempolicy::weighted},
                                  Word{"local", Mempolicy::local}};
constexpr std::array kBalancing{Word{"auto", Balancing::automatic}, Word{"keep", Balancing::keep},
                                Word{"off", Balancing::off}, Word{"on", Balancing::on}};
constexpr std::array kPageCache{Word{"keep", PageCache::keep}, Word{"evict", PageCache::evict},
                                Word{"reclaim", PageCache::reclaim}, Word{"drop", PageCache::drop}};
/// The words of the kernel's own files. Source: admin-guide/mm/transhuge.rst.
constexpr std::array kThp{Word{"keep", 0}, Word{"always", 0}, Word{"madvise", 0}, Word{"never", 0}};
constexpr std::array kThpDefrag{Word{"keep", 0},          Word{"always", 0},  Word{"defer", 0},
                                Word{"defer+madvise", 0}, Word{"madvise", 0}, Word{"never", 0}};
constexpr std::array kWarningSignals{Word{"HUP", SIGHUP},   Word{"INT", SIGINT},   Word{"QUIT", SIGQUIT},
                                     Word{"USR1", SIGUSR1}, Word{"USR2", SIGUSR2}, Word{"TERM", SIGTERM}};
constexpr std::array kFlags{Word{"no", false}, Word{"yes", true}};

template <class Words>
auto parse_word(const Words& words, std::string_view text) -> Result<decltype(words[0].value)> {
    std::string known;
    for (const auto& word : words) {
        if (word.text == text) return word.value;
        known += (known.empty() ? "" : ", ") + std::string(word.text);
    }
    return fail(Errc::invalid_request, "'" + std::string(text) + "' is none of " + known);
}

template <class Words, class Enum>
std::string_view word_of(const Words& words, Enum value) {
    for (const auto& word : words)
        if (word.value == value) return word.text;
    return "";
}

template <class T, class U>
Result<void> assign(T& to, Result<U> from) {
    if (!from) return std::unexpected(from.error());
    to = std::move(*from);
    return {};
}

template <class Words>
Result<void> assign_word(std::string& to, const Words& words, std::string_view text) {
    if (auto known = parse_word(words, text); !known) return std::unexpected(known.error());
    to = text;
    return {};
}

Result<Choice> parse_choice(std::string_view text, unsigned limit) {
    Choice choice;
    if (text == "all") {
        choice.kind = Choice::Kind::all;
        return choice;
    }
    if (text.starts_with("any:")) {
        const auto count = parse_unsigned(text.substr(4), "any:N", limit);
        if (!count) return std::unexpected(count.error());
        if (*count == 0) return fail(Errc::invalid_request, "any:0 asks for nothing");
        choice.kind = Choice::Kind::any;
        choice.count = static_cast<unsigned>(*count);
        return choice;
    }
    auto items = IndexSet::parse_list(text, limit);
    if (!items) return std::unexpected(items.error());
    if (items->empty()) return fail(Errc::invalid_request, "an empty list");
    choice.kind = Choice::Kind::list;
    choice.items = std::move(*items);
    return choice;
}

std::string choice_text(const Choice& choice) {
    if (choice.kind == Choice::Kind::all) return "all";
    if (choice.kind == Choice::Kind::any) return "any:" + std::to_string(choice.count);
    return choice.items.text();
}

/// "0", "0000:81:00.0", "81:00.0" or "GPU-…". Which of them exist only the machine knows.
bool names_a_gpu(std::string_view text) {
    const auto all = [](std::string_view part, std::string_view allowed) {
        return !part.empty() && part.find_first_not_of(allowed) == std::string_view::npos;
    };
    constexpr std::string_view kHex = "0123456789abcdefABCDEF";
    if (text.starts_with("GPU-")) return all(text.substr(4), "0123456789abcdefABCDEF-");
    if (all(text, kHex.substr(0, 10))) return text.size() <= 5;
    const auto dot = text.rfind('.');
    const auto colon = text.rfind(':');
    if (dot == std::string_view::npos || colon == std::string_view::npos || colon > dot) return false;
    return all(text.substr(0, colon), "0123456789abcdefABCDEF:") &&
           all(text.substr(colon + 1, dot - colon - 1), kHex) && all(text.substr(dot + 1), kHex);
}

Result<void> parse_gpus(Request& request, std::string_view text) {
    request.gpus = {};
    if (text == "none") return {};
    if (text.starts_with("any:")) {
        const auto count = parse_unsigned(text.substr(4), "any:N", kGpuLimit);
        if (!count) return std::unexpected(count.error());
        if (*count == 0) return fail(Errc::invalid_request, "any:0 asks for nothing");
        request.gpus.any = static_cast<unsigned>(*count);
        return {};
    }
    while (true) {
        const auto comma = text.find(',');
        const auto item = text.substr(0, comma);
        if (!names_a_gpu(item))
            return fail(Errc::invalid_request, "'" + std::string(item.substr(0, 64)) +
                                                   "' is no GPU: write its number in bus order (0), its PCI address "
                                                   "(81:00.0), GPU-UUID, or any:N");
        if (request.gpus.items.size() == kGpuLimit)
            return fail(Errc::invalid_request, "more than " + std::to_string(kGpuLimit) + " GPUs");
        request.gpus.items.emplace_back(item);
        if (comma == std::string_view::npos) return {};
        text.remove_prefix(comma + 1);
    }
}

std::string gpus_text(const Request& request) {
    if (request.gpus.any > 0) return "any:" + std::to_string(request.gpus.any);
    std::string out;
    for (const auto& item : request.gpus.items) out += (out.empty() ? "" : ",") + item;
    return out.empty() ? "none" : out;
}

Result<void> parse_gpu_share(Request& request, std::string_view text) {
    const auto count = parse_unsigned(text, "how many leases", kGpuLimit);
    if (!count) return std::unexpected(count.error());
    if (*count == 0) return fail(Errc::invalid_request, "at least one lease: this one");
    request.gpu_share = static_cast<unsigned>(*count);
    return {};
}

Result<HugepageRequest> parse_hugepage_item(std::string_view item) {
    const auto bad = [&] {
        return fail(Errc::invalid_request, "'" + std::string(item) + "' is not SIZE=AMOUNT[@NODES], like 2M=8G@0");
    };
    HugepageRequest out;
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) return bad();
    const auto size = parse_bytes(item.substr(0, equals));
    auto rest = item.substr(equals + 1);
    if (const auto at = rest.find('@'); at != std::string_view::npos) {
        auto nodes = NodeSet::parse(rest.substr(at + 1));
        if (!nodes) return std::unexpected(nodes.error());
        if (nodes->empty()) return bad();
        out.nodes = std::move(*nodes);
        rest = rest.substr(0, at);
    }
    const auto range = rest.find("..");
    const auto amount = parse_bytes(range == std::string_view::npos ? rest : rest.substr(range + 2));
    const auto least = range == std::string_view::npos ? amount : parse_bytes(rest.substr(0, range));
    if (!size || !amount || !least) return bad();
    if (*size == 0 || *amount == 0 || *amount % *size != 0 || *least % *size != 0 || *least > *amount)
        return fail(Errc::invalid_request, "'" + std::string(item) + "': the amount must be a whole number of pages");
    out.page_size = *size;
    out.amount = *amount;
    out.at_least = *least;
    return out;
}

/// Items are separated by commas; a node list after '@' contains commas too, so an item starts where "SIZE=" does.
Result<void> parse_hugepages(Request& request, std::string_view text) {
    request.hugepages.clear();
    if (text == "none") return {};
    while (true) {
        auto end = text.find(',');
        while (end != std::string_view::npos) {
            const auto next = text.find(',', end + 1);
            if (text.substr(end + 1, next == std::string_view::npos ? next : next - end - 1).find('=') !=
                std::string_view::npos)
                break;
            end = next;
        }
        const auto item = parse_hugepage_item(text.substr(0, end));
        if (!item) return std::unexpected(item.error());
        if (request.hugepages.size() >= 64) return fail(Errc::invalid_request, "more than 64 huge-page items");
        request.hugepages.push_back(*item);
        if (end == std::string_view::npos) return {};
        text.remove_prefix(end + 1);
    }
}

std::string hugepages_text(const Request& request) {
    std::string out;
    for (const auto& item : request.hugepages) {
        out += (out.empty() ? "" : ",") + bytes_text(item.page_size) + '=';
        if (item.at_least != item.amount) out += std::to_string(item.at_least) + "..";
        // Sizes that do not round are written in bytes: text must come back as the same number.
        const auto amount = bytes_text(item.amount);
        out += parse_bytes(amount).value_or(0) == item.amount ? amount : std::to_string(item.amount);
        if (!item.nodes.empty()) out += '@' + item.nodes.text();
    }
    return out.empty() ? "none" : out;
}

Result<void> parse_weights(Request& request, std::string_view text) {
    request.weights.clear();
    while (!text.empty()) {
        const auto comma = text.find(',');
        const auto item = text.substr(0, comma);
        text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
        const auto equals = item.find('=');
        if (equals == std::string_view::npos)
            return fail(Errc::invalid_request, "'" + std::string(item) + "' is not NODE=WEIGHT");
        const auto node = parse_unsigned(item.substr(0, equals), "node", kNodeLimit - 1);
        const auto weight = parse_unsigned(item.substr(equals + 1), "weight", 255);
        if (!node) return std::unexpected(node.error());
        if (!weight) return std::unexpected(weight.error());
        if (*weight == 0) return fail(Errc::invalid_request, "a weight is 1 to 255");
        request.weights[static_cast<unsigned>(*node)] = static_cast<unsigned>(*weight);
    }
    return {};
}

std::string weights_text(const Request& request) {
    std::string out;
    for (const auto& [node, weight] : request.weights)
        out += (out.empty() ? "" : ",") + std::to_string(node) + '=' + std::to_string(weight);
    return out;
}

/// The name of a slice: systemd nests numalease-a-b.slice below numalease-a.slice.
Result<void> parse_name(Request& request, std::string_view text) {
    constexpr std::size_t kLongest = 32;
    const auto quoted = "'" + std::string(text.substr(0, 2 * kLongest)) + "'";
    const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
    if (text.find('-') != std::string_view::npos)
        return fail(Errc::invalid_request,
                    quoted + " has a dash, which would put its slice inside another lease's; " + "use _ instead");
    if (text.empty() || text.size() > kLongest || !std::ranges::all_of(text, allowed))
        return fail(Errc::invalid_request, quoted + " is no name of a lease: 1 to 32 of a-z, 0-9 and _");
    if (text.front() == 'c' && text.size() > 1 && text.find_first_not_of("0123456789", 1) == std::string_view::npos)
        return fail(Errc::invalid_request, quoted + " looks like the id of a lease; use another name");
    request.name = text;
    return {};
}

Result<void> parse_class(Request& request, std::string_view text) {
    if (text.empty()) return fail(Errc::invalid_request, "a name, like batch, normal or service");
    request.job_class = text;
    return {};
}

Result<void> parse_wait(Request& request, std::string_view text) {
    request.wait = Wait{.forever = text == "forever", .time = Micros(0)};
    if (text == "forever" || text == "no") return {};
    return assign(request.wait.time, parse_duration(text));
}

std::string wait_text(const Request& request) {
    if (request.wait.forever) return "forever";
    return request.wait.time.count() == 0 ? "no" : std::to_string(request.wait.time.count()) + "us";
}

/// "5min", "5min:USR1".
Result<void> parse_warn(Request& request, std::string_view text) {
    const auto colon = text.find(':');
    auto time = parse_duration(text.substr(0, colon));
    if (!time) return std::unexpected(time.error());
    request.warn = {.before = *time, .signal = {}};
    if (colon == std::string_view::npos) return {};
    const auto name = text.substr(colon + 1);
    if (warning_signal(name) == 0) {
        std::string known;
        for (const auto& signal : kWarningSignals) known += (known.empty() ? "" : ", ") + std::string(signal.text);
        return fail(Errc::invalid_request, "'" + std::string(name) + "' is none of " + known);
    }
    request.warn.signal = name;
    return {};
}

std::string warn_text(const Request& request) {
    return std::to_string(request.warn.before.count()) + "us" +
           (request.warn.signal.empty() ? "" : ":" + request.warn.signal);
}

Result<void> parse_zone_reclaim(Request& request, std::string_view text) {
    constexpr std::uint64_t kAllBits = 7;
    if (text != "keep")
        if (const auto value = parse_unsigned(text, "zone-reclaim", kAllBits); !value)
            return std::unexpected(value.error());
    request.zone_reclaim = text;
    return {};
}

Result<void> parse_required(Request& request, std::string_view text) {
    request.required.clear();
    while (!text.empty()) {
        const auto comma = text.find(',');
        request.required.emplace(text.substr(0, comma));
        text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    }
    return {};
}

std::string required_text(const Request& request) {
    std::string out;
    for (const auto& name : request.required) out += (out.empty() ? "" : ",") + name;
    return out;
}

using Text = std::string_view;

constexpr std::array kFields{
    RequestField{"policy", "NAME",
                 [](Request& r, Text t) {
                     r.policy = t;
                     return Result<void>{};
                 },
                 [](const Request& r) { return r.policy; }},
    RequestField{"name", "NAME", parse_name, [](const Request& r) { return r.name; }},
    RequestField{"socket", "LIST|any:N|all",
                 [](Request& r, Text t) { return assign(r.sockets, parse_choice(t, kCpuLimit)); },
                 [](const Request& r) { return choice_text(r.sockets); }},
    RequestField{"node", "LIST|any:N|all",
                 [](Request& r, Text t) { return assign(r.nodes, parse_choice(t, kNodeLimit)); },
                 [](const Request& r) { return choice_text(r.nodes); }},
    RequestField{"cores", "N",
                 [](Request& r, Text t) -> Result<void> {
                     const auto count = parse_unsigned(t, "cores", kCpuLimit);
                     if (!count) return std::unexpected(count.error());
                     if (*count == 0) return fail(Errc::invalid_request, "at least one core");
                     r.cores = static_cast<unsigned>(*count);
                     return {};
                 },
                 [](const Request& r) { return r.cores ? std::to_string(*r.cores) : std::string(); }},
    RequestField{"mode", "physical|all", [](Request& r, Text t) { return assign(r.mode, parse_word(kModes, t)); },
                 [](const Request& r) { return std::string(word_of(kModes, r.mode)); }},
    RequestField{"near", "pci:ADDR|gpu:N|gpu:UUID|netdev:NAME|block:NAME",
                 [](Request& r, Text t) {
                     r.near = t;
                     return Result<void>{};
                 },
                 [](const Request& r) { return r.near; }},
    RequestField{"gpu", "none|N|PCI|UUID,…|any:N", parse_gpus, gpus_text},
    RequestField{"gpu-share", "N", parse_gpu_share, [](const Request& r) { return std::to_string(r.gpu_share); }},
    RequestField{"memory", "SIZE", [](Request& r, Text t) { return assign(r.memory, parse_bytes(t)); },
                 [](const Request& r) { return r.memory ? std::to_string(*r.memory) : std::string(); }},
    RequestField{"memory-is-estimate", "yes|no",
                 [](Request& r, Text t) { return assign(r.memory_is_estimate, parse_word(kFlags, t)); },
                 [](const Request& r) { return std::string(word_of(kFlags, r.memory_is_estimate)); }},
    RequestField{"memory-max", "SIZE", [](Request& r, Text t) { return assign(r.memory_max, parse_bytes(t)); },
                 [](const Request& r) { return r.memory_max ? std::to_string(*r.memory_max) : std::string(); }},
    RequestField{"mempolicy", "auto|bind|interleave|weighted|local",
                 [](Request& r, Text t) { return assign(r.mempolicy, parse_word(kMempolicies, t)); },
                 [](const Request& r) { return std::string(text_of(r.mempolicy)); }},
    RequestField{"weights", "NODE=1..255,…", parse_weights, weights_text},
    RequestField{"numa-balancing", "auto|keep|off|on",
                 [](Request& r, Text t) { return assign(r.numa_balancing, parse_word(kBalancing, t)); },
                 [](const Request& r) { return std::string(text_of(r.numa_balancing)); }},
    RequestField{"thp", "keep|always|madvise|never", [](Request& r, Text t) { return assign_word(r.thp, kThp, t); },
                 [](const Request& r) { return r.thp; }},
    RequestField{"thp-defrag", "keep|always|defer|defer+madvise|madvise|never",
                 [](Request& r, Text t) { return assign_word(r.thp_defrag, kThpDefrag, t); },
                 [](const Request& r) { return r.thp_defrag; }},
    RequestField{"zone-reclaim", "keep|0..7", parse_zone_reclaim, [](const Request& r) { return r.zone_reclaim; }},
    RequestField{"hugepages", "none|SIZE=[MIN..]AMOUNT[@NODES],…", parse_hugepages, hugepages_text},
    RequestField{"page-cache", "keep|evict|reclaim|drop",
                 [](Request& r, Text t) { return assign(r.page_cache, parse_word(kPageCache, t)); },
                 [](const Request& r) { return std::string(text_of(r.page_cache)); }},
    RequestField{"share", "yes|no", [](Request& r, Text t) { return assign(r.share, parse_word(kFlags, t)); },
                 [](const Request& r) { return std::string(word_of(kFlags, r.share)); }},
    RequestField{"shield", "yes|no", [](Request& r, Text t) { return assign(r.shield, parse_word(kFlags, t)); },
                 [](const Request& r) { return std::string(word_of(kFlags, r.shield)); }},
    RequestField{"isolated", "yes|no", [](Request& r, Text t) { return assign(r.isolated, parse_word(kFlags, t)); },
                 [](const Request& r) { return std::string(word_of(kFlags, r.isolated)); }},
    RequestField{"class", "NAME", parse_class, [](const Request& r) { return r.job_class; }},
    RequestField{"wait", "TIME|forever|no", parse_wait, wait_text},
    RequestField{"time", "TIME", [](Request& r, Text t) { return assign(r.time, parse_duration(t)); },
                 [](const Request& r) { return r.time ? std::to_string(r.time->count()) + "us" : std::string(); }},
    RequestField{"warn", "TIME[:SIGNAL]", parse_warn, warn_text},
    RequestField{"grace", "TIME", [](Request& r, Text t) { return assign(r.grace, parse_duration(t)); },
                 [](const Request& r) { return std::to_string(r.grace.count()) + "us"; }},
    RequestField{"reason", "TEXT",
                 [](Request& r, Text t) {
                     r.reason = t;
                     return Result<void>{};
                 },
                 [](const Request& r) { return r.reason; }},
    RequestField{"command", "TEXT",
                 [](Request& r, Text t) {
                     r.command = t;
                     return Result<void>{};
                 },
                 [](const Request& r) { return r.command; }},
    RequestField{"required", "FIELD,…", parse_required, required_text},
};

}  // namespace

std::span<const RequestField> request_fields() { return kFields; }

int warning_signal(std::string_view name) {
    for (const auto& signal : kWarningSignals)
        if (signal.text == name) return signal.value;
    return 0;
}

std::string_view text_of(Mempolicy policy) { return word_of(kMempolicies, policy); }
std::string_view text_of(Balancing balancing) { return word_of(kBalancing, balancing); }
std::string_view text_of(PageCache action) { return word_of(kPageCache, action); }

}  // namespace numalease::model
