#include "weights/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "weights/source.hpp"
#include "weights/tensor_type.hpp"

namespace numalease::weights {

using model::Bytes;
using model::Errc;
using model::Result;

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in the file");

namespace {

constexpr std::array<char, 4> kMagic{'G', 'G', 'U', 'F'};
constexpr std::uint64_t kMaxName = 1'024;
constexpr std::uint64_t kMaxText = 65'536;
constexpr unsigned kMaxDimensions = 4;

enum ValueType : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kText, kArray, kU64, kI64, kF64 };

/// Bytes of a value of a fixed size; 0 for the others.
std::uint64_t size_of(std::uint32_t type) {
    switch (type) {
        case kU8:
        case kI8:
        case kBool: return 1;
        case kU16:
        case kI16: return 2;
        case kU32:
        case kI32:
        case kF32: return 4;
        case kU64:
        case kI64:
        case kF64: return 8;
        default: return 0;
    }
}

/// magic "GGUF", u32 version, u64 tensors, u64 keys
/// key:    string name, u32 type, value          string: u64 length, bytes      array: u32 type, u64 count, values
/// tensor: string name, u32 dimensions, u64 each, u32 type, u64 offset
/// then, from the next multiple of general.alignment on, the data
class Parser {
public:
    explicit Parser(Source& source) : source_(source) {}

    Result<Gguf> parse() {
        std::array<char, 4> magic{};
        take(magic);
        if (!source_.ok() || magic != kMagic) return error("is no GGUF file");
        const auto version = take_number<std::uint32_t>();
        out_.version = version;
        out_.file = source_.size();
        if (source_.ok() && (version & 0xffffU) == 0) return error("is a big-endian GGUF, which is not read");
        if (source_.ok() && version != 2 && version != 3)
            return error("is a GGUF of version " + std::to_string(version) + "; versions 2 and 3 are read");
        const auto tensors = take_number<std::uint64_t>();
        const auto keys = take_number<std::uint64_t>();
        if (source_.ok() && (tensors > kMaxTensors || keys > kMaxKeys))
            return error("says it has " + std::to_string(tensors) + " tensors and " + std::to_string(keys) +
                         " keys; at most " + std::to_string(kMaxTensors) + " and " + std::to_string(kMaxKeys) +
                         " are read");
        for (std::uint64_t i = 0; i < keys && good(); ++i) take_key();
        for (std::uint64_t i = 0; i < tensors && good(); ++i) take_tensor();
        if (good()) finish();
        if (!why_.empty()) return error(why_);
        if (!source_.ok())
            return error("is truncated: its header goes on behind the end of the file, at " +
                         std::to_string(source_.size()));
        return std::move(out_);
    }

private:
    [[nodiscard]] bool good() {
        if (source_.offset() > kMaxHeader) refuse("has a header of more than 256M, which is not read");
        return source_.ok() && why_.empty();
    }
    [[nodiscard]] std::unexpected<model::Error> error(const std::string& what) const {
        return model::fail(Errc::unreadable, "model " + source_.name() + " " + what);
    }

    template <class T>
    void take(T& value) {
        source_.read(&value, sizeof value);
    }
    template <class T>
    T take_number() {
        T value{};
        take(value);
        return value;
    }
    std::string take_text(std::uint64_t most) {
        const auto length = take_number<std::uint64_t>();
        if (!source_.ok()) return {};
        if (length > most) {
            refuse("has a name longer than any engine takes");
            return {};
        }
        std::string text(length, '\0');
        source_.read(text.data(), text.size());
        return text;
    }

    std::int64_t take_value(std::uint32_t type) {
        switch (type) {
            case kU8:
            case kBool: return take_number<std::uint8_t>();
            case kI8: return take_number<std::int8_t>();
            case kU16: return take_number<std::uint16_t>();
            case kI16: return take_number<std::int16_t>();
            case kU32: return take_number<std::uint32_t>();
            case kI32: return take_number<std::int32_t>();
            case kU64: {
                const auto value = take_number<std::uint64_t>();
                return value > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(value);
            }
            case kI64: return take_number<std::int64_t>();
            default: source_.skip(size_of(type)); return 0;  // no floating-point number matters here
        }
    }

    void take_key() {
        auto key = take_text(kMaxName);
        const auto type = take_number<std::uint32_t>();
        if (!good()) return;
        if (type == kText) return take_text_value(std::move(key));
        if (type == kArray) return take_array(key);
        if (size_of(type) == 0) return refuse("has a key '" + key + "' of an unknown type");
        out_.numbers[std::move(key)] = {take_value(type)};
    }

    void take_text_value(std::string key) {
        const auto length = take_number<std::uint64_t>();
        if (!source_.ok()) return;
        if (length > kMaxText) {  // a chat template, a licence
            source_.skip(length);
            return;
        }
        std::string text(length, '\0');
        source_.read(text.data(), text.size());
        constexpr std::size_t kShort = 256;
        if (text.size() <= kShort) out_.texts[std::move(key)] = std::move(text);
    }

    void take_array(const std::string& key) {
        const auto type = take_number<std::uint32_t>();
        const auto count = take_number<std::uint64_t>();
        if (!source_.ok()) return;
        out_.lengths[key] = count;
        if (type == kText) {
            for (std::uint64_t i = 0; i < count && good(); ++i) source_.skip(take_number<std::uint64_t>());
            return;
        }
        const auto size = size_of(type);
        if (size == 0) return refuse("has an array '" + key + "' of a type that is not read");
        if (count > kMaxKept) {
            source_.skip(count > source_.size() ? source_.size() : count * size);
            return;
        }
        auto& numbers = out_.numbers[key];
        for (std::uint64_t i = 0; i < count && source_.ok(); ++i) numbers.push_back(take_value(type));
    }

    void take_tensor() {
        Tensor tensor;
        tensor.name = take_text(kMaxName);
        const auto dimensions = take_number<std::uint32_t>();
        if (!good()) return;
        if (dimensions == 0 || dimensions > kMaxDimensions)
            return refuse("has a tensor of " + std::to_string(dimensions) + " dimensions");
        tensor.rows = 1;
        tensor.width = take_number<std::uint64_t>();
        for (unsigned i = 1; i < dimensions; ++i)
            if (__builtin_mul_overflow(tensor.rows, take_number<std::uint64_t>(), &tensor.rows))
                refuse("has a tensor larger than any memory");
        take(tensor.type);
        take(tensor.offset);
        if (good()) measure(tensor);
        if (good()) out_.tensors.push_back(std::move(tensor));
    }

    void measure(Tensor& tensor) {
        const auto type = tensor_type(tensor.type);
        if (!type) {
            out_.has_unknown_type = true;
            return;
        }
        if (tensor.width % type->block != 0) return refuse("has a tensor whose rows are no whole blocks of its type");
        if (__builtin_mul_overflow(tensor.width / type->block, type->bytes, &tensor.bytes) ||
            __builtin_mul_overflow(tensor.bytes, tensor.rows, &tensor.bytes))
            refuse("has a tensor larger than any memory");
    }

    /// Sizes of tensors of unknown types, and whether the file holds what the header promises.
    void finish() {
        constexpr std::uint64_t kDefaultAlignment = 32;
        const auto alignment = out_.number("general.alignment", kDefaultAlignment);
        constexpr std::uint64_t kMostAlignment = 65'536;
        if (alignment == 0 || alignment > kMostAlignment) return refuse("has an impossible general.alignment");
        const auto start = (source_.offset() + alignment - 1) / alignment * alignment;
        const auto data = source_.size() > start ? source_.size() - start : 0;
        std::vector<Tensor*> order;
        for (auto& tensor : out_.tensors) order.push_back(&tensor);
        std::ranges::sort(order, {}, &Tensor::offset);
        for (std::size_t i = 0; i < order.size(); ++i) {
            auto& tensor = *order[i];
            const auto next = i + 1 < order.size() ? order[i + 1]->offset : std::max(data, tensor.offset);
            if (!tensor_type(tensor.type)) tensor.bytes = next - tensor.offset;
            if (tensor.offset > data || tensor.bytes > data - tensor.offset)
                return refuse("is truncated: it has " + model::bytes_text(data) +
                              " of data and a tensor that ends behind it");
        }
    }

    void refuse(std::string why) {
        if (why_.empty()) why_ = std::move(why);
    }

    Source& source_;
    Gguf out_;
    std::string why_;  ///< the first thing that is wrong
};

}  // namespace

std::uint64_t Gguf::number(std::string_view key, std::uint64_t fallback) const {
    const auto found = numbers.find(key);
    if (found == numbers.end() || found->second.empty() || found->second.front() < 0) return fallback;
    return static_cast<std::uint64_t>(found->second.front());
}

Result<Gguf> read_gguf(const std::string& file) {
    auto source = Source::open(file);
    if (!source) return std::unexpected(source.error());
    return Parser(*source).parse();
}

Result<bool> is_gguf(const std::string& file) {
    auto source = Source::open(file);
    if (!source) return std::unexpected(source.error());
    std::array<char, 4> magic{};
    return source->read(magic.data(), magic.size()) && magic == kMagic;
}

}  // namespace numalease::weights
