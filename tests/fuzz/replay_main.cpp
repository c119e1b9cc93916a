#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

int replay(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(stream), {});
    std::printf("%s (%zu bytes)\n", file.c_str(), bytes.size());
    std::fflush(stdout);  // the last line names the file that a crash came from
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    return 1;
}

}  // namespace

/// Runs a fuzz target once over each file given, and over the files of each folder given: without libFuzzer, as a test.
int main(int argc, char** argv) {
    int files = 0;
    for (int i = 1; i < argc; ++i) {
        if (!fs::is_directory(argv[i])) {
            files += replay(argv[i]);
            continue;
        }
        for (const auto& entry : fs::directory_iterator(argv[i])) files += replay(entry.path());
    }
    std::printf("%d inputs\n", files);
    return files > 0 ? 0 : 1;  // an empty corpus would pass without testing anything
}
