#include "service/runtime_directory.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace numalease::service {
namespace {

class RuntimeDirectory : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_NE(mkdtemp(path_.data()), nullptr);
        ASSERT_EQ(chmod(path_.c_str(), 0755), 0);
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

    std::string path_ = testing::TempDir() + "numalease-XXXXXX";
};

TEST_F(RuntimeDirectory, OfOurOwnOrMissingIsFine) {
    EXPECT_TRUE(check_runtime_directory(path_));
    EXPECT_TRUE(check_runtime_directory(path_ + "/missing"));
}

TEST_F(RuntimeDirectory, ThatOthersMayWriteIsRefused) {
    for (const mode_t mode : {0775U, 0757U, 01777U}) {
        ASSERT_EQ(chmod(path_.c_str(), mode), 0);
        const auto checked = check_runtime_directory(path_);
        ASSERT_FALSE(checked) << std::oct << mode;
        EXPECT_EQ(checked.error().code, model::Errc::denied);
        EXPECT_NE(checked.error().detail.find(path_), std::string::npos);
    }
}

TEST_F(RuntimeDirectory, OfSomebodyElseIsRefusedAlsoBehindALinkOfTheirs) {
    if (geteuid() != 0) GTEST_SKIP() << "giving a directory away needs root";
    const auto link = path_ + "/link";
    std::filesystem::create_directory_symlink("/", link);
    EXPECT_TRUE(check_runtime_directory(link));
    ASSERT_EQ(lchown(link.c_str(), 65534, 65534), 0);
    EXPECT_FALSE(check_runtime_directory(link));
    ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
    const auto checked = check_runtime_directory(path_);
    ASSERT_FALSE(checked);
    EXPECT_NE(checked.error().detail.find("uid 65534"), std::string::npos);
}

TEST_F(RuntimeDirectory, ThatIsAFileIsRefused) { EXPECT_FALSE(check_runtime_directory("/dev/null")); }

}  // namespace
}  // namespace numalease::service
