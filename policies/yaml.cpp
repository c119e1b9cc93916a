#include "policies/yaml.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

namespace numalease::policies {

namespace {

Position position_of(const YAML::Mark& mark) {
    return mark.is_null() ? Position{} : Position{mark.line + 1, mark.column + 1};
}

/// Leaves the parser from inside one of its events; never leaves this file.
struct Refused {
    Position at;
    std::string what;
};

/// Length of the valid UTF-8 sequence at the front of `text`; 0 where there is none.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const auto first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i)
        if ((byte(i) & 0xC0) != 0x80) return 0;
    const auto second = byte(1);
    const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    const bool beyond = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
    return overlong || beyond ? 0 : length;
}

/// Text goes to terminals, D-Bus and JSON, none of which takes control characters or broken UTF-8.
void check_text(std::string_view text, Position at) {
    while (!text.empty()) {
        const auto c = static_cast<unsigned char>(text.front());
        if ((c < 0x20 && c != '\n') || c == 0x7F) throw Refused{at, "control characters are not allowed"};
        const auto length = utf8_length(text);
        if (length == 0) throw Refused{at, "not valid UTF-8"};
        text.remove_prefix(length);
    }
}

/// Builds the items and stops the parser at the first event that breaks a limit, so that neither its recursion nor
/// our memory grows beyond them.
class Builder : public YAML::EventHandler {
public:
    [[nodiscard]] Item take() { return std::move(root_); }

    void OnDocumentStart(const YAML::Mark&) override {}
    void OnDocumentEnd() override {}

    void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(Item::Kind::null, mark, "", anchor); }

    void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
        throw Refused{position_of(mark), "aliases (*name) are not allowed"};
    }

    void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  const std::string& value) override {
        check_text(value, position_of(mark));
        if (!open_.empty() && open_.back()->kind == Item::Kind::map && !keys_.back().pending) {
            refuse_decoration(mark, tag, anchor);
            return key(mark, value);
        }
        add(Item::Kind::text, mark, tag, anchor).text = value;
    }

    void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                         YAML::EmitterStyle::value) override {
        push(add(Item::Kind::list, mark, tag, anchor));
    }
    void OnSequenceEnd() override { pop(); }

    void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                    YAML::EmitterStyle::value) override {
        push(add(Item::Kind::map, mark, tag, anchor));
    }
    void OnMapEnd() override { pop(); }

private:
    struct Keys {
        std::set<std::string, std::less<>> seen;
        bool pending = false;  // a key was read and its value is next
        std::string key;
        Position at;
    };

    static void refuse_decoration(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
        if (anchor != YAML::NullAnchor) throw Refused{position_of(mark), "anchors (&name) are not allowed"};
        // "?" and "!" are how the parser marks plain and quoted text that has no tag.
        if (!tag.empty() && tag != "?" && tag != "!") throw Refused{position_of(mark), "tags (!name) are not allowed"};
    }

    void count(const YAML::Mark& mark) {
        if (++nodes_ > kMaxNodes)
            throw Refused{position_of(mark), "more than " + std::to_string(kMaxNodes) + " values in one file"};
    }

    void key(const YAML::Mark& mark, const std::string& value) {
        count(mark);
        auto& keys = keys_.back();
        if (!keys.seen.insert(value).second) throw Refused{position_of(mark), "the key '" + value + "' is there twice"};
        keys.pending = true;
        keys.key = value;
        keys.at = position_of(mark);
    }

    Item& add(Item::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
        refuse_decoration(mark, tag, anchor);
        count(mark);
        Item item;
        item.kind = kind;
        item.at = position_of(mark);
        if (open_.empty()) return root_ = std::move(item);
        if (open_.back()->kind == Item::Kind::map) {
            auto& keys = keys_.back();
            if (!keys.pending) throw Refused{position_of(mark), "a key must be text"};
            item.key = std::exchange(keys.key, {});
            item.key_at = keys.at;
            // The parser marks nothing where it ends: at the next line.
            if (kind == Item::Kind::null) item.at = keys.at;
            keys.pending = false;
        }
        return open_.back()->items.emplace_back(std::move(item));
    }

    void push(Item& item) {
        if (open_.size() >= kMaxDepth)
            throw Refused{item.at, "nested deeper than " + std::to_string(kMaxDepth) + " levels"};
        open_.push_back(&item);
        keys_.emplace_back();
    }

    void pop() {
        open_.pop_back();
        keys_.pop_back();
    }

    Item root_;
    // Only the last of these grows, so the pointers stay good.
    std::vector<Item*> open_;
    std::vector<Keys> keys_;
    std::size_t nodes_ = 0;
};

/// Refuses every document: there is one too many.
class NoMore : public Builder {
public:
    void OnDocumentStart(const YAML::Mark& mark) override {
        throw Refused{position_of(mark), "a second document; a file holds one"};
    }
};

/// What the parser would take without a word: a tab that looks like indentation, and bytes that no text file has.
void check_raw(std::string_view text) {
    Position at;
    bool indentation = true;
    for (const char c : text) {
        if (c == '\t' && indentation) throw Refused{at, "a tab in the indentation; use spaces"};
        const auto byte = static_cast<unsigned char>(c);
        if ((byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7F)
            throw Refused{at, "control characters are not allowed"};
        indentation = c == '\n' || (indentation && c == ' ');
        if (c == '\n')
            at = {at.line + 1, 1};
        else
            ++at.column;
    }
}

}  // namespace

std::unexpected<model::Error> fail_at(std::string_view file, Position at, const std::string& what) {
    return model::fail(model::Errc::unreadable, std::string(file) + ':' + std::to_string(at.line) + ':' +
                                                    std::to_string(at.column) + ": " + what);
}

bool says_nothing(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        if (const auto first = line.find_first_not_of(" \t\r"); first != std::string::npos && line[first] != '#')
            return false;
    return true;
}

model::Result<Item> read_yaml(const std::string& text, std::string_view file) {
    if (text.size() > kMaxFileBytes) return fail_at(file, {}, "larger than 1 MiB");
    try {
        check_raw(text);
        std::istringstream stream(text);
        YAML::Parser parser(stream);
        Builder builder;
        if (!parser.HandleNextDocument(builder)) return fail_at(file, {}, "the file is empty");
        NoMore no_more;
        parser.HandleNextDocument(no_more);
        return builder.take();
    } catch (const Refused& refused) {
        return fail_at(file, refused.at, refused.what);
    } catch (const YAML::Exception& error) {
        return fail_at(file, position_of(error.mark), "not valid YAML: " + error.msg);
    } catch (const std::exception& error) {
        return fail_at(file, {}, std::string("not valid YAML: ") + error.what());
    }
}

}  // namespace numalease::policies
