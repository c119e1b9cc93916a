#include "host/journal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>

#include "model/units.hpp"

namespace numalease::host {

using model::Errc;
using model::fail;
using model::Record;
using model::Result;

namespace {

constexpr std::string_view kMagic = "numa-lease-journal ";
constexpr unsigned kVersion = 1;
constexpr const char* kName = "journal";
constexpr const char* kNewName = "journal.new";
constexpr std::size_t kMostBytes = 64U << 20U;  ///< a journal is compacted long before; a larger file is none of ours
constexpr std::size_t kCompactionBytes = kMostBytes / 4;
constexpr std::uint64_t kCompactionLines = 256;
constexpr std::uint64_t kLinesPerEntity = 8;

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
        std::uint32_t value = i;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? 0xEDB88320U : 0U);
        table.at(i) = value;
    }
    return table;
}();

/// CRC-32 as in IEEE 802.3, zlib and cksum -a crc32b.
std::uint32_t crc32(std::string_view text) {
    std::uint32_t crc = ~0U;
    for (const char c : text) crc = kCrcTable.at((crc ^ static_cast<std::uint8_t>(c)) & 0xFFU) ^ (crc >> 8U);
    return ~crc;
}

/// Eight digits, so that a line has one form only.
std::string crc_text(std::string_view text) {
    std::array<char, 16> digits{};
    std::snprintf(digits.data(), digits.size(), "%08x", crc32(text));
    return digits.data();
}

std::string header_line(const std::string& boot_id) {
    return std::string(kMagic) + std::to_string(kVersion) + " boot=" + boot_id + '\n';
}

std::unexpected<model::Error> broken(const std::string& what, int err) {
    return fail(Errc::io, "journal: cannot " + what + ": " + errno_text(err), err);
}

/// What a journal's text holds.
struct Parsed {
    enum class Kind { ours, other_boot, newer, foreign } kind = Kind::foreign;
    std::vector<Record> records;
    std::size_t whole = 0;  ///< bytes up to the first line that cannot be trusted
    std::string warning;
};

/// Format of the first line: "numa-lease-journal 1 boot=6f9e5f68-bb15-4221-ab3f-7f114ca762c8".
Parsed::Kind parse_header(std::string_view line, const std::string& boot_id) {
    using enum Parsed::Kind;
    if (!line.starts_with(kMagic)) return foreign;
    line.remove_prefix(kMagic.size());
    const auto blank = line.find(' ');
    const auto version = model::parse_unsigned(line.substr(0, blank), "version", ~0U);
    if (!version) return foreign;
    if (*version > kVersion) return newer;
    constexpr std::string_view kBoot = " boot=";
    if (*version != kVersion || blank == std::string_view::npos || !line.substr(blank).starts_with(kBoot))
        return foreign;
    return line.substr(blank + kBoot.size()) == boot_id ? ours : other_boot;
}

/// Takes the lines that are whole and in sequence. From the first that is not, nothing is trusted: a record after a
/// gap could restore a value that the missing line had already changed.
Parsed parse(std::string_view text, const std::string& boot_id) {
    Parsed out;
    const auto header_end = text.find('\n');
    out.kind = parse_header(text.substr(0, header_end), boot_id);
    if (header_end == std::string_view::npos) out.kind = Parsed::Kind::foreign;
    if (out.kind != Parsed::Kind::ours) return out;
    out.whole = header_end + 1;
    while (out.whole < text.size()) {
        const auto end = text.find('\n', out.whole);
        const bool torn = end == std::string_view::npos;
        const auto line = text.substr(out.whole, torn ? end : end - out.whole);
        auto record =
            torn ? fail(Errc::unreadable, "its end is missing") : parse_journal_line(line, out.records.size() + 1);
        if (!record) {
            out.warning = "journal: line " + std::to_string(out.records.size() + 2) + " is torn or damaged (" +
                          record.error().detail + "): it and what follows, " + std::to_string(text.size() - out.whole) +
                          " bytes, are ignored";
            break;
        }
        out.records.push_back(std::move(*record));
        out.whole = end + 1;
    }
    return out;
}

/// Reads a file whole. nullopt where it is no file of a size we would have written.
std::optional<std::string> read_all(int fd) {
    struct stat facts{};
    if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || static_cast<std::size_t>(facts.st_size) > kMostBytes)
        return std::nullopt;
    std::string text(static_cast<std::size_t>(facts.st_size), '\0');
    std::size_t size = 0;
    while (size < text.size()) {
        const auto got = ::pread(fd, text.data() + size, text.size() - size, static_cast<off_t>(size));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        size += static_cast<std::size_t>(got);
    }
    text.resize(size);
    return text;
}

Result<void> write_all(int fd, std::string_view text, off_t at) {
    ssize_t put = -1;
    do {
        put = ::pwrite(fd, text.data(), text.size(), at);
    } while (put < 0 && errno == EINTR);
    if (put < 0) return broken("write", errno);
    // A short write to a file means that the disk is full.
    if (static_cast<std::size_t>(put) != text.size()) return broken("write", ENOSPC);
    return {};
}

/// Appends the records to `text` as lines, `sequence` being the last number before them; `size`: bytes that are in the
/// file already. A line that could not be read would cost itself and all that follow it.
Result<void> add_lines(std::string& text, const std::vector<Record>& records, std::uint64_t& sequence,
                       std::uint64_t size) {
    for (const auto& record : records) {
        const auto line = journal_line(++sequence, record);
        if (const auto read = parse_journal_line(line, sequence); !read)
            return fail(Errc::internal, "journal: " + record.type + ' ' + record.key +
                                            " could not be read back: " + read.error().detail);
        text += line + '\n';
    }
    if (size + text.size() <= kMostBytes) return {};
    return fail(Errc::internal, "journal: more than " + model::bytes_text(kMostBytes), EFBIG);
}

/// The runtime directory, made where it is missing.
Result<UniqueFd> open_directory(const std::string& directory) {
    ::mkdir(directory.c_str(), 0755);
    UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return broken("open the directory " + directory, errno);
    return fd;
}

/// Where a file that is not used goes, and what is said about it. No name for one that is used.
struct Aside {
    const char* name = nullptr;
    std::string warning;
};

Aside set_aside(Parsed::Kind kind) {
    switch (kind) {
        case Parsed::Kind::ours: return {};
        case Parsed::Kind::other_boot:
            return {"journal.old",
                    "journal: written before the last boot; the kernel state it describes is gone, so it is ignored"};
        case Parsed::Kind::newer:
            return {"journal.newer",
                    "journal: written by a newer numa-leased; what it would restore is ignored, see journal.newer"};
        case Parsed::Kind::foreign:
            return {"journal.foreign",
                    "journal: not a journal of numa-leased, or its first line is damaged; it is ignored"};
    }
    return {};
}

}  // namespace

std::string journal_line(std::uint64_t sequence, const Record& record) {
    const auto rest = std::to_string(sequence) + ' ' + to_line(record);
    return crc_text(rest) + ' ' + rest;
}

Result<Record> parse_journal_line(std::string_view line, std::uint64_t expected_sequence) {
    const auto bad = [](std::string what) { return fail(Errc::unreadable, std::move(what)); };
    const auto first = line.find(' ');
    if (first == std::string_view::npos) return bad("no checksum");
    if (line.substr(0, first) != crc_text(line.substr(first + 1))) return bad("its checksum is wrong");
    line.remove_prefix(first + 1);
    const auto blank = line.find(' ');
    const auto sequence = model::parse_unsigned(line.substr(0, blank), "sequence", ~std::uint64_t{0});
    if (!sequence || blank == std::string_view::npos) return bad("no sequence number");
    if (*sequence != expected_sequence)
        return bad("number " + std::to_string(*sequence) + " where " + std::to_string(expected_sequence) + " was due");
    auto record = model::record_from_line(line.substr(blank + 1));
    if (!record) return bad(record.error().detail);
    return record;
}

Result<Journal> Journal::open(const std::string& directory, const std::string& boot_id, Found& found) {
    found = {};
    Journal journal;
    journal.boot_id_ = boot_id;
    auto opened = open_directory(directory);
    if (!opened) return std::unexpected(opened.error());
    journal.directory_ = std::move(*opened);
    const int at = journal.directory_.get();

    // O_NONBLOCK and O_NOFOLLOW: whatever lies there under our name, opening it neither waits nor leads elsewhere.
    UniqueFd file(::openat(at, kName, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    const int err = errno;
    const bool absent = !file && err == ENOENT;
    if (!file && !absent && err != ELOOP && err != EISDIR && err != ENXIO)
        return broken("open " + directory + "/journal", err);
    const auto text = file ? read_all(file.get()) : std::nullopt;
    auto parsed = text ? parse(*text, boot_id) : Parsed{};
    if (!absent && parsed.kind != Parsed::Kind::ours) {
        const auto aside = set_aside(parsed.kind);
        if (::renameat(at, kName, at, aside.name) != 0) return broken("set aside " + directory + "/journal", errno);
        found.warnings.push_back(aside.warning);
    }
    if (parsed.kind != Parsed::Kind::ours) {
        if (auto made = journal.compact({}); !made) return std::unexpected(made.error());
        return journal;
    }
    if (!parsed.warning.empty()) {
        found.warnings.push_back(parsed.warning);
        if (::ftruncate(file.get(), static_cast<off_t>(parsed.whole)) != 0 || ::fdatasync(file.get()) != 0)
            return broken("cut the damaged end off " + directory + "/journal", errno);
    }
    journal.file_ = std::move(file);
    journal.size_ = parsed.whole;
    journal.lines_ = journal.sequence_ = parsed.records.size();
    found.records = std::move(parsed.records);
    return journal;
}

Journal::Found Journal::peek(const std::string& directory, const std::string& boot_id) {
    Found found;
    const UniqueFd file(::open((directory + '/' + kName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file) {
        if (errno != ENOENT) found.warnings.push_back("journal: cannot read: " + errno_text(errno));
        return found;
    }
    const auto text = read_all(file.get());
    auto parsed = text ? parse(*text, boot_id) : Parsed{};
    if (auto aside = set_aside(parsed.kind); aside.name != nullptr) found.warnings.push_back(std::move(aside.warning));
    if (!parsed.warning.empty()) found.warnings.push_back(std::move(parsed.warning));
    found.records = std::move(parsed.records);
    return found;
}

Result<void> Journal::append(const std::vector<Record>& records) {
    if (records.empty()) return {};
    struct stat facts{};
    if (::fstat(file_.get(), &facts) != 0) return broken("look at itself", errno);
    if (facts.st_nlink == 0) return fail(Errc::io, "journal: somebody removed it; restart numa-leased", ENOENT);
    const auto cut = [&] { return ::ftruncate(file_.get(), static_cast<off_t>(size_)) == 0; };
    // A batch that failed and could not be cut off then: its lines must not come to stand behind new ones.
    if (static_cast<std::uint64_t>(facts.st_size) != size_ && !cut()) return broken("cut off a failed write", errno);

    std::string text;
    auto sequence = sequence_;
    if (auto added = add_lines(text, records, sequence, size_); !added) return added;
    auto done = write_all(file_.get(), text, static_cast<off_t>(size_));
    if (done && ::fdatasync(file_.get()) != 0) done = broken("make durable", errno);
    if (!done) {
        [[maybe_unused]] const bool next_append_tries_again = cut();
        return done;
    }
    sequence_ = sequence;
    lines_ += records.size();
    size_ += text.size();
    return {};
}

Result<void> Journal::compact(const std::vector<Record>& snapshot) {
    std::string text = header_line(boot_id_);
    std::uint64_t sequence = 0;
    if (auto added = add_lines(text, snapshot, sequence, 0); !added) return added;

    const int at = directory_.get();
    ::unlinkat(at, kNewName, 0);  // left behind by a crash here
    UniqueFd file(::openat(at, kNewName, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!file) return broken("create journal.new", errno);
    auto done = write_all(file.get(), text, 0);
    if (done && ::fsync(file.get()) != 0) done = broken("make journal.new durable", errno);
    if (done && ::renameat(at, kNewName, at, kName) != 0) done = broken("rename journal.new", errno);
    if (!done) {
        ::unlinkat(at, kNewName, 0);
        return done;
    }
    file_ = std::move(file);
    sequence_ = lines_ = sequence;
    size_ = compacted_ = text.size();
    if (::fsync(at) != 0) return broken("make its directory durable", errno);
    return {};
}

bool Journal::wants_compaction(std::size_t live) const {
    if (size_ > kCompactionBytes && size_ > 2 * compacted_) return true;
    return lines_ > kCompactionLines && lines_ > kLinesPerEntity * live;
}

Result<std::string> read_boot_id(const Root& root) {
    constexpr std::string_view kPath = "proc/sys/kernel/random/boot_id";
    constexpr std::size_t kUuidLength = 36;
    auto text = root.read(kPath);
    if (!text) return std::unexpected(text.error());
    const auto id = model::trim(*text);
    if (id.size() != kUuidLength || id.find_first_not_of("0123456789abcdefABCDEF-") != std::string_view::npos)
        return fail(Errc::io, "cannot understand " + root.full_path(kPath));
    return std::string(id);
}

}  // namespace numalease::host
