#include "service/denials.hpp"

#include "service/log.hpp"

namespace numalease::service {

namespace {

constexpr std::uint64_t kQuietUsec = 1'000'000;

}  // namespace

void Denials::say(unsigned uid, std::string text, std::string reason) {
    const auto [found, is_first] = quiet_.try_emplace(uid);
    auto& unsaid = found->second;
    if (!is_first) {
        unsaid = {.count = unsaid.count + 1, .text = std::move(text), .reason = std::move(reason)};
        return;
    }
    log::event(log::Level::info, log::kDenied, text, {{"UID", std::to_string(uid)}, {"REASON", std::move(reason)}});
    later_.after(kQuietUsec, [this, uid] { lift(uid); });
}

void Denials::lift(unsigned uid) {
    const auto node = quiet_.extract(uid);
    if (!node || node.mapped().count == 0) return;
    const auto& unsaid = node.mapped();
    quiet_.try_emplace(uid);
    log::event(log::Level::info, log::kDenied, unsaid.text,
               {{"UID", std::to_string(uid)}, {"COUNT", std::to_string(unsaid.count)}, {"REASON", unsaid.reason}});
    later_.after(kQuietUsec, [this, uid] { lift(uid); });
}

}  // namespace numalease::service
