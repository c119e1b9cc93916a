#include "service/event.hpp"

#include <ctime>

namespace numalease::service {

Later::Item& Later::add() {
    auto item = std::make_unique<Item>();
    item->owner = this;
    item->id = next_++;
    return *items_.emplace(item->id, std::move(item)).first->second;
}

std::unique_ptr<Later::Item> Later::take(std::uint64_t id) {
    auto node = items_.extract(id);
    return node ? std::move(node.mapped()) : nullptr;
}

void Later::call(sd_bus* bus, bus::Message call, std::uint64_t timeout_usec, Reply done) {
    Item& item = add();
    item.reply = std::move(done);
    sd_bus_slot* slot = nullptr;
    const int sent = sd_bus_call_async(bus, &slot, call.get(), on_reply, &item, timeout_usec);
    if (sent >= 0) {
        item.slot.reset(slot);
        return;
    }
    // The answer comes from the loop in this case too: no caller is called back before it has returned.
    item.done = [reply = item.reply, sent] { reply(model::fail(model::Errc::no_daemon, "the bus is gone", -sent)); };
    sd_event_source* source = nullptr;
    sd_event_add_time_relative(event_, &source, CLOCK_MONOTONIC, 0, 1, on_time, &item);
    item.source.reset(source);
}

void Later::after(std::uint64_t delay_usec, std::function<void()> done) {
    Item& item = add();
    item.done = std::move(done);
    sd_event_source* source = nullptr;
    constexpr std::uint64_t kAccuracy = 1000;
    sd_event_add_time_relative(event_, &source, CLOCK_MONOTONIC, delay_usec, kAccuracy, on_time, &item);
    item.source.reset(source);
}

int Later::on_reply(sd_bus_message* message, void* data, sd_bus_error* /*error*/) {
    auto* found = static_cast<Item*>(data);
    const auto item = found->owner->take(found->id);
    if (!item) return 0;
    const sd_bus_error* error = sd_bus_message_get_error(message);
    if (error != nullptr)
        item->reply(std::unexpected(bus::from_bus(*error, -sd_bus_message_get_errno(message))));
    else
        item->reply(message);
    return 0;
}

int Later::on_time(sd_event_source* /*source*/, std::uint64_t /*usec*/, void* data) {
    auto* found = static_cast<Item*>(data);
    const auto item = found->owner->take(found->id);
    if (item && item->done) item->done();
    return 0;
}

}  // namespace numalease::service
