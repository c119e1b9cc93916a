#include "host/history.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "support/fake_root.hpp"

namespace numalease::host {
namespace {

using test::TempDir;

model::Record record(const std::string& id) {
    return {.type = "lease", .key = id, .body = {{"id", id}, {"reason", "a long\nstory"}}};
}

std::vector<std::string> ids(const TempDir& directory) {
    std::vector<std::string> out;
    for (const auto& line : read_history(directory.text()))
        if (const auto found = parse_history_line(line)) out.push_back(found->key);
    return out;
}

std::size_t size_of(const TempDir& directory, const char* name) {
    struct stat facts{};
    return stat((directory.text() + '/' + name).c_str(), &facts) == 0 ? static_cast<std::size_t>(facts.st_size) : 0;
}

TEST(History, IsReadBackOldestFirst) {
    const TempDir directory;
    EXPECT_TRUE(read_history(directory.text()).empty());
    for (const auto* id : {"c1", "c2", "c3"}) ASSERT_TRUE(append_history(directory.text(), history_line(record(id))));
    EXPECT_EQ(ids(directory), (std::vector<std::string>{"c1", "c2", "c3"}));
    const auto lines = read_history(directory.text());
    EXPECT_EQ(get_text(parse_history_line(lines.front())->body, "reason"), "a long\nstory");
}

TEST(History, LosesOnlyALineThatIsTorn) {
    for (std::size_t cut = 0; cut < history_line(record("c2")).size(); ++cut) {
        const TempDir directory;
        ASSERT_TRUE(append_history(directory.text(), history_line(record("c1"))));
        std::ofstream(directory.text() + "/history", std::ios::app) << history_line(record("c2")).substr(0, cut);
        ASSERT_TRUE(append_history(directory.text(), history_line(record("c3"))));
        EXPECT_EQ(ids(directory), (std::vector<std::string>{"c1", "c3"})) << "cut at byte " << cut;
    }
}

TEST(History, PassesOverWhatSomebodyElseWrote) {
    const TempDir directory;
    std::ofstream(directory.text() + "/history") << "hello\n\n" << std::string(kHistoryLineBytes + 1, 'x') << "\nlast";
    ASSERT_TRUE(append_history(directory.text(), history_line(record("c1"))));
    EXPECT_EQ(ids(directory), std::vector<std::string>{"c1"});
}

TEST(History, KeepsOneOldFileAndNoMore) {
    const TempDir directory;
    constexpr std::size_t kMost = 1000;
    constexpr int kCount = 200;
    for (int i = 0; i < kCount; ++i)
        ASSERT_TRUE(append_history(directory.text(), history_line(record("c" + std::to_string(i))), kMost));
    const auto line = history_line(record("c199")).size() + 1;
    EXPECT_LT(size_of(directory, "history"), kMost + line);
    EXPECT_GE(size_of(directory, "history.old"), kMost);
    EXPECT_LT(size_of(directory, "history.old"), kMost + line);
    const auto left = ids(directory);
    ASSERT_GT(left.size(), kMost / line);
    for (std::size_t i = 0; i < left.size(); ++i)
        EXPECT_EQ(left[i], "c" + std::to_string(static_cast<std::size_t>(kCount) - left.size() + i));
}

TEST(History, NeverReadsMoreLinesThanItsBound) {
    const TempDir directory;
    std::ofstream file(directory.text() + "/history");
    for (std::size_t i = 0; i < kHistoryLines + 5; ++i) file << i << '\n';
    file.close();
    const auto lines = read_history(directory.text());
    ASSERT_EQ(lines.size(), kHistoryLines);
    EXPECT_EQ(lines.front(), "5");
}

TEST(History, SaysWhyItCannotBeWritten) {
    const TempDir directory;
    const auto missing = append_history(directory.text() + "/none", "x");
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().err, ENOENT);
    // Whatever lies there under the name is not followed, nor waited for.
    ASSERT_EQ(symlink("/dev/null", (directory.text() + "/history").c_str()), 0);
    EXPECT_FALSE(append_history(directory.text(), "x"));
    ASSERT_EQ(unlink((directory.text() + "/history").c_str()), 0);
    ASSERT_EQ(mkfifo((directory.text() + "/history").c_str(), 0600), 0);
    EXPECT_FALSE(append_history(directory.text(), "x"));
    EXPECT_TRUE(read_history(directory.text()).empty());
}

}  // namespace
}  // namespace numalease::host
