#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "bus/bus.hpp"
#include "bus/names.hpp"

namespace numalease::bus {
namespace {

using model::Dict;

int answer(sd_bus_message* message, void* /*userdata*/, sd_bus_error* error) {
    const auto request = read_dict(message);
    if (!request) return set_error(error, request.error());
    if (request->contains("refuse")) return set_error(error, {model::Errc::not_now, "c3 holds node 0", 0});
    sd_bus_message* raw = nullptr;
    if (const int made = sd_bus_message_new_method_return(message, &raw); made < 0) return made;
    const Message reply(raw);
    if (!append_dict(raw, *request)) return -EIO;
    return sd_bus_message_send(raw);
}

constexpr sd_bus_vtable kTable[] = {SD_BUS_VTABLE_START(0),
                                    SD_BUS_METHOD(kPlan, "a{sv}", "a{sv}", answer, SD_BUS_VTABLE_UNPRIVILEGED),
                                    SD_BUS_VTABLE_END};

/// A daemon's end of a peer-to-peer connection in a thread, until the client hangs up.
class Peer : public testing::Test {
protected:
    void SetUp() override {
        int ends[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        server_ = std::thread([fd = ends[1]] { serve(fd); });
        auto opened = open_fd(ends[0]);
        ASSERT_TRUE(opened);
        client_ = std::move(*opened);
    }
    void TearDown() override {
        client_.reset();
        server_.join();
    }

    static void serve(int fd) {
        sd_bus* raw = nullptr;
        sd_id128_t id{};
        sd_id128_randomize(&id);
        ASSERT_GE(sd_bus_new(&raw), 0);
        const Bus bus(raw);
        ASSERT_GE(sd_bus_set_fd(raw, fd, fd), 0);
        ASSERT_GE(sd_bus_set_server(raw, 1, id), 0);
        ASSERT_GE(sd_bus_add_object_vtable(raw, nullptr, kManagerPath, kManagerInterface, kTable, nullptr), 0);
        ASSERT_GE(sd_bus_start(raw), 0);
        while (true) {
            const int did = sd_bus_process(raw, nullptr);
            if (did < 0) return;
            if (did == 0 && sd_bus_wait(raw, UINT64_MAX) < 0) return;
        }
    }

    model::Result<Message> plan(const Dict& request) {
        return call(client_.get(), nullptr, kPlan, [&](sd_bus_message* m) { return append_dict(m, request); });
    }

    Bus client_;
    std::thread server_;
};

TEST_F(Peer, AnswersACallWithoutABroker) {
    const auto reply = plan({{"node", "0"}});
    ASSERT_TRUE(reply) << reply.error().detail;
    EXPECT_EQ(read_dict(reply->get()), (Dict{{"node", "0"}}));
}

TEST_F(Peer, ErrorsArriveWithTheirKindAndText) {
    const auto reply = plan({{"refuse", true}});
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error(), (model::Error{model::Errc::not_now, "c3 holds node 0", 0}));
}

TEST_F(Peer, AHostileDictionaryIsRefusedAndTheConnectionGoesOn) {
    Dict wide;
    for (std::size_t i = 0; i <= kMaxEntries; ++i) wide[std::to_string(i)] = true;
    const auto refused = plan(wide);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, model::Errc::invalid_request);
    EXPECT_TRUE(plan({}));
}

TEST_F(Peer, AnUnknownMethodIsIo) {
    const auto reply =
        call(client_.get(), nullptr, "NoSuchMethod", [](sd_bus_message*) { return model::Result<void>{}; });
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, model::Errc::io);
}

}  // namespace
}  // namespace numalease::bus
