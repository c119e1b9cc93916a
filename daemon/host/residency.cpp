#include "host/residency.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "host/lines.hpp"

namespace numalease::host {

using model::Bytes;
using model::Errc;
using model::fail;
using model::Residency;
using model::Result;

namespace {

constexpr Bytes kWindow = model::kGiB;  ///< mapped at a time: what the samples map in costs page tables

// ── May it be looked at? ─────────────────────────────────────────────────────────────────────────────────────────

/// Source: statfs(2), linux/magic.h, and the file systems' own sources for those that are in neither.
constexpr std::array<std::uint32_t, 20> kLocal{EXT4_SUPER_MAGIC,
                                               XFS_SUPER_MAGIC,
                                               BTRFS_SUPER_MAGIC,
                                               F2FS_SUPER_MAGIC,
                                               TMPFS_MAGIC,
                                               RAMFS_MAGIC,
                                               OVERLAYFS_SUPER_MAGIC,
                                               SQUASHFS_MAGIC,
                                               EROFS_SUPER_MAGIC_V1,
                                               ISOFS_SUPER_MAGIC,
                                               MSDOS_SUPER_MAGIC,
                                               NILFS_SUPER_MAGIC,
                                               REISERFS_SUPER_MAGIC,
                                               UDF_SUPER_MAGIC,
                                               0x2fc12fc1 /* zfs */,
                                               0xca451a4e /* bcachefs */,
                                               0x2011bab0 /* exfat */,
                                               0x7366746e /* ntfs3 */,
                                               0x3153464a /* jfs */,
                                               0x482b /* hfs+ */};

constexpr std::array<std::pair<std::uint32_t, std::string_view>, 8> kElsewhere{{{NFS_SUPER_MAGIC, "NFS"},
                                                                                {FUSE_SUPER_MAGIC, "FUSE"},
                                                                                {V9FS_MAGIC, "9p"},
                                                                                {CIFS_SUPER_MAGIC, "CIFS"},
                                                                                {SMB2_SUPER_MAGIC, "CIFS"},
                                                                                {CEPH_SUPER_MAGIC, "Ceph"},
                                                                                {AFS_SUPER_MAGIC, "AFS"},
                                                                                {0x0bd00bd0, "Lustre"}}};

std::string name_of(std::uint32_t type) {
    for (const auto& [magic, name] : kElsewhere)
        if (magic == type) return std::string(name);
    std::array<char, 8> digits{};
    const auto end = std::to_chars(digits.begin(), digits.end(), type, 16).ptr;
    return "a file system of type 0x" + std::string(digits.begin(), end);
}

/// CAP_FOWNER, bit 3 of the effective ones.  Shape: "CapEff:\t000001ffffffffff".
bool may_act_as_owner(const Root& proc) {
    constexpr std::string_view kName = "CapEff:";
    constexpr unsigned kFowner = 3;
    const auto status = proc.read("proc/self/status");
    if (!status) return false;
    for (auto line : lines_of(*status)) {
        if (!line.starts_with(kName)) continue;
        line = model::trim(line.substr(kName.size()));
        std::uint64_t bits = 0;
        std::from_chars(line.data(), line.data() + line.size(), bits, 16);
        return (bits >> kFowner & 1U) != 0;
    }
    return false;
}

/// To anybody but who owns or may write a file, mincore says that all of it is there.
bool is_told_the_truth(int file, const struct stat& facts, const Root& proc) {
    const auto link = "/proc/self/fd/" + std::to_string(file);
    return facts.st_uid == ::geteuid() || ::faccessat(AT_FDCWD, link.c_str(), W_OK, AT_EACCESS) == 0 ||
           may_act_as_owner(proc);
}

Result<Bytes> size_of(int file, const Root& proc) {
    struct stat facts{};
    struct statfs system{};
    if (::fstat(file, &facts) < 0) return fail(Errc::io, "cannot look at the file: " + errno_text(errno), errno);
    if (!S_ISREG(facts.st_mode)) return fail(Errc::invalid_request, "not a regular file: it has no page cache");
    if (const int flags = ::fcntl(file, F_GETFL); (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_WRONLY)
        return fail(Errc::invalid_request, "the file is not open for reading");
    if (::fstatfs(file, &system) < 0) return fail(Errc::io, "cannot look at the file: " + errno_text(errno), errno);
    const auto type = static_cast<std::uint32_t>(system.f_type);
    if (std::ranges::find(kLocal, type) == kLocal.end())
        return fail(Errc::unsupported,
                    "the file is on " + name_of(type) + "; only of local file systems is it known what is cached");
    if (!is_told_the_truth(file, facts, proc))
        return fail(Errc::denied, "the kernel says only to its owner what of the file is cached");
    return static_cast<Bytes>(facts.st_size);
}

// ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Unmap {
    std::size_t size;
    void operator()(unsigned char* start) const { ::munmap(start, size); }
};
using Mapped = std::unique_ptr<unsigned char, Unmap>;

/// Without read-ahead: touching a page that has gone since brings back that page and no more.
Result<Mapped> map(int file, Bytes offset, Bytes size) {
    auto* start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, static_cast<off_t>(offset));
    if (start == MAP_FAILED) return fail(Errc::io, "cannot map the file: " + errno_text(errno), errno);
    ::madvise(start, size, MADV_RANDOM);
    return Mapped(static_cast<unsigned char*>(start), Unmap{size});
}

/// A page that stands for the resident ones of its part.
struct Sample {
    void* page;
    std::uint64_t pages;
};

class Count {
public:
    Count(int file, Bytes size, std::uint64_t samples)
        : file_(file),
          pages_((size + page_ - 1) / page_),
          part_(std::max<std::uint64_t>(1, (pages_ + samples - 1) / samples)) {
        out_.size = size;
        out_.sampled = part_ > 1;
    }

    Result<Residency> run() {
        const auto window = kWindow / page_;
        for (std::uint64_t first = 0; first < pages_; first += window)
            if (auto counted = count(first, std::min(window, pages_ - first)); !counted)
                return std::unexpected(counted.error());
        return std::move(out_);
    }

private:
    Result<void> count(std::uint64_t first, std::uint64_t pages) {
        const auto mapped = map(file_, first * page_, pages * page_);
        if (!mapped) return std::unexpected(mapped.error());
        present_.resize(pages);
        if (::mincore(mapped->get(), pages * page_, present_.data()) < 0)
            return fail(Errc::io, "mincore: " + errno_text(errno), errno);
        samples_.clear();
        for (std::uint64_t begin = 0; begin < pages; begin += part_) {
            const auto end = std::min(begin + part_, pages);
            std::uint64_t resident = 0;
            for (auto i = begin; i < end; ++i) resident += present_[i] & 1U;
            if (resident == 0) continue;
            samples_.push_back({mapped->get() + pick(begin, resident) * page_, resident});
            out_.resident += resident * page_;
        }
        ask();
        return {};
    }

    /// One of the resident pages from `begin` on.
    std::uint64_t pick(std::uint64_t begin, std::uint64_t resident) {
        auto skip = std::uniform_int_distribution<std::uint64_t>(0, resident - 1)(random_);
        for (auto i = begin;; ++i)
            if ((present_[i] & 1U) != 0 && skip-- == 0) return i;
    }

    /// The samples' nodes, once they are mapped in. Where move_pages is not to be had, no node is told.
    void ask() {
        std::vector<void*> pages;
        for (const auto& sample : samples_) {
            (void)*static_cast<volatile unsigned char*>(sample.page);
            pages.push_back(sample.page);
        }
        std::vector<int> nodes(pages.size(), -1);
        if (pages.empty() || ::move_pages(0, pages.size(), pages.data(), nullptr, nodes.data(), 0) < 0) return;
        for (std::size_t i = 0; i < nodes.size(); ++i)
            if (nodes[i] >= 0) out_.nodes[static_cast<unsigned>(nodes[i])] += samples_[i].pages * page_;
    }

    Bytes page_ = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    int file_;
    std::uint64_t pages_;
    std::uint64_t part_;  ///< pages for which a sample stands
    std::vector<unsigned char> present_;
    std::vector<Sample> samples_;
    std::minstd_rand random_{std::random_device{}()};
    Residency out_;
};

// ── Who maps it ──────────────────────────────────────────────────────────────────────────────────────────────────

/// Device and inode in a line of /proc/PID/maps; empty for what is no such line.
/// Shape: "7f2c8-7f2d8 r--s 00000000 fe:01 1234567    /m.gguf".
std::string_view identity_in(std::string_view line) {
    constexpr int kBefore = 3;
    for (int i = 0; i < kBefore; ++i) {
        const auto blank = line.find(' ');
        if (blank == std::string_view::npos) return {};
        line.remove_prefix(blank + 1);
    }
    const auto device = line.find(' ');
    if (device == std::string_view::npos) return {};
    return line.substr(0, line.find(' ', device + 1));
}

/// The file as the kernel writes it there, which need not be what stat(2) says (btrfs, overlay).
std::string own_identity(int file, const Root& proc, std::size_t limit) {
    const auto mapped = map(file, 0, static_cast<Bytes>(::sysconf(_SC_PAGESIZE)));
    if (!mapped) return {};
    const auto address = reinterpret_cast<std::uintptr_t>(mapped->get());
    const auto maps = proc.read("proc/self/maps", limit);
    if (!maps) return {};
    for (const auto line : lines_of(*maps)) {
        std::uintptr_t start = 0;
        std::from_chars(line.data(), line.data() + line.size(), start, 16);
        if (start == address) return std::string(identity_in(line));
    }
    return {};
}

/// For people, the bus and terminals.
std::string command_of(const Root& proc, const std::string& pid) {
    auto name = proc.read("proc/" + pid + "/comm").value_or("?");
    while (name.ends_with('\n')) name.pop_back();
    for (auto& c : name)
        if (c < ' ' || c > '~') c = '?';
    return name;
}

std::vector<model::Mapper> mappers_of(int file, const Root& proc) {
    constexpr std::size_t kMostText = 16U << 20U;  // 65530 mappings, which is the kernel's own limit
    std::vector<model::Mapper> out;
    const auto wanted = own_identity(file, proc, kMostText);
    if (wanted.empty()) return out;
    for (const auto& name : proc.list("proc")) {
        const auto pid = model::parse_unsigned(name, "pid", INT32_MAX);
        if (!pid || static_cast<int>(*pid) == ::getpid()) continue;
        const auto maps = proc.read("proc/" + name + "/maps", kMostText);
        if (!maps) continue;
        const auto lines = lines_of(*maps);
        if (std::ranges::none_of(lines, [&](auto line) { return identity_in(line) == wanted; })) continue;
        out.push_back({static_cast<int>(*pid), command_of(proc, name)});
        if (out.size() == Residency::kMostMappers) break;
    }
    return out;
}

}  // namespace

Result<Residency> read_residency(int file, const Root& proc, std::uint64_t samples) {
    const auto size = size_of(file, proc);
    if (!size) return std::unexpected(size.error());
    auto out = Count(file, *size, samples).run();
    if (out && out->resident != 0) out->mapped_by = mappers_of(file, proc);
    return out;
}

}  // namespace numalease::host
