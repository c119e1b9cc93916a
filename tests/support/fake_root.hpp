#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "host/root.hpp"

namespace numalease::test {

/// Where tests put files: in memory, as /run is, where there is such a place. On a disk every fsync is waited for.
inline std::filesystem::path temp_place() {
    return ::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
}

/// A directory that goes away with its owner.
class TempDir {
public:
    TempDir() {
        std::string name = (temp_place() / "numalease-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
        path_ = name;
    }
    TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    ~TempDir() {
        if (path_.empty()) return;
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::string text() const { return path_.string(); }

private:
    std::filesystem::path path_;
};

/// A tree of plain files that stands for "/": `FakeRoot{{"proc/sys/kernel/numa_balancing", "1\n"}}`.
/// Plain files keep what is written to them; the kernel's pools of huge pages do not behave like that.
class FakeRoot {
public:
    using File = std::pair<std::string_view, std::string_view>;

    FakeRoot(std::initializer_list<File> files = {}) {
        for (const auto& [path, text] : files) set(path, text);
    }

    void set(std::string_view path, std::string_view text) const {
        const auto file = directory_.path() / path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
    }

    void link(std::string_view path, std::string_view target) const {
        const auto file = directory_.path() / path;
        std::filesystem::create_directories(file.parent_path());
        std::filesystem::create_symlink(target, file);
    }

    void remove(std::string_view path) const { std::filesystem::remove_all(directory_.path() / path); }

    /// A pool of huge pages of one node, and the machine's own files of that size.
    void set_pool(unsigned node, unsigned kib, unsigned pages, unsigned free) const {
        const auto size = "hugepages-" + std::to_string(kib) + "kB/";
        const auto here = "sys/devices/system/node/node" + std::to_string(node) + "/hugepages/" + size;
        set(here + "nr_hugepages", std::to_string(pages) + "\n");
        set(here + "free_hugepages", std::to_string(free) + "\n");
        set(here + "surplus_hugepages", "0\n");
        const auto everywhere = "sys/kernel/mm/hugepages/" + size;
        set(everywhere + "free_hugepages", std::to_string(free) + "\n");
        set(everywhere + "resv_hugepages", "0\n");
    }

    [[nodiscard]] std::string get(std::string_view path) const {
        std::ostringstream text;
        text << std::ifstream(directory_.path() / path, std::ios::binary).rdbuf();
        return text.str();
    }

    [[nodiscard]] std::filesystem::path path(std::string_view below = {}) const { return directory_.path() / below; }
    [[nodiscard]] std::string directory() const { return directory_.text(); }

    /// Opened anew at each call: cheap, and tests need no lifetime to think about.
    [[nodiscard]] host::Root root() const {
        auto root = host::Root::open(directory());
        if (!root) throw std::runtime_error(root.error().detail);
        return std::move(*root);
    }

private:
    TempDir directory_;
};

}  // namespace numalease::test
