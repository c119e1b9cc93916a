#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "policies/loader.hpp"
#include "policies/yaml.hpp"

namespace numalease::policies {

namespace fs = std::filesystem;
using model::Errc;
using model::fail;
using model::Result;

namespace {

constexpr std::size_t kMaxFiles = 256;  // per directory

struct Fd {
    int fd;
    ~Fd() {
        if (fd >= 0) ::close(fd);
    }
};

/// Reads a regular file of at most kMaxFileBytes. A link, pipe or device is refused without being waited for: these
/// files may be read as root from a directory that others write. Without O_NOFOLLOW in `flags` a link is followed.
Result<std::string> read_file(const std::string& path, int flags = O_NOFOLLOW) {
    const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags)};
    struct stat facts{};
    if (file.fd < 0 && errno == ELOOP)
        return fail(Errc::unreadable, path + ": a symbolic link; only regular files are read", errno);
    if (file.fd < 0 || ::fstat(file.fd, &facts) != 0)
        return fail(Errc::unreadable, path + ": cannot be read: " + std::strerror(errno), errno);
    if (!S_ISREG(facts.st_mode)) return fail(Errc::unreadable, path + ": not a regular file");
    std::string text(kMaxFileBytes + 1, '\0');
    std::size_t size = 0;
    while (size < text.size()) {
        const auto got = ::read(file.fd, text.data() + size, text.size() - size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(Errc::unreadable, path + ": cannot be read: " + std::strerror(errno), errno);
        if (got == 0) break;
        size += static_cast<std::size_t>(got);
    }
    text.resize(size);
    return text;
}

/// The *.yaml of one directory, sorted. No directory: none, and no problem.
std::vector<std::string> yaml_files(const std::string& directory, std::vector<model::Error>& problems) {
    std::vector<std::string> files;
    std::error_code error;
    fs::directory_iterator entry(directory, error);
    for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
        const auto name = entry->path().filename().string();
        if (!name.ends_with(".yaml") || name.starts_with('.')) continue;
        if (files.size() == kMaxFiles) {
            problems.push_back({Errc::unreadable,
                                directory + ": more than " + std::to_string(kMaxFiles) + " files; the rest is left out",
                                0});
            break;
        }
        files.push_back(entry->path().string());
    }
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
        problems.push_back({Errc::unreadable, directory + ": cannot be read: " + error.message(), error.value()});
    std::ranges::sort(files);
    return files;
}

template <class Value>
void load_into(std::map<std::string, Value>& values, const std::string& directory,
               Result<Value> (*parse)(const std::string&, const std::string&), std::vector<model::Error>& problems) {
    for (const auto& file : yaml_files(directory, problems)) {
        const auto text = read_file(file);
        auto value = text ? parse(*text, file) : Result<Value>(std::unexpected(text.error()));
        if (value)
            values[value->name] = std::move(*value);
        else
            problems.push_back(value.error());
    }
}

/// Beside the running binary first, so that a build tree and a relocated installation use their own files.
std::string shipped_directory() {
    std::error_code error;
    const auto binary = fs::read_symlink("/proc/self/exe", error);
    // bin/ and libexec/ lie one below the prefix, libexec/numa-lease/ two.
    for (const auto* up : {"..", "../.."}) {
        const auto directory = (binary.parent_path() / up / "share/numa-lease/policies").lexically_normal();
        if (!error && fs::is_directory(directory, error)) return directory.string();
    }
    return NUMALEASE_POLICY_DIR;
}

}  // namespace

Library load(const std::vector<std::string>& directories) {
    Library library;
    for (const auto& directory : directories) {
        load_into(library.policies, directory, parse_policy, library.problems);
        load_into(library.engines, directory + "/engines", parse_engine, library.problems);
    }
    return library;
}

Result<SiteConfig> load_site_config(const std::string& file) {
    const auto text = read_file(file, 0);
    if (!text) return std::unexpected(text.error());
    return parse_site_config(*text, file);
}

Result<LeaseFile> load_lease(const std::string& directory, const std::string& name) {
    const auto file = directory + '/' + name + ".yaml";
    const auto text = read_file(file);
    if (!text) return std::unexpected(text.error());
    return parse_lease(*text, file);
}

std::vector<std::string> search_path(const std::string& home) {
    std::vector<std::string> path{shipped_directory(), "/etc/numa-lease/policies"};
    if (!home.empty()) path.push_back(home + "/.config/numa-lease/policies");
    return path;
}

}  // namespace numalease::policies
