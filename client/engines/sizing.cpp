#include "engines/sizing.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>

#include "engines/engine_words.hpp"
#include "engines/wrapper.hpp"
#include "weights/hub.hpp"
#include "weights/safetensors.hpp"

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Result;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kAllLayers = 1'000'000;

/// The command's words about one engine's options, by the names that the engine's file gives them.
class Options {
public:
    Options(const policies::Library& library, const Argv& command, const Env& user_env) : argv_(command) {
        if (command.empty()) return;
        const auto words = unwrap(command);
        engine_ = recognise(library, command, nullptr);
        if (engine_ != nullptr) from_ = after_program(*engine_, command, words.program);
        if (words.drops_env.empty()) env_ = user_env;
        for (const auto& [name, value] : words.env) env_[name] = value;
    }

    /// Has the engine such an option at all?
    [[nodiscard]] bool knows(const std::string& name) const { return find(name) != nullptr; }

    /// Every value given, in order; those that mean "not given" are left out.
    [[nodiscard]] std::vector<std::string> all(const std::string& name) const {
        const auto* option = find(name);
        std::vector<std::string> out;
        if (option == nullptr) return out;
        for (const auto& one : given_by(*option, argv_, from_, env_))
            if (std::ranges::find(option->unset, one.value) == option->unset.end()) out.push_back(one.value);
        return out;
    }
    /// The last, which is the one that counts.
    [[nodiscard]] std::optional<std::string> last(const std::string& name) const {
        auto values = all(name);
        return values.empty() ? std::nullopt : std::optional(std::move(values.back()));
    }
    [[nodiscard]] bool is_on(const std::string& name) const {
        const auto* option = find(name);
        if (option == nullptr) return false;
        const auto given = given_by(*option, argv_, from_, env_);
        // A variable says it in its value; the flag is enough.
        return !given.empty() &&
               (given.back().end != 0 ||
                (given.back().value != "0" && given.back().value != "false" && given.back().value != "off"));
    }

    /// How many times what was said makes the engine keep its weights.
    [[nodiscard]] std::uint64_t copies() const {
        std::uint64_t out = 1;
        if (engine_ == nullptr) return out;
        for (const auto& [name, option] : engine_->options) {
            if (option.copies.empty()) continue;
            const auto given = given_by(option, argv_, from_, env_);
            if (given.empty()) continue;
            for (const auto& [word, count] : option.copies)
                if (word == "*" || word == given.back().value || word == given.back().name)
                    out = std::max<std::uint64_t>(out, count);
        }
        return out;
    }

private:
    [[nodiscard]] const model::EngineOption* find(const std::string& name) const {
        if (engine_ == nullptr) return nullptr;
        const auto option = engine_->options.find(name);
        return option == engine_->options.end() ? nullptr : &option->second;
    }

    const Argv& argv_;
    Env env_;
    const model::Engine* engine_ = nullptr;
    std::size_t from_ = 0;
};

Result<std::uint64_t> number_of(const Options& options, const std::string& name, std::uint64_t fallback) {
    const auto text = options.last(name);
    if (!text) return fallback;
    constexpr std::uint64_t kMost = UINT32_MAX;
    return model::parse_unsigned(*text, name, kMost);
}

/// "16k", "25.6k", "1M": the small letters count by 1000, the others by 1024, as vLLM's human_readable_int does.
Result<std::uint64_t> context_of(const Options& options) {
    const auto text = options.last("context");
    if (!text || text->empty() || !options.knows("device")) return number_of(options, "context", 0);
    constexpr std::string_view kUnits = "kmKM";
    constexpr std::array<double, kUnits.size()> kTimes{1e3, 1e6, 0x1p10, 0x1p20};
    const auto unit = kUnits.find(text->back());
    if (unit == std::string_view::npos) return number_of(options, "context", 0);
    double number = 0;
    const auto* last = text->data() + text->size() - 1;
    const auto [end, error] = std::from_chars(text->data(), last, number);
    number *= kTimes.at(unit);
    if (error != std::errc() || end != last || !(number >= 0 && number <= UINT32_MAX))
        return fail(Errc::invalid_request, "the command's context '" + *text + "' is no number of tokens");
    return static_cast<std::uint64_t>(number);
}

/// Of one that is not known, which a fork may well know, the largest that is usual.
std::uint32_t cache_type(const Options& options, const std::string& name) {
    constexpr std::uint32_t kF16 = 1;
    const auto text = options.last(name);
    const auto type = text ? weights::tensor_type(*text) : std::nullopt;
    return type ? type->number : kF16;
}

void note_unknown_types(const Options& options, std::vector<std::string>& notes) {
    for (const auto* name : {"cache-keys", "cache-values"})
        if (const auto text = options.last(name); text && !weights::tensor_type(*text))
            notes.push_back("the cache's type " + *text + " is not known here: it is counted as f16");
}

/// "REGEX=BUFFER,…": CPU and the *_Host buffers are main memory.
void add_overrides(const Options& options, weights::Settings& settings) {
    for (const auto& list : options.all("override-tensor")) {
        std::size_t begin = 0;
        while (begin <= list.size()) {
            const auto end = std::min(list.find(',', begin), list.size());
            const auto item = list.substr(begin, end - begin);
            const auto equals = item.rfind('=');
            if (equals != std::string::npos)
                settings.overrides.emplace_back(item.substr(0, equals),
                                                item.substr(equals + 1).find("CPU") == 0 || item.ends_with("_Host"));
            begin = end + 1;
        }
    }
    const std::string experts = R"(\.ffn_(up|down|gate|gate_up)_(ch|)exps)";
    if (options.is_on("cpu-moe")) settings.overrides.emplace_back(experts, true);
    constexpr std::uint64_t kMostLayers = 4096;
    const auto layers = number_of(options, "cpu-moe-layers", 0).value_or(0);
    if (layers >= kMostLayers)
        settings.overrides.emplace_back(experts, true);
    else
        for (std::uint64_t i = 0; i < layers; ++i)
            settings.overrides.emplace_back("blk\\." + std::to_string(i) + experts, true);
}

Result<std::uint64_t> gpu_layers(const Options& options, const std::string& name) {
    const auto text = options.last(name);
    if (!text) return 0;
    if (*text == "all") return kAllLayers;
    return model::parse_unsigned(*text, name, kAllLayers);
}

Result<weights::Settings> settings_of(const Options& options) {
    weights::Settings out;
    const auto context = context_of(options);
    const auto slots = number_of(options, "slots", 0);
    const auto ubatch = number_of(options, "ubatch", out.ubatch);
    const auto layers = gpu_layers(options, "gpu-layers");
    for (const auto* one : {&context, &slots, &ubatch, &layers})
        if (!*one) return std::unexpected(one->error());
    out.context = *context;
    out.ubatch = *ubatch;
    out.key_type = cache_type(options, "cache-keys");
    out.value_type = cache_type(options, "cache-values");
    out.gpu_layers = *layers;
    // llama-server makes four slots of one cache where it is not told how many.
    constexpr std::uint64_t kSlots = 4;
    out.slots = *slots != 0 ? *slots : kSlots;
    out.unified = *slots == 0 || options.is_on("unified-cache");
    out.full_windows = options.is_on("full-windows");
    out.cache_on_host = options.is_on("cache-on-host");
    add_overrides(options, out);
    return out;
}

/// A form that is not known here: its size is all that can be told.
Result<void> read_plain(Sizing& out, const std::string& file) {
    std::error_code error;
    out.model.file = file;
    out.model.files = {file};
    out.model.stored = fs::file_size(file, error);
    if (error) return fail(Errc::unreadable, "model " + file + ": " + error.message(), error.value());
    out.model.header.tensors.push_back({.name = "all", .bytes = out.model.stored});
    out.notes.emplace_back("neither GGUF nor safetensors: its size, and a tenth for everything else");
    return {};
}

Result<void> read_files(Sizing& out, const std::string& file) {
    if (weights::is_safetensors(file)) {
        auto read = weights::read_safetensors(file);
        if (!read) return std::unexpected(read.error());
        out.model = std::move(read->model);
        out.layers = std::move(read->layers);
        if (out.layers.layers.empty()) out.notes.emplace_back("no config.json beside it: its KV cache is not counted");
        return {};
    }
    const auto gguf = weights::is_gguf(file);
    if (gguf && !*gguf && !file.ends_with(".gguf")) return read_plain(out, file);
    auto read = weights::read_model(file);
    if (!read) return std::unexpected(read.error());
    auto layers = weights::read_layers(read->header, file);
    if (!layers) return std::unexpected(layers.error());
    out.model = std::move(*read);
    out.layers = std::move(*layers);
    if (out.model.header.has_unknown_type)
        out.notes.emplace_back(
            "it has tensors of types that are not known here: they are counted by their place in the file");
    out.notes.insert(out.notes.end(), out.layers.notes.begin(), out.layers.notes.end());
    return {};
}

/// Where the engine decides, `at_least` is what it takes if it decides for little.
Result<void> add_range(Sizing& out, const Options& options, bool has_gpu) {
    out.at_least = out.need;
    if (!options.knows("fit") || options.last("fit") == "off" || out.layers.layers.empty()) return {};
    auto least = out.settings;
    constexpr std::uint64_t kLeastContext = 4096;
    const bool decides_context = out.settings.context == 0 && out.layers.context > kLeastContext;
    const bool decides_layers = has_gpu && !options.last("gpu-layers");
    out.may_use_gpu = decides_layers;
    if (decides_context) least.context = kLeastContext;
    if (decides_layers) least.gpu_layers = kAllLayers;
    if (!decides_context && !decides_layers) return {};
    const auto need = weights::need_of(out.model, out.layers, least);
    if (!need) return std::unexpected(need.error());
    out.at_least = *need;
    if (decides_context)
        out.notes.push_back("the engine takes a context between 4096 and " + std::to_string(out.layers.context) +
                            " tokens, by what the whole machine has free; -c N says how many");
    if (decides_layers)
        out.notes.emplace_back("the engine decides how many layers go to the GPU; -ngl N says how many");
    return {};
}

/// An engine that keeps all of a model on one device: the CPU, or a GPU.
Result<void> add_device(Sizing& out, const Options& options, bool has_gpu) {
    if (!options.knows("device")) return {};
    const auto gib = number_of(options, "cache-gib", 0);
    if (!gib) return std::unexpected(gib.error());
    if (*gib != 0)
        out.need.cache = *gib * model::kGiB;
    else if (out.need.cache != 0)
        out.notes.push_back("its KV cache is counted for one request of " + std::to_string(out.need.context) +
                            " tokens; the engine takes more where its own options let it");
    out.at_least = out.need;
    if (!has_gpu || options.last("device") == "cpu") return {};
    out.may_use_gpu = true;
    out.at_least.weights = 0;
    out.at_least.cache = 0;
    out.notes.emplace_back("on a GPU it takes no main memory but for its buffers");
    return {};
}

void keep_several_times(Sizing& out, std::uint64_t copies) {
    if (copies == 1) return;
    for (auto* need : {&out.need, &out.at_least}) {
        const auto once = need->weights;
        for (std::uint64_t i = 1; i < copies; ++i) need->weights = weights::Need::sum(need->weights, once);
    }
    out.notes.push_back("the engine is told to keep its weights " + std::to_string(copies) + " times");
}

/// A draft model has a cache of its own for as many tokens, and buffers. Of its settings the rest is the main one's.
Result<weights::Need> need_of_draft(const std::string& file, const Options& options, const Sizing& main) {
    Sizing draft;
    if (const auto read = read_files(draft, file); !read) return std::unexpected(read.error());
    auto settings = main.settings;
    settings.overrides.clear();
    settings.context = main.need.context;
    const auto layers = gpu_layers(options, "draft-gpu-layers");
    if (!layers) return std::unexpected(layers.error());
    settings.key_type = cache_type(options, "draft-cache-keys");
    settings.value_type = cache_type(options, "draft-cache-values");
    settings.gpu_layers = *layers;
    return weights::need_of(draft.model, draft.layers, settings);
}

Result<void> add_beside(Sizing& out, const Options& options) {
    if (const auto file = options.last("draft-model")) {
        const auto need = need_of_draft(*file, options, out);
        if (!need) return std::unexpected(need.error());
        out.beside = weights::Need::sum(out.beside, need->total());
        out.notes.push_back("and the draft model " + *file + ": " + model::bytes_text(need->weights) + " weights, " +
                            model::bytes_text(need->cache) + " KV cache, " + model::bytes_text(need->allowance) +
                            " allowance");
    }
    if (const auto file = options.last("projector")) {
        const auto read = weights::read_model(*file);
        if (!read) return std::unexpected(read.error());
        out.beside = weights::Need::sum(out.beside, read->stored);
        out.notes.push_back("and " + *file + ", " + model::bytes_text(read->stored));
    }
    return {};
}

}  // namespace

Result<Sizing> size_model(const policies::Library& library, const std::string& file, const Argv& command,
                          const Env& user_env, bool has_gpu) {
    const Options options(library, command, user_env);
    Sizing out;
    if (const auto read = read_files(out, file); !read) return std::unexpected(read.error());
    const auto settings = settings_of(options);
    if (!settings) return std::unexpected(settings.error());
    out.settings = *settings;
    note_unknown_types(options, out.notes);
    const auto need = weights::need_of(out.model, out.layers, out.settings);
    if (!need) return std::unexpected(need.error());
    out.need = *need;
    constexpr model::Bytes kTenth = 10;
    if (out.layers.layers.empty()) out.need.allowance = out.model.stored / kTenth;
    if (const auto added = add_range(out, options, has_gpu); !added) return std::unexpected(added.error());
    if (const auto added = add_device(out, options, has_gpu); !added) return std::unexpected(added.error());
    keep_several_times(out, options.copies());
    if (const auto added = add_beside(out, options); !added) return std::unexpected(added.error());
    if (out.settings.gpu_layers != 0)
        out.notes.emplace_back("layers on the GPU are taken off; an engine built without one keeps all in main memory");
    return out;
}

std::optional<std::string> local_model(const model::Engine& engine, const std::string& model, const Env& env) {
    const auto option = engine.options.find("model");
    std::error_code error;
    if (option == engine.options.end() || !option->second.hub || fs::exists(model, error)) return model;
    return weights::downloaded(model, env);
}

model::Bytes memory_to_ask(const Sizing& sizing, model::Bytes machine) {
    return sizing.may_use_gpu || sizing.most() > machine ? sizing.least() : sizing.most();
}

std::string sizing_text(std::string_view name, const Sizing& sizing) {
    const auto& need = sizing.need;
    auto out = std::string(name) + ": " + model::bytes_text(need.weights) + " weights, ";
    if (need.cache != 0)
        out += model::bytes_text(need.cache) + " KV cache for " + std::to_string(need.context) + " tokens, ";
    return out + model::bytes_text(need.allowance) + " allowance";
}

model::Bytes machine_memory() {
    return static_cast<model::Bytes>(sysconf(_SC_PHYS_PAGES)) * static_cast<model::Bytes>(sysconf(_SC_PAGESIZE));
}

bool has_compute_device() {
    std::error_code error;
    if (fs::exists("/dev/nvidiactl", error) || fs::exists("/dev/kfd", error)) return true;
    for (fs::directory_iterator it("/dev/dri", error), end; !error && it != end; it.increment(error))
        if (it->path().filename().string().starts_with("renderD")) return true;
    return false;
}

}  // namespace numalease::client
