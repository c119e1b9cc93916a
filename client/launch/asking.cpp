#include "launch/asking.hpp"

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <algorithm>
#include <array>

#include "engines/sizing.hpp"
#include "engines/wrapper.hpp"
#include "model/levers.hpp"
#include "text/output.hpp"

namespace numalease::client {

using model::Errc;
using model::fail;
using model::Result;

namespace {

/// Fields without an option of their own name and value.
constexpr std::array<std::string_view, 5> kNoOption{"name", "memory-is-estimate", "command", "required", "wait"};
constexpr std::array<std::string_view, 3> kFlags{"share", "shield", "isolated"};
/// What must be had as it was typed, besides the kernel's levers.
constexpr std::array<std::string_view, 5> kOwnLevers{"memory-max", "socket", "node", "near", "mempolicy"};

constexpr std::string_view kDefaultPolicy = "auto";
constexpr std::string_view kDefaultWait = "10min";
constexpr std::size_t kMaxCommand = 200;  // of the text for people

template <class Words>
bool is_one_of(const Words& words, std::string_view word) {
    return std::ranges::find(words, word) != words.end();
}

std::string help_of(std::string_view field) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 25> kHelp{{
        {"policy", "a named preset of all that follows (default auto; see policy list)"},
        {"socket", "which sockets, by number or how many"},
        {"node", "which memory nodes, by number or how many"},
        {"cores", "how many physical cores"},
        {"mode", "tell the engine one thread per core, or every hardware thread"},
        {"near", "nodes nearest to a device"},
        {"gpu",
         "lease GPUs: by number in bus order, PCI address or UUID, or any N of one socket; the nodes follow them"},
        {"gpu-share", "so many leases that say so may use one GPU together (default 1: nobody else)"},
        {"memory", "what must fit on the nodes"},
        {"memory-max", "the most it may use; more is the lease's own out-of-memory"},
        {"mempolicy", "memory policy of the command"},
        {"weights", "weights of the nodes, with --mempolicy weighted"},
        {"numa-balancing", "the kernel's automatic NUMA balancing while the lease lasts"},
        {"thp", "transparent huge pages while the lease lasts"},
        {"thp-defrag", "their defragmentation while the lease lasts"},
        {"zone-reclaim", "vm.zone_reclaim_mode while the lease lasts"},
        {"hugepages", "reserve huge pages, as 2M=8G or 2M=4G..8G@0"},
        {"page-cache", "first drop the model's pages, the leased nodes' or all of the machine's"},
        {"share", "others who share may use the same CPUs"},
        {"shield", "nobody else's thread runs on the leased CPUs; one core of the machine stays free of leases"},
        {"isolated", "CPUs of the kernel's isolcpus= may be leased"},
        {"class",
         "what kind of work it is: batch, normal, service (root's, unless the site says more), or what the site names; "
         "the queue goes by it"},
        {"time", "the lease ends by itself after this"},
        {"warn", "so long before that its user is told (default 5min), and its processes get this signal: 5min:USR1"},
        {"grace", "kept so long for its unit to start again, or for the next hold (default 30s)"},
    }};
    for (const auto& [name, help] : kHelp)
        if (name == field) return std::string(help);
    return field == "reason" ? "for people who look at the list" : "";
}

/// Text that set_field accepts: what a person typed behind "command" may hold anything.
std::string command_text(const Argv& command) {
    auto text = printable(shell_line(command));
    if (text.size() > kMaxCommand) {
        auto end = kMaxCommand;
        while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80) --end;
        text = text.substr(0, end) + "…";
    }
    return text;
}

/// --interleave and --mempolicy say one thing.
Result<std::string> mempolicy_of(const Typed& typed) {
    const auto found = typed.fields.find("mempolicy");
    const auto spelled = found == typed.fields.end() ? std::string() : found->second;
    if (typed.interleave.empty()) return spelled;
    const bool on = typed.interleave == "on";
    if (!on && typed.interleave != "off")
        return fail(Errc::invalid_request, "interleave: '" + typed.interleave + "' is none of on, off");
    if (spelled.empty()) return std::string(on ? "interleave" : "bind");
    const bool interleaves = spelled == "interleave" || spelled == "weighted";
    if (on != interleaves)
        return fail(Errc::invalid_request, "--interleave " + typed.interleave + " contradicts --mempolicy " + spelled +
                                               "; say one of the two");
    return spelled;
}

/// Empty where only the policy, or nobody, says it.
Result<std::string> wait_of(const Typed& typed, Waiting waiting) {
    if (typed.no_wait && !typed.wait.empty())
        return fail(Errc::invalid_request, "--no-wait contradicts --wait=" + typed.wait + "; say one of the two");
    if (typed.no_wait) return std::string("no");
    if (waiting == Waiting::in_service && !typed.wait.empty())
        return fail(
            Errc::invalid_request,
            "--wait: a service waits only with Type=notify, which keeps its start from timing out; set that, or "
            "leave out --wait and let Restart=on-failure with RestartSec= try again");
    if (waiting == Waiting::in_service) return std::string("no");
    return typed.wait;
}

/// Fields as they will be sent: the policy's, then what was typed over them.
class Builder {
public:
    Builder(const Typed& typed, const policies::Library& library) : typed_(typed), library_(library) {}

    Result<void> apply_policy() {
        const auto found = typed_.fields.find("policy");
        const std::string name(found == typed_.fields.end() ? kDefaultPolicy : std::string_view(found->second));
        const auto policy = library_.policies.find(name);
        if (policy == library_.policies.end()) return no_such_policy(name, found == typed_.fields.end());
        out_.policy = policy->second;
        for (const auto& [field, text] : policy->second.fields) fields_[field] = text;
        fields_["policy"] = name;
        return {};
    }

    Result<void> apply_typed() {
        if (typed_.exclusive && typed_.fields.contains("share"))
            return fail(Errc::invalid_request, "--exclusive contradicts --share; say one of the two");
        // One question, two spellings: a typed answer replaces the policy's answer in the other.
        if (typed_.fields.contains("node")) fields_.erase("socket");
        if (typed_.fields.contains("socket")) fields_.erase("node");
        // The GPU that a policy is near to gives way to those that are leased.
        if (const auto near = fields_.find("near");
            typed_.fields.contains("gpu") && near != fields_.end() && near->second.starts_with("gpu:"))
            fields_.erase(near);
        const auto mempolicy = mempolicy_of(typed_);
        if (!mempolicy) return std::unexpected(mempolicy.error());
        for (const auto& [field, text] : typed_.fields) put(field, text);
        if (!mempolicy->empty()) put("mempolicy", *mempolicy);
        if (!mempolicy->empty() && *mempolicy != "weighted" && !typed_.fields.contains("weights"))
            fields_.erase("weights");
        if (typed_.exclusive) put("share", "no");
        // A policy's answer gives way to the typed opposite.
        if (typed_.fields.contains("share") && !typed_.fields.contains("shield")) fields_.erase("shield");
        if (typed_.fields.contains("shield") && !typed_.fields.contains("share")) fields_.erase("share");
        return {};
    }

    Result<void> apply_model(const Argv& command, const Env& user_env) {
        const auto* engine = command.empty() ? nullptr : recognise(library_, command, nullptr);
        auto named = typed_.model;
        if (named.empty() && engine != nullptr) named = model_file(*engine, command, user_env).value_or("");
        if (named.empty()) return {};
        const auto local = engine != nullptr ? local_model(*engine, named, user_env) : named;
        if (!local) {
            out_.notes.push_back("model " + printable(named) +
                                 " is not here yet, and not sized: --memory SIZE says it");
            return {};
        }
        const auto& file = *local;
        const auto sizing = size_model(library_, file, command, user_env, has_compute_device());
        out_.model = file;
        out_.model_files = sizing ? sizing->model.files : std::vector{file};
        // A typed size wins over any estimate, also over one that cannot be made.
        if (typed_.fields.contains("memory")) return {};
        if (!sizing) {
            auto error = sizing.error();
            // Such an engine reads forms that are not known here.
            if (error.code == Errc::unreadable && typed_.model.empty() && takes_hub_names(*engine)) {
                out_.notes.push_back(error.detail + "; its size is not known: --memory SIZE says it");
                return {};
            }
            if (error.code == Errc::unreadable) error.detail += "; say --memory SIZE instead";
            return std::unexpected(error);
        }
        fields_["memory"] = std::to_string(memory_to_ask(*sizing, machine_memory()));
        fields_["memory-is-estimate"] = "yes";
        const auto name = file == named ? base_name(named) : std::string_view(named);
        out_.notes.push_back(sizing_text(printable(name), *sizing));
        return {};
    }

    Result<void> apply_required() {
        if (typed_.best_effort && !typed_.require.empty())
            return fail(Errc::invalid_request, "--best-effort contradicts --require; say one of the two");
        auto required = typed_.best_effort ? std::set<std::string>{} : levers_;
        const auto policys = fields_.extract("required");
        if (policys && !typed_.best_effort && typed_.require != "all")
            if (auto added = add_named(required, policys.mapped()); !added) return added;
        if (typed_.require == "all") {
            for (const auto& [field, text] : fields_)
                if (is_lever(field)) required.insert(field);
        } else if (!typed_.require.empty()) {
            if (auto added = add_named(required, typed_.require); !added) return added;
        }
        std::string text;
        for (const auto& name : required) text += (text.empty() ? "" : ",") + name;
        if (!text.empty()) fields_["required"] = text;
        return {};
    }

    Result<Asked> finish(const std::string& wait, Waiting waiting, const Argv& command) {
        if (!wait.empty()) fields_["wait"] = wait;
        fields_.try_emplace("wait", waiting == Waiting::at_terminal ? "forever" : kDefaultWait);
        if (!command.empty()) fields_["command"] = command_text(command);
        for (const auto& [field, text] : fields_) {
            if (auto set = model::set_field(out_.request, field, text); !set) return std::unexpected(set.error());
            out_.dict[field] = text;
        }
        if (auto valid = model::validate(out_.request); !valid) return std::unexpected(valid.error());
        if (out_.request.page_cache == model::PageCache::evict && out_.model_files.empty() &&
            model::is_required(out_.request, "page-cache"))
            return fail(Errc::invalid_request,
                        "--page-cache evict: whose pages? the command names no model file that is known; say --model "
                        "FILE");
        return std::move(out_);
    }

private:
    static Result<void> add_named(std::set<std::string>& required, const std::string& text) {
        model::Request named;
        if (auto set = model::set_field(named, "required", text); !set) return set;
        required.insert(named.required.begin(), named.required.end());
        return {};
    }

    void put(const std::string& field, const std::string& text) {
        fields_[field] = text;
        if (is_lever(field)) levers_.insert(field);
    }

    [[nodiscard]] static bool takes_hub_names(const model::Engine& engine) {
        const auto option = engine.options.find("model");
        return option != engine.options.end() && option->second.hub;
    }

    [[nodiscard]] Result<void> no_such_policy(const std::string& name, bool by_default) const {
        // `auto` sets nothing: the daemon decides. It is missed only by whoever names it.
        if (by_default) return {};
        for (const auto& problem : library_.problems)
            if (problem.detail.find('/' + name + ".yaml:") != std::string::npos) return std::unexpected(problem);
        std::string known;
        for (const auto& [other, policy] : library_.policies) known += (known.empty() ? "" : ", ") + other;
        return fail(Errc::unreadable, "policy '" + name + "' does not exist; there are: " + known);
    }

    const Typed& typed_;
    const policies::Library& library_;
    std::map<std::string, std::string> fields_;
    std::set<std::string> levers_;
    Asked out_;
};

}  // namespace

bool is_lever(std::string_view field) { return is_one_of(kOwnLevers, field) || model::is_kernel_lever(field); }

void add_request_options(CLI::App& app, Typed& typed) {
    const std::string group = "What to lease";
    for (const auto& field : model::request_fields()) {
        const std::string name(field.name);
        if (is_one_of(kNoOption, name)) continue;
        if (is_one_of(kFlags, name)) {
            app.add_flag_callback(
                   "--" + name, [&typed, name] { typed.fields[name] = "yes"; }, help_of(name))
                ->group(group);
            continue;
        }
        app.add_option_function<std::string>(
               "--" + name, [&typed, name](const std::string& text) { typed.fields[name] = text; }, help_of(name))
            ->type_name(std::string(field.values))
            ->group(group);
    }
    app.add_option("--interleave", typed.interleave, "short for --mempolicy interleave, or bind")
        ->type_name("on|off")
        ->group(group);
    app.add_option("--model", typed.model, "the model file: --memory is sized by it, --page-cache evict evicts it")
        ->type_name("FILE")
        ->group(group);
    app.add_flag("--exclusive", typed.exclusive, "nobody else on the leased CPUs (default)")->group(group);

    const std::string when = "When it cannot be had";
    app.add_option("--wait", typed.wait,
                   "wait for room (default: 10min, at a terminal forever, in a service only with "
                   "Type=notify); without a value: forever")
        ->type_name("[=TIME|forever]")
        ->group(when);
    app.add_flag("--no-wait", typed.no_wait, "do not wait: exit 75")->group(when);
    app.add_option("--require", typed.require, "refuse the lease without these; without a value: all that was asked")
        ->type_name("[=FIELD,…]")
        ->group(when);
    app.add_flag("--best-effort", typed.best_effort, "go on without what cannot be had")->group(when);
}

void fill_from(Typed& typed, const policies::LeaseFile& definition) {
    const auto has = [&](const char* field) { return typed.fields.contains(field); };
    const bool placed = has("node") || has("socket");
    const bool mempolicy = has("mempolicy") || !typed.interleave.empty();
    for (const auto& [field, text] : definition.fields) {
        if (field == "wait") {
            if (typed.wait.empty() && !typed.no_wait) typed.wait = text;
        } else if (field == "required") {
            if (typed.require.empty() && !typed.best_effort) typed.require = text;
        } else if ((placed && (field == "node" || field == "socket")) ||
                   (mempolicy && (field == "mempolicy" || field == "weights")) ||
                   (typed.exclusive && field == "share")) {
            continue;
        } else {
            typed.fields.emplace(field, text);
        }
    }
    if (typed.model.empty()) typed.model = definition.model;
}

Result<Asked> build_request(const Typed& typed, const Argv& command, const Env& user_env,
                            const policies::Library& library, Waiting waiting) {
    Builder builder(typed, library);
    const auto wait = wait_of(typed, waiting);
    if (!wait) return std::unexpected(wait.error());
    if (auto step = builder.apply_policy(); !step) return std::unexpected(step.error());
    if (auto step = builder.apply_typed(); !step) return std::unexpected(step.error());
    if (auto step = builder.apply_model(command, user_env); !step) return std::unexpected(step.error());
    if (auto step = builder.apply_required(); !step) return std::unexpected(step.error());
    return builder.finish(*wait, waiting, command);
}

}  // namespace numalease::client
