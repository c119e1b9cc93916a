#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "weights/need.hpp"

/// Any bytes as a model: sizes, or one line that names the file, never a crash.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace numalease::weights;
    const int fd = memfd_create("model", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
    const auto file = "/proc/self/fd/" + std::to_string(fd);
    const auto model = read_model(file);
    if (!model && model.error().detail.find(file) == std::string::npos) std::abort();
    if (model)
        if (const auto layers = read_layers(model->header, file)) (void)need_of(*model, *layers, {.gpu_layers = 3});
    close(fd);
    return 0;
}
