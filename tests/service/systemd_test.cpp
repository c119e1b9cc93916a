#include "service/systemd.hpp"

#include <gtest/gtest.h>

namespace numalease::service::systemd {
namespace {

/// What the daemon makes of an error that came over the bus.
model::Error error_of(const char* name, const char* text) {
    const sd_bus_error error = SD_BUS_ERROR_MAKE_CONST(name, text);
    return bus::from_bus(error, -sd_bus_error_get_errno(&error));
}

TEST(NotLoaded, IsToldByTheNameOfTheErrorAndNotByItsText) {
    EXPECT_TRUE(is_not_loaded(error_of("org.freedesktop.systemd1.NoSuchUnit", "Unit x.service ist nicht geladen.")));
    EXPECT_FALSE(is_not_loaded(error_of("org.freedesktop.systemd1.LoadFailed", "Unit x.service not loaded.")));
    EXPECT_FALSE(is_not_loaded(error_of(SD_BUS_ERROR_FILE_NOT_FOUND, "Directory not found")));
    EXPECT_FALSE(is_not_loaded(error_of(SD_BUS_ERROR_NAME_HAS_NO_OWNER, "Name not found")));
}

}  // namespace
}  // namespace numalease::service::systemd
