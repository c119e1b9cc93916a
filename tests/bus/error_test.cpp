#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "bus/bus.hpp"
#include "bus/names.hpp"

namespace numalease::bus {
namespace {

using model::Errc;

Errc code_of(const char* name, int negative_errno = -EIO) {
    const sd_bus_error error = SD_BUS_ERROR_MAKE_CONST(name, "message");
    return from_bus(error, negative_errno).code;
}

class ErrorTable : public testing::TestWithParam<model::ErrcRow> {};

TEST_P(ErrorTable, CrossesTheBusUnchanged) {
    const model::Error sent{.code = GetParam().code, .detail = "node 7 does not exist; there are 0-3", .err = 0};
    BusError wire;
    EXPECT_LT(set_error(wire.get(), sent), 0);
    EXPECT_EQ(std::string((*wire).name), std::string(kErrorPrefix) + std::string(GetParam().bus_name));
    EXPECT_EQ(from_bus(*wire, -EIO), sent);
}

INSTANTIATE_TEST_SUITE_P(EveryErrc, ErrorTable, testing::ValuesIn(model::kErrcTable),
                         [](const auto& row) { return std::string(row.param.bus_name); });

TEST(ErrorTable, HasItsRowsInTheOrderOfTheEnumeration) {
    for (std::size_t i = 0; i < model::kErrcTable.size(); ++i)
        EXPECT_EQ(static_cast<std::size_t>(model::kErrcTable[i].code), i);
}

TEST(ForeignErrors, OfANameWithoutAnOwnerAreNoDaemon) {
    EXPECT_EQ(code_of(SD_BUS_ERROR_SERVICE_UNKNOWN), Errc::no_daemon);
    EXPECT_EQ(code_of(SD_BUS_ERROR_NAME_HAS_NO_OWNER), Errc::no_daemon);
    EXPECT_EQ(code_of(SD_BUS_ERROR_NO_REPLY), Errc::no_daemon);
    EXPECT_EQ(code_of("org.freedesktop.DBus.Error.Spawn.ChildExited"), Errc::no_daemon);
}

TEST(ForeignErrors, OfAccessAreDenied) { EXPECT_EQ(code_of(SD_BUS_ERROR_ACCESS_DENIED), Errc::denied); }

TEST(ForeignErrors, ThatAreUnknownAreIo) { EXPECT_EQ(code_of("com.example.Odd"), Errc::io); }

TEST(ForeignErrors, OfALaterVersionOfOursAreInternal) {
    EXPECT_EQ(code_of("org.numalease1.Error.FromTheFuture"), Errc::internal);
}

TEST(ForeignErrors, WithoutANameGoByErrno) {
    EXPECT_EQ(from_bus(SD_BUS_ERROR_NULL, -ECONNRESET).code, Errc::no_daemon);
    EXPECT_EQ(from_bus(SD_BUS_ERROR_NULL, -EACCES).code, Errc::denied);
    EXPECT_EQ(from_bus(SD_BUS_ERROR_NULL, -EIO).err, EIO);
    EXPECT_FALSE(from_bus(SD_BUS_ERROR_NULL, -EIO).detail.empty());
}

TEST(ForeignErrors, MadeFromAnErrnoGoByIt) {
    EXPECT_EQ(code_of("System.Error.ENOTCONN", -ENOTCONN), Errc::no_daemon);
    EXPECT_EQ(code_of("System.Error.EIO", -EIO), Errc::io);
}

TEST(OpenSocket, SaysWhereNobodyAnswers) {
    const auto bus = open_socket("/nonexistent/numa-lease/socket");
    ASSERT_FALSE(bus);
    EXPECT_EQ(bus.error().code, Errc::no_daemon);
    EXPECT_EQ(bus.error().err, ENOENT);
    EXPECT_THAT(bus.error().detail, testing::HasSubstr("/nonexistent/numa-lease/socket"));
}

TEST(OpenSocket, RefusesAPathThatDoesNotFit) {
    const auto bus = open_socket("/" + std::string(200, 'x'));
    ASSERT_FALSE(bus);
    EXPECT_EQ(bus.error().code, Errc::no_daemon);
}

TEST(OpenBus, SaysWhichBusDoesNotAnswer) {
    const auto bus = open_bus("unix:path=/nonexistent/bus");
    ASSERT_FALSE(bus);
    EXPECT_EQ(bus.error().code, Errc::no_daemon);
}

}  // namespace
}  // namespace numalease::bus
