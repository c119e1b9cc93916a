#include "weights/tensor_type.hpp"

#include <algorithm>
#include <array>

namespace numalease::weights {

namespace {

constexpr std::array kTypes{
    TensorType{0, "f32", 1, 4},         TensorType{1, "f16", 1, 2},         TensorType{2, "q4_0", 32, 18},
    TensorType{3, "q4_1", 32, 20},      TensorType{6, "q5_0", 32, 22},      TensorType{7, "q5_1", 32, 24},
    TensorType{8, "q8_0", 32, 34},      TensorType{9, "q8_1", 32, 36},      TensorType{10, "q2_k", 256, 84},
    TensorType{11, "q3_k", 256, 110},   TensorType{12, "q4_k", 256, 144},   TensorType{13, "q5_k", 256, 176},
    TensorType{14, "q6_k", 256, 210},   TensorType{15, "q8_k", 256, 292},   TensorType{16, "iq2_xxs", 256, 66},
    TensorType{17, "iq2_xs", 256, 74},  TensorType{18, "iq3_xxs", 256, 98}, TensorType{19, "iq1_s", 256, 50},
    TensorType{20, "iq4_nl", 32, 18},   TensorType{21, "iq3_s", 256, 110},  TensorType{22, "iq2_s", 256, 82},
    TensorType{23, "iq4_xs", 256, 136}, TensorType{24, "i8", 1, 1},         TensorType{25, "i16", 1, 2},
    TensorType{26, "i32", 1, 4},        TensorType{27, "i64", 1, 8},        TensorType{28, "f64", 1, 8},
    TensorType{29, "iq1_m", 256, 56},   TensorType{30, "bf16", 1, 2},       TensorType{34, "tq1_0", 256, 54},
    TensorType{35, "tq2_0", 256, 66},   TensorType{39, "mxfp4", 32, 17},    TensorType{40, "nvfp4", 64, 36},
    TensorType{41, "q1_0", 128, 18},    TensorType{42, "q2_0", 64, 18},
};

template <class Matches>
std::optional<TensorType> find(Matches matches) {
    const auto found = std::ranges::find_if(kTypes, matches);
    return found == kTypes.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::optional<TensorType> tensor_type(std::uint32_t number) {
    return find([=](const TensorType& it) { return it.number == number; });
}

std::optional<TensorType> tensor_type(std::string_view name) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return find([=](const TensorType& it) { return std::ranges::equal(it.name, name, {}, {}, lower); });
}

model::Bytes row_bytes(const TensorType& type, std::uint64_t elements) {
    return (elements / type.block + (elements % type.block == 0 ? 0 : 1)) * type.bytes;
}

}  // namespace numalease::weights
