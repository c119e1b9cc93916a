// A small front on llama.cpp's own libraries, for tests: npm carries the libraries but none of the programs.
//
// Named llama-server it reads llama-server's options and serves GET /health and, in small, POST /completion; under any
// other name it reads llama-cli's.
// llama.cpp itself parses the options and variables, loads the model and makes the threads (common_params_parse,
// common_init_from_params, as its own programs do); here is only the loop that generates, and one line of JSON.
//
// The prompt is four token ids, so the model's vocabulary need make no sense. A server generates once, then only where
// it is asked to, until SIGTERM or SIGINT.

#include <arg.h>
#include <common.h>
#include <httplib.h>
#include <llama.h>

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr int kDefaultTokens = 32;
constexpr std::string_view kHoldOption = "--front-hold";

std::atomic<bool> stopping{false};

// ---- our own option, taken out before llama.cpp sees the rest ----

std::optional<double> seconds_of(const char* text) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0)) return std::nullopt;
    return value;
}

/// Removes every `--front-hold SECONDS` and `--front-hold=SECONDS` from `args`.
/// Errors: nothing, where a value is missing or no number.
std::optional<double> take_hold(std::vector<char*>& args) {
    double hold = 0;
    for (auto it = args.begin(); it != args.end();) {
        const std::string_view arg = *it;
        const bool joined = arg.starts_with(kHoldOption) && arg.substr(kHoldOption.size()).starts_with('=');
        if (arg != kHoldOption && !joined) {
            ++it;
            continue;
        }
        if (!joined && it + 1 == args.end()) return std::nullopt;
        const auto value = seconds_of(joined ? *it + kHoldOption.size() + 1 : *(it + 1));
        if (!value) return std::nullopt;
        hold = *value;
        it = args.erase(it, it + (joined ? 1 : 2));
    }
    return hold;
}

void print_usage(int, char** argv) {
    std::printf(
        "\n----- this front -----\n\n"
        "%s SECONDS                keep generating for at least so long, whatever -n says\n"
        "-n N                                tokens to generate (here: %d unless set)\n\n"
        "example: %s -m model.gguf -t 2 -n 64 --load-mode none\n",
        kHoldOption.data(), kDefaultTokens, argv[0]);
}

// ---- what /proc says of this process ----

int own_threads() {
    DIR* dir = ::opendir("/proc/self/task");
    if (dir == nullptr) return -1;
    int count = 0;
    while (const dirent* entry = ::readdir(dir)) count += entry->d_name[0] != '.';
    ::closedir(dir);
    return count;
}

/// The text after `key` in a file of lines such as "Cpus_allowed_list:\t0-1"; "" where it is not there.
std::string field(const char* path, std::string_view key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) continue;
        const auto start = line.find_first_not_of(" \t", key.size());
        return start == std::string::npos ? "" : line.substr(start);
    }
    return "";
}

long kib(std::string_view key) { return std::atol(field("/proc/self/smaps_rollup", key).c_str()); }

// ---- generating ----

struct Run {
    int tokens = 0;
    double seconds = 0;
    int threads_seen = 0;
};

/// Decodes greedily until both `tokens` and `hold` seconds are reached; a full context starts over.
/// Errors: nothing, where llama.cpp cannot decode.
std::optional<Run> generate(llama_context* context, int tokens, double hold, int seed) {
    using Clock = std::chrono::steady_clock;
    const llama_sampler_ptr greedy{llama_sampler_init_greedy()};
    const int room = static_cast<int>(llama_n_ctx(context));
    std::vector<llama_token> next;
    int position = room;
    Run run;
    Clock::time_point start;
    while (!stopping && (run.tokens < tokens || run.seconds < hold)) {
        if (position + 1 >= room) {
            llama_memory_clear(llama_get_memory(context), true);
            next = {1, 5, 9, 12};
            for (auto& token : next) token += seed % 64;
            position = 0;
        }
        if (llama_decode(context, llama_batch_get_one(next.data(), static_cast<int>(next.size()))) != 0)
            return std::nullopt;
        position += static_cast<int>(next.size());
        next = {llama_sampler_sample(greedy.get(), context, -1)};
        if (start == Clock::time_point{}) {  // the prompt is not part of the speed
            start = Clock::now();
            run.threads_seen = own_threads();
            continue;
        }
        ++run.tokens;
        run.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
    return run;
}

// ---- GET /health and POST /completion, as llama-server answers them: 503 while loading, then 200 ----

/// The number behind "KEY": in a body of JSON; `fallback` where there is none.
int number_in(const std::string& body, const std::string& key, int fallback) {
    const auto at = body.find('"' + key + "\":");
    return at == std::string::npos ? fallback : std::atoi(body.c_str() + at + key.size() + 3);
}

class Server {
public:
    /// Errors: false where the address cannot be had.
    bool start(const common_params& params) {
        // The same pool of threads as llama-server's, from the same library.
        const int cpus = static_cast<int>(std::thread::hardware_concurrency());
        const int threads = params.n_threads_http > 0 ? params.n_threads_http : std::max(4 + 4, cpus - 1);
        server_.new_task_queue = [threads] { return new httplib::ThreadPool(threads, threads + 1024); };
        server_.Get("/health", [this](const httplib::Request&, httplib::Response& response) {
            if (!ready_) response.status = 503;
            response.set_content(ready_ ? R"({"status":"ok"})" : R"({"error":{"code":503,"message":"Loading model"}})",
                                 "application/json");
        });
        server_.Post("/completion", [this](const httplib::Request& request, httplib::Response& response) {
            const int tokens = std::clamp(number_in(request.body, "n_predict", kDefaultTokens), 1, 4096);
            const auto run = ready_ ? generate(tokens, 0, number_in(request.body, "seed", 0)) : std::nullopt;
            if (!run) response.status = 503;
            response.set_content(
                run ? R"({"tokens_predicted":)" + std::to_string(run->tokens) + '}' : R"({"error":{}})",
                "application/json");
        });
        if (!server_.bind_to_port(params.hostname, params.port)) return false;
        thread_ = std::thread([this] { server_.listen_after_bind(); });
        server_.wait_until_ready();
        return true;
    }
    void ready(llama_context* context) {
        context_ = context;
        ready_ = true;
    }
    /// One at a time.
    std::optional<Run> generate(int tokens, double hold, int seed) {
        const std::lock_guard lock(mutex_);
        return ::generate(context_, tokens, hold, seed);
    }
    ~Server() {
        if (!thread_.joinable()) return;
        server_.stop();
        thread_.join();
    }

private:
    httplib::Server server_;
    std::thread thread_;
    std::atomic<bool> ready_{false};
    std::mutex mutex_;
    llama_context* context_ = nullptr;
};

void print_json(const Run& run, llama_context* context) {
    const double speed = run.seconds > 0 ? run.tokens / run.seconds : 0;
    std::printf(
        R"({"tokens":%d,"seconds":%.3f,"tokens_per_second":%.2f,"threads":%d,"threads_batch":%d,"process_threads":%d,)"
        R"("huge_kb":%ld,"anon_huge_kb":%ld,"cpus_allowed":"%s","mems_allowed":"%s"})"
        "\n",
        run.tokens, run.seconds, speed, llama_n_threads(context), llama_n_threads_batch(context), run.threads_seen,
        kib("Private_Hugetlb:") + kib("Shared_Hugetlb:"), kib("AnonHugePages:"),
        field("/proc/self/status", "Cpus_allowed_list:").c_str(),
        field("/proc/self/status", "Mems_allowed_list:").c_str());
    std::fflush(stdout);
}

int fail(std::string_view name, const std::string& what) {
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(name.size()), name.data(), what.c_str());
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    std::string_view name = argv[0];
    name.remove_prefix(name.rfind('/') + 1);  // npos + 1 is 0
    const bool server = name == "llama-server";

    std::vector<char*> args(argv, argv + argc);
    const auto hold = take_hold(args);
    if (!hold) return fail(name, "--front-hold wants a number of seconds, such as 5");
    args.push_back(nullptr);

    common_init();
    common_params params;
    const auto example = server ? LLAMA_EXAMPLE_SERVER : LLAMA_EXAMPLE_CLI;
    if (!common_params_parse(static_cast<int>(args.size()) - 1, args.data(), params, example, print_usage)) return 1;
    if (params.model.path.empty()) return fail(name, "no model; name one with -m FILE");
    params.n_parallel = 1;  // one sequence; llama.cpp's own default here is "automatic"

    if (server) {
        std::signal(SIGTERM, [](int) { stopping = true; });
        std::signal(SIGINT, [](int) { stopping = true; });
    }
    llama_backend_init();
    llama_numa_init(params.numa);

    Server serving;
    if (server && !serving.start(params))
        return fail(name, "cannot listen on " + params.hostname + ":" + std::to_string(params.port) +
                              "; choose another with --port");

    const auto loaded = common_init_from_params(params);
    if (loaded->context() == nullptr) return fail(name, params.model.path + ": llama.cpp cannot load it; -v says why");
    serving.ready(loaded->context());

    const auto run = serving.generate(params.n_predict < 0 ? kDefaultTokens : params.n_predict, *hold, 0);
    if (!run) return fail(name, "llama.cpp cannot decode; -v says why");
    print_json(*run, loaded->context());

    while (server && !stopping) ::usleep(50'000);
    return 0;
}
