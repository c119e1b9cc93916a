#include "service/options.hpp"

#include <getopt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "model/units.hpp"

#ifndef NUMALEASE_VERSION
#define NUMALEASE_VERSION "0.1.0"
#endif

namespace numalease::service {

namespace {

using model::Errc;
using model::fail;

enum Option : int {
    kRuntimeDir = 256,
    kStateDir,
    kRoot,
    kGpuRoot,
    kBus,
    kSocket,
    kConfig,
    kExitWhenIdle,
    kKeepLeases,
    kRestore,
    kCheck,
    kIfStopping,
    kReadOnly,
    kServeFd,
    kReadyFd,
    kResidency,
    kLogLevel,
    kHelp,
    kVersion,
};

constexpr std::array kOptions{option{"runtime-dir", required_argument, nullptr, kRuntimeDir},
                              option{"state-dir", required_argument, nullptr, kStateDir},
                              option{"root", required_argument, nullptr, kRoot},
                              option{"gpu-root", required_argument, nullptr, kGpuRoot},
                              option{"bus", required_argument, nullptr, kBus},
                              option{"socket", required_argument, nullptr, kSocket},
                              option{"config", required_argument, nullptr, kConfig},
                              option{"exit-when-idle", no_argument, nullptr, kExitWhenIdle},
                              option{"keep-leases", no_argument, nullptr, kKeepLeases},
                              option{"restore", no_argument, nullptr, kRestore},
                              option{"check", no_argument, nullptr, kCheck},
                              option{"if-stopping", required_argument, nullptr, kIfStopping},
                              option{"read-only", no_argument, nullptr, kReadOnly},
                              option{"serve-fd", required_argument, nullptr, kServeFd},
                              option{"ready-fd", required_argument, nullptr, kReadyFd},
                              option{"residency", no_argument, nullptr, kResidency},
                              option{"log-level", required_argument, nullptr, kLogLevel},
                              option{"help", no_argument, nullptr, kHelp},
                              option{"version", no_argument, nullptr, kVersion},
                              option{nullptr, 0, nullptr, 0}};

model::Result<int> parse_fd(std::string_view text, std::string_view name) {
    constexpr std::uint64_t kMaxFd = 1U << 20U;
    const auto fd = model::parse_unsigned(text, name, kMaxFd);
    if (!fd) return std::unexpected(fd.error());
    return static_cast<int>(*fd);
}

model::Result<void> apply(Options& out, int which, std::string_view value) {
    const auto fd_into = [&](int& target, std::string_view name) -> model::Result<void> {
        const auto fd = parse_fd(value, name);
        if (!fd) return std::unexpected(fd.error());
        target = *fd;
        return {};
    };
    switch (which) {
        case kRuntimeDir: out.runtime_directory = value; return {};
        case kStateDir: out.state_directory = value; return {};
        case kRoot: out.root = value; return {};
        case kGpuRoot: out.gpu_root = value; return {};
        case kBus:
            out.bus = value;
            out.bus_is_optional = false;
            return {};
        case kSocket: out.socket = value; return {};
        case kConfig: out.config = value; return {};
        case kExitWhenIdle: out.exit_when_idle = true; return {};
        case kKeepLeases: out.keep_leases = true; return {};
        case kRestore: out.restore = true; return {};
        case kCheck: out.check = true; return {};
        case kIfStopping: out.if_stopping = value; return {};
        case kReadOnly: out.read_only = true; return {};
        case kServeFd: return fd_into(out.serve_fd, "--serve-fd");
        case kReadyFd: return fd_into(out.ready_fd, "--ready-fd");
        case kResidency: out.residency = true; return {};
        case kLogLevel:
            if (log::parse_level(value, out.log_level)) return {};
            return fail(Errc::invalid_request,
                        "--log-level: '" + std::string(value) + "' is none of debug, info, warning, error");
        case kHelp: out.help = true; return {};
        case kVersion: out.version = true; return {};
        default: return fail(Errc::internal, "an option without a meaning");
    }
}

model::Result<void> check(const Options& options) {
    if (options.runtime_directory.empty()) return fail(Errc::invalid_request, "--runtime-dir: an empty path");
    if (options.bus.empty()) return fail(Errc::invalid_request, "--bus: system, session, none or an address");
    if (options.serve_fd >= 0 && !options.read_only)
        return fail(Errc::invalid_request, "--serve-fd: only with --read-only");
    if (!options.if_stopping.empty() && !options.restore)
        return fail(Errc::invalid_request, "--if-stopping: only with --restore");
    if (options.keep_leases && (options.restore || options.read_only || options.exit_when_idle))
        return fail(Errc::invalid_request, "--keep-leases: not with --restore, --read-only or --exit-when-idle");
    if (options.restore && options.read_only)
        return fail(Errc::invalid_request, "--restore and --read-only: say one of the two");
    return {};
}

}  // namespace

model::Result<Options> parse_options(int argc, char** argv) {
    Options out;
    opterr = 0;
    optind = 0;  // glibc: start over, also where tests parse twice
    while (true) {
        const int at = optind == 0 ? 1 : optind;
        const int which = getopt_long(argc, argv, ":", kOptions.data(), nullptr);
        if (which == -1) break;
        const std::string typed = at < argc ? argv[at] : "";
        if (which == ':') return fail(Errc::invalid_request, "'" + typed + "' needs a value; see --help");
        if (which == '?') return fail(Errc::invalid_request, "unknown option '" + typed + "'; see --help");
        if (auto applied = apply(out, which, optarg != nullptr ? optarg : ""); !applied)
            return std::unexpected(applied.error());
    }
    if (optind < argc)
        return fail(Errc::invalid_request, "unexpected argument '" + std::string(argv[optind]) + "'; see --help");
    if (out.gpu_root.empty()) out.gpu_root = out.root;
    if (out.socket.empty()) out.socket = out.runtime_directory + "/socket";
    if (auto checked = check(out); !checked) return std::unexpected(checked.error());
    return out;
}

std::string state_directory_of(const Options& options) {
    const bool typed = !options.state_directory.empty();
    if (!typed && options.runtime_directory != Options().runtime_directory) return options.runtime_directory;
    const auto directory = typed ? options.state_directory : std::string("/var/lib/numa-lease");
    if (!options.read_only) (void)mkdir(directory.c_str(), 0755);
    const bool usable = access(directory.c_str(), options.read_only ? R_OK : W_OK) == 0;
    return typed || usable ? directory : options.runtime_directory;
}

std::string version() { return NUMALEASE_VERSION; }

std::string version_text() { return "numa-leased " + version() + "\n"; }

std::string usage() {
    return "numa-leased [OPTION…]: leases CPUs, NUMA memory and kernel state to\n"
           "inference jobs, and puts them back\n"
           "\n"
           "  --runtime-dir DIR   journal, lock and socket (/run/numa-lease)\n"
           "  --state-dir DIR     history of leases (/var/lib/numa-lease; where that cannot\n"
           "                      be, or another runtime directory is said, there)\n"
           "  --root DIR          kernel files are looked up below DIR (/)\n"
           "  --gpu-root DIR      what GPUs' drivers say of their UUIDs is looked up below\n"
           "                      DIR (that of --root)\n"
           "  --bus WHERE         system, session, none, or a D-Bus address (system, where\n"
           "                      there is one)\n"
           "  --socket PATH       peer-to-peer socket (DIR/socket)\n"
           "  --config FILE       site configuration (/etc/numa-lease/numa-lease.yaml)\n"
           "  --check             say what is wrong with the site configuration, then exit: 0\n"
           "                      when nothing is\n"
           "  --exit-when-idle    leave once nothing is leased, nothing is to be put back\n"
           "                      and nobody asks\n"
           "  --keep-leases       SIGTERM leaves every lease to the next daemon, as a service\n"
           "                      that is restarted wants it\n"
           "  --restore           put back whatever a dead daemon left, then exit: 0 when\n"
           "                      all of it is back\n"
           "  --if-stopping UNIT  with --restore: do nothing unless systemd is stopping UNIT\n"
           "                      for good: neither restarting it nor starting it again\n"
           "  --read-only         answer questions only; needs no privilege\n"
           "  --serve-fd N        with --read-only: serve the connected socket N and exit\n"
           "                      when it closes\n"
           "  --ready-fd N        write a line to N once requests are answered\n"
           "  --log-level LEVEL   debug, info, warning or error (info)\n"
           "  --version, --help\n"
           "\n"
           "Example: numa-leased --bus none --exit-when-idle\n";
}

}  // namespace numalease::service
