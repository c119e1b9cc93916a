#include "where/numa_maps.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace numalease::client {

namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

/// The next word of `text`, which loses it; empty at the end.
std::string_view next_word(std::string_view& text) {
    constexpr std::string_view kBlanks = " \t";
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    const auto word = text.substr(0, text.find_first_of(kBlanks));
    text.remove_prefix(word.size());
    return word;
}

std::string_view next_line(std::string_view& text) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    return line;
}

std::optional<std::uint64_t> number(std::string_view text, int base = 10) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

Bytes times(std::uint64_t count, Bytes size) {
    Bytes out = 0;
    return __builtin_mul_overflow(count, size, &out) ? kMost : out;
}

Bytes plus(Bytes a, Bytes b) {
    Bytes out = 0;
    return __builtin_add_overflow(a, b, &out) ? kMost : out;
}

/// "N3=17" → 3 and 17.
std::optional<std::pair<unsigned, std::uint64_t>> node_count(std::string_view word) {
    const auto equals = word.find('=');
    if (!word.starts_with('N') || equals == std::string_view::npos) return std::nullopt;
    const auto node = number(word.substr(1, equals - 1));
    const auto count = number(word.substr(equals + 1));
    if (!node || *node >= model::kNodeLimit || !count) return std::nullopt;
    return std::pair{static_cast<unsigned>(*node), *count};
}

/// Undoes the octal escapes of seq_path and mountinfo: "\040" is a blank.
std::string unescape(std::string_view text) {
    const auto octal = [](char c) { return c >= '0' && c <= '7'; };
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size() && text[i + 1] <= '3' && octal(text[i + 1]) && octal(text[i + 2]) &&
            octal(text[i + 3])) {
            out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

/// What stands behind the policy, which may have blanks in it: "weighted interleave:0-1", "prefer (many):2".
bool is_attribute(std::string_view word) {
    return word.find('=') != std::string_view::npos && !word.starts_with("interleave=") && !word.starts_with("bind=") &&
           !word.starts_with("prefer=") && !word.starts_with("(many)=") && !word.starts_with("local=");
}

/// "  12 kB" → bytes.
Bytes kibibytes(std::string_view text) {
    const auto count = number(next_word(text));
    return count ? times(*count, model::kKiB) : 0;
}

}  // namespace

Bytes sum_of(const PerNode& nodes) {
    Bytes sum = 0;
    for (const auto& [node, bytes] : nodes) sum = plus(sum, bytes);
    return sum;
}

// Format: "7f4dc1200000 bind=static:3 file=/anon_hugepage\040(deleted) huge anon=1 dirty=1 N3=1
// kernelpagesize_kB=2048", "0176a000 weighted interleave:0-1 heap anon=65793 dirty=65793 active=0 N0=32897 N1=32896
// kernelpagesize_kB=4", "7f39fce3a000 default" for one without pages. N counts pages of kernelpagesize_kB; file names
// escape blank, tab, newline and "=".  Source: fs/proc/task_mmu.c, show_numa_map; numa(7).
std::optional<Mapping> parse_numa_maps_line(std::string_view line) {
    constexpr int kHex = 16;
    Mapping out;
    const auto start = number(next_word(line), kHex);
    if (!start) return std::nullopt;
    out.start = *start;
    Bytes page = 0;
    std::uint64_t owned = 0;
    bool in_policy = true;
    for (auto word = next_word(line); !word.empty(); word = next_word(line)) {
        in_policy = in_policy && word != "heap" && word != "stack" && word != "huge" && !is_attribute(word);
        if (in_policy) {
            out.policy += (out.policy.empty() ? "" : " ") + std::string(word);
        } else if (word == "huge") {
            out.hugetlb = true;
        } else if (word.starts_with("file=")) {
            out.file = unescape(word.substr(word.find('=') + 1));
        } else if (word.starts_with("anon=")) {
            owned = number(word.substr(word.find('=') + 1)).value_or(0);
        } else if (word.starts_with("kernelpagesize_kB=")) {
            page = kibibytes(word.substr(word.find('=') + 1));
        } else if (const auto count = node_count(word)) {
            out.nodes[count->first] = count->second;
        }
    }
    if (out.policy.empty()) return std::nullopt;
    for (auto& [node, bytes] : out.nodes) bytes = times(bytes, page);
    out.owned = std::min(times(owned, page), sum_of(out.nodes));
    return out;
}

Kind kind_of(const Mapping& mapping) {
    constexpr std::array<std::string_view, 4> kShared{"/dev/zero", "/memfd:", "/SYSV", "/dev/shm/"};
    if (mapping.hugetlb) return Kind::hugetlb;
    if (mapping.file.empty()) return Kind::anonymous;
    const auto begins = [&](std::string_view prefix) { return mapping.file.starts_with(prefix); };
    return std::ranges::any_of(kShared, begins) ? Kind::shared : Kind::file;
}

// Format: "557f8b085000-557f8b087000 r--p 00000000 fe:00 247134                     /usr/bin/cat"; the name may hold
// blanks, and newlines as \012. In brackets: "[heap]", "[anon:name]", "[vdso]".  Source: proc(5).
std::optional<Span> parse_maps_line(std::string_view line) {
    constexpr int kHex = 16;
    const auto range = next_word(line);
    const auto dash = range.find('-');
    if (dash == std::string_view::npos) return std::nullopt;
    const auto start = number(range.substr(0, dash), kHex);
    const auto end = number(range.substr(dash + 1), kHex);
    const auto rights = next_word(line);
    next_word(line);  // offset
    const auto device = next_word(line);
    const auto colon = std::min(device.find(':'), device.size());
    const auto major = number(device.substr(0, colon), kHex);
    const auto minor = number(device.substr(std::min(colon + 1, device.size())), kHex);
    const auto inode = next_word(line);
    if (!start || !end || *end <= *start || rights.starts_with("---") || inode.empty()) return std::nullopt;
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (line.starts_with("[v")) return std::nullopt;
    return Span{.start = *start,
                .end = *end,
                .device = std::to_string(major.value_or(0)) + ':' + std::to_string(minor.value_or(0)),
                .file = line.starts_with('[') ? std::string() : unescape(line)};
}

// Format: "Name:\tcat\nUid:\t0\t0\t0\t0\nRssAnon:\t     116 kB\nMems_allowed_list:\t0-3\n…"
ProcessStatus parse_status(std::string_view text) {
    ProcessStatus out;
    while (!text.empty()) {
        auto line = next_line(text);
        const auto colon = std::min(line.find(':'), line.size());
        const auto key = line.substr(0, colon);
        line.remove_prefix(std::min(colon + 1, line.size()));
        if (key == "Name") out.name = model::trim(line);
        if (key == "Uid") out.uid = static_cast<unsigned>(number(next_word(line)).value_or(0));
        if (key == "RssAnon") out.anonymous = kibibytes(line);
        if (key == "RssFile") out.file = kibibytes(line);
        if (key == "RssShmem") out.shared = kibibytes(line);
        if (key == "HugetlbPages") out.hugetlb = kibibytes(line);
        if (key == "VmSwap") out.swap = kibibytes(line);
        if (key == "Mems_allowed_list") out.nodes = model::NodeSet::parse(model::trim(line)).value_or(model::NodeSet{});
    }
    return out;
}

// Format: "1234 (name, which may hold blanks and brackets) S 1 …", fields counted from 1.  Source: proc(5).
std::optional<std::uint64_t> stat_field(std::string_view text, std::size_t field) {
    constexpr std::size_t kFirst = 3;  // behind the name
    const auto bracket = text.rfind(')');
    if (bracket == std::string_view::npos) return std::nullopt;
    text = model::trim(text.substr(bracket + 1));
    std::string_view word;
    for (std::size_t at = kFirst; at <= field; ++at) word = next_word(text);
    return number(word);
}

// Format: "anon N0=1048576 N1=0\nfile N0=…".  Source: admin-guide/cgroup-v2.rst, memory.numa_stat.
std::map<std::string, PerNode> parse_numa_stat(std::string_view text) {
    std::map<std::string, PerNode> out;
    while (!text.empty()) {
        auto line = next_line(text);
        const auto name = std::string(next_word(line));
        for (auto word = next_word(line); !word.empty(); word = next_word(line))
            if (const auto count = node_count(word)) out[name][count->first] = count->second;
    }
    return out;
}

// Format: "AnonHugePages:      2048 kB"
Bytes parse_transparent_huge(std::string_view text) {
    constexpr std::string_view kKey = "AnonHugePages:";
    while (!text.empty())
        if (const auto line = next_line(text); line.starts_with(kKey)) return kibibytes(line.substr(kKey.size()));
    return 0;
}

std::string parse_cgroup(std::string_view text) {
    constexpr std::string_view kUnified = "0::/";
    while (!text.empty())
        if (const auto line = next_line(text); line.starts_with(kUnified))
            return std::string(line.substr(kUnified.size() - 1));
    return {};
}

// Format: "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw"; the fields before the dash vary in
// number, the device is the third, the mount point the fifth.
std::vector<Mount> parse_mounts(std::string_view text) {
    std::vector<Mount> out;
    while (!text.empty()) {
        auto line = next_line(text);
        const auto dash = line.find(" - ");
        if (dash == std::string_view::npos) continue;
        auto type = line.substr(dash + 3);
        next_word(line);
        next_word(line);
        const auto device = next_word(line);
        next_word(line);
        const auto point = next_word(line);
        out.push_back({std::string(device), unescape(point), std::string(next_word(type))});
    }
    return out;
}

}  // namespace numalease::client
