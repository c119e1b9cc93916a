#include "client/words.hpp"

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <algorithm>

#include "model/request.hpp"

namespace numalease::client {

namespace {

bool is_wait_value(const std::string& word) {
    return word == "forever" || word == "no" || model::parse_duration(word).has_value();
}

bool is_require_value(const std::string& word) {
    const auto first = word.substr(0, word.find(','));
    return word == "all" ||
           std::ranges::any_of(model::request_fields(), [&](const auto& field) { return field.name == first; });
}

bool takes_value(const CLI::App& app, const std::string& word) {
    if (word.find('=') != std::string::npos) return false;
    const auto* option = app.get_option_no_throw(word);
    return option != nullptr && option->get_items_expected_max() > 0;
}

}  // namespace

Words split_words(const CLI::App& app, const Argv& words, std::size_t positionals) {
    Words out;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const auto& word = words[i];
        const auto rest = words.begin() + static_cast<std::ptrdiff_t>(i);
        const std::string next = i + 1 < words.size() ? words[i + 1] : "";
        if (word == "--") {
            out.command.assign(rest + 1, words.end());
            return out;
        }
        if (word == "--wait" || word == "--require") {
            const bool wait = word == "--wait";
            const bool given = wait ? is_wait_value(next) : is_require_value(next);
            out.ours.push_back(word + '=' + (given ? next : wait ? "forever" : "all"));
            if (given) ++i;
        } else if (word.size() > 1 && word.front() == '-') {
            out.ours.push_back(word);
            if (!takes_value(app, word) || i + 1 == words.size()) continue;
            // Joined, so that a value that begins with '-' stays a value.
            if (word.starts_with("--")) {
                out.ours.back() += '=' + next;
            } else {
                out.ours.push_back(next);
            }
            ++i;
        } else if (positionals > 0) {
            --positionals;
            out.ours.push_back(word);
        } else {
            out.command.assign(rest, words.end());
            return out;
        }
    }
    return out;
}

}  // namespace numalease::client
