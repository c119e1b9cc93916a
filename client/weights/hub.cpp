#include "weights/hub.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace numalease::weights {

namespace fs = std::filesystem;

namespace {

bool is_plain(std::string_view word) {
    return !word.empty() && word.front() != '.' && std::ranges::all_of(word, [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
}

fs::path cache_of(const std::map<std::string, std::string>& env) {
    const auto given = [&env](const char* name) {
        const auto found = env.find(name);
        return found == env.end() ? fs::path() : fs::path(found->second);
    };
    if (const auto cache = given("HF_HUB_CACHE"); !cache.empty()) return cache;
    if (const auto home = given("HF_HOME"); !home.empty()) return home / "hub";
    if (const auto cache = given("XDG_CACHE_HOME"); !cache.empty()) return cache / "huggingface/hub";
    return given("HOME") / ".cache/huggingface/hub";
}

}  // namespace

std::optional<std::string> downloaded(const std::string& name, const std::map<std::string, std::string>& env) {
    const auto slash = name.find('/');
    if (slash == std::string::npos) return std::nullopt;
    const auto owner = name.substr(0, slash);
    const auto model = name.substr(slash + 1);
    if (!is_plain(owner) || !is_plain(model)) return std::nullopt;
    const auto folder = cache_of(env) / ("models--" + owner + "--" + model);
    std::string revision(64, '\0');  // a commit's name has 40
    std::ifstream main(folder / "refs/main");
    main.read(revision.data(), static_cast<std::streamsize>(revision.size()));
    revision.resize(static_cast<std::size_t>(main.gcount()));
    while (revision.ends_with('\n')) revision.pop_back();
    std::error_code error;
    const auto snapshot = folder / "snapshots" / revision;
    if (!is_plain(revision) || !fs::is_directory(snapshot, error)) return std::nullopt;
    return snapshot.string();
}

}  // namespace numalease::weights
