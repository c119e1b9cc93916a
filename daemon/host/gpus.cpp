#include "host/gpus.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "host/lines.hpp"
#include "model/units.hpp"

namespace numalease::host {

namespace {

constexpr const char* kNvidia = "proc/driver/nvidia/gpus";
constexpr const char* kAmd = "sys/class/kfd/kfd/topology/nodes";

/// It ends up in the environment of commands.
bool is_uuid(std::string_view text) {
    constexpr std::size_t kLongest = 64;
    return text.starts_with("GPU-") && text.size() > 4 && text.size() <= kLongest &&
           text.substr(4).find_first_not_of("0123456789abcdefABCDEF-") == std::string_view::npos;
}

std::vector<NamedGpu> named_gpus(const Root& root) {
    std::vector<NamedGpu> out;
    for (const auto& pci : root.list(kNvidia))
        if (const auto text = root.read(std::string(kNvidia) + '/' + pci + "/information"))
            out.push_back(parse_nvidia(pci, *text));
    for (const auto& node : root.list(kAmd))
        if (const auto text = root.read(std::string(kAmd) + '/' + node + "/properties"))
            if (auto gpu = parse_amd(*text)) out.push_back(std::move(*gpu));
    return out;
}

}  // namespace

// Format: "Model: \t\t NVIDIA A100-SXM4-40GB", "GPU UUID: \t GPU-d7b2a6b2-…", "GPU Excluded:\t No". Of a card that
// nobody has used since the driver was loaded: "GPU UUID: \t GPU-????????-…".
NamedGpu parse_nvidia(const std::string& pci, std::string_view text) {
    NamedGpu out{.pci = pci, .vendor = "nvidia", .uuid = {}, .name = {}};
    bool excluded = false;
    for (const auto line : lines_of(text)) {
        const auto colon = line.find(':');
        if (colon == std::string_view::npos) continue;
        const auto key = line.substr(0, colon);
        const auto value = model::trim(line.substr(colon + 1));
        if (key == "Model") out.name = value;
        if (key == "GPU UUID" && is_uuid(value)) out.uuid = value;
        if (key == "GPU Excluded") excluded = value == "Yes";
    }
    if (excluded) out.uuid.clear();  // the driver leaves it alone, and CUDA does not find it
    return out;
}

// Format: "simd_count 304", "location_id 33536", "domain 0", "unique_id 13364019268263428353", a line each.
// location_id: bus << 8 | device << 3 | function.
std::optional<NamedGpu> parse_amd(std::string_view text) {
    std::uint64_t simds = 0;
    std::uint64_t location = 0;
    std::uint64_t domain = 0;
    std::uint64_t id = 0;
    for (const auto line : lines_of(text)) {
        const auto words = words_of(line);
        if (words.size() != 2) continue;
        const auto value = model::parse_unsigned(words[1], "property", std::numeric_limits<std::uint64_t>::max());
        if (!value) continue;
        if (words[0] == "simd_count") simds = *value;
        if (words[0] == "location_id") location = *value;
        if (words[0] == "domain") domain = *value;
        if (words[0] == "unique_id") id = *value;
    }
    if (simds == 0) return std::nullopt;
    std::array<char, 32> pci{};
    std::snprintf(pci.data(), pci.size(), "%04x:%02x:%02x.%x", static_cast<unsigned>(domain & 0xffffffffU),
                  static_cast<unsigned>(location >> 8U & 0xffU), static_cast<unsigned>(location >> 3U & 0x1fU),
                  static_cast<unsigned>(location & 7U));
    NamedGpu out{.pci = pci.data(), .vendor = "amd", .uuid = {}, .name = {}};
    std::array<char, 32> uuid{};
    std::snprintf(uuid.data(), uuid.size(), "GPU-%016llx", static_cast<unsigned long long>(id));
    if (id != 0) out.uuid = uuid.data();  // an integrated one has none
    return out;
}

void name_gpus(const Root& root, std::vector<model::Device>& devices) {
    for (const auto& gpu : named_gpus(root)) {
        const auto device = std::ranges::find_if(
            devices, [&](const model::Device& it) { return it.kind == "gpu" && it.pci == gpu.pci; });
        if (device == devices.end()) continue;
        device->vendor = gpu.vendor;
        device->uuid = gpu.uuid;
        if (!gpu.name.empty()) device->name = gpu.name;
    }
}

std::string gpu_fingerprint(const Root& root) {
    std::string text;
    for (const auto* folder : {kNvidia, kAmd}) {
        text += std::string(folder) + '=';
        for (const auto& name : root.list(folder)) text += name + ' ';
        text += '\n';
    }
    return text;
}

}  // namespace numalease::host
