// A bus connection of its own process, driven by lines of JSON: what the tests run in other cgroups and as other users.
//
//     bus_client ADDRESS [PROGRAM ARG…]
//
// With PROGRAM, a child speaks for the connection while the process that opened it becomes PROGRAM: the bus and the
// kernel take that one for the caller.
//
// in:  {"id":1,"to":"org.numalease1","path":"/…","interface":"…","member":"…","signature":"s","args":["c1"],
//       "interactive":true,"quit":true}   quit: leave once it is sent
//      {"match":"type='signal'"}   {"own":"a.name"}   {"exec":["sleep","9"]}   {"spawn":["sleep","9"]}
// out: {"unique":":1.5"}   {"id":1,"reply":[…]}   {"id":1,"error":"name","text":"…"}   {"signal":"…","path":"…",…}

#include <fcntl.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

sd_bus* bus = nullptr;
sd_event* event = nullptr;

void say(const json& line) {
    std::puts(line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
    std::fflush(stdout);
}

[[noreturn]] void give_up(const char* what, int r) {
    say({{"error", what}, {"text", std::strerror(-r)}});
    std::exit(1);
}

int check(int r, const char* what) {
    if (r < 0) give_up(what, r);
    return r;
}

// ── Values ───────────────────────────────────────────────────────────────────────────────────────────────────────

json read_value(sd_bus_message* m);

json read_all(sd_bus_message* m) {
    json out = json::array();
    while (sd_bus_message_at_end(m, 0) == 0) out.push_back(read_value(m));
    return out;
}

json read_container(sd_bus_message* m, char type, const char* contents) {
    check(sd_bus_message_enter_container(m, type, contents), "enter");
    json out;
    if (type == 'a' && contents[0] == '{') {
        out = json::object();
        while (sd_bus_message_at_end(m, 0) == 0) {
            const auto pair = read_value(m);
            out[pair[0].is_string() ? pair[0].get<std::string>() : pair[0].dump()] = pair[1];
        }
    } else {
        out = read_all(m);
        if (type == 'v') out = json(out[0]);
    }
    check(sd_bus_message_exit_container(m), "exit");
    return out;
}

template <typename T>
json read_number(sd_bus_message* m, char type) {
    T value{};
    check(sd_bus_message_read_basic(m, type, &value), "read");
    return value;
}

json read_value(sd_bus_message* m) {
    char type = 0;
    const char* contents = nullptr;
    check(sd_bus_message_peek_type(m, &type, &contents), "peek");
    const char* text = nullptr;
    switch (type) {
        case 's':
        case 'o':
        case 'g': check(sd_bus_message_read_basic(m, type, &text), "read"); return text;
        case 'b': return read_number<int>(m, type) != 0;
        case 'y': return read_number<std::uint8_t>(m, type);
        case 'n': return read_number<std::int16_t>(m, type);
        case 'q': return read_number<std::uint16_t>(m, type);
        case 'i':
        case 'h': return read_number<std::int32_t>(m, type);
        case 'u': return read_number<std::uint32_t>(m, type);
        case 'x': return read_number<std::int64_t>(m, type);
        case 't': return read_number<std::uint64_t>(m, type);
        case 'd': return read_number<double>(m, type);
        default: return read_container(m, type, contents);
    }
}

/// Any whole type of what the tests send: s o u b t ay, h of a path and the flags to open it with, v of text, a{sv} of
/// text and numbers.
int append(sd_bus_message* m, const std::string& signature, const json& args) {
    int r = 0;
    std::size_t arg = 0;
    for (std::size_t i = 0; i < signature.size() && r >= 0; ++i) {
        const json& value = args.at(arg++);
        if (signature.compare(i, 5, "a{sv}") == 0) {
            r = sd_bus_message_open_container(m, 'a', "{sv}");
            for (const auto& [key, text] : value.items()) {
                if (r < 0) break;
                r = text.is_string()
                        ? sd_bus_message_append(m, "{sv}", key.c_str(), "s", text.get_ref<const std::string&>().c_str())
                        : sd_bus_message_append(m, "{sv}", key.c_str(), "u", text.get<std::uint32_t>());
            }
            if (r >= 0) r = sd_bus_message_close_container(m);
            i += 4;
        } else if (signature.compare(i, 2, "ay") == 0) {
            const auto bytes = value.get<std::vector<std::uint8_t>>();
            r = sd_bus_message_append_array(m, 'y', bytes.data(), bytes.size());
            i += 1;
        } else if (signature[i] == 's' || signature[i] == 'o') {
            r = sd_bus_message_append_basic(m, signature[i], value.get_ref<const std::string&>().c_str());
        } else if (signature[i] == 'h') {
            const int fd = open(value.at(0).get_ref<const std::string&>().c_str(),
                                value.at(1).get<int>() | O_CLOEXEC | O_NONBLOCK);
            if (fd < 0) give_up("open", -errno);
            r = sd_bus_message_append_basic(m, 'h', &fd);
            close(fd);
        } else if (signature[i] == 'v') {
            r = sd_bus_message_append(m, "v", "s", value.get_ref<const std::string&>().c_str());
        } else if (signature[i] == 'u' || signature[i] == 'b') {
            r = sd_bus_message_append(m, std::string(1, signature[i]).c_str(), value.get<std::uint32_t>());
        } else if (signature[i] == 't') {
            r = sd_bus_message_append(m, "t", value.get<std::uint64_t>());
        } else {
            r = -EINVAL;
        }
    }
    return r;
}

// ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────────────

int on_reply(sd_bus_message* m, void* data, sd_bus_error* /*error*/) {
    const auto id = reinterpret_cast<std::intptr_t>(data);
    if (const auto* error = sd_bus_message_get_error(m); error != nullptr)
        say({{"id", id}, {"error", error->name}, {"text", error->message != nullptr ? error->message : ""}});
    else
        say({{"id", id}, {"reply", read_all(m)}});
    return 0;
}

int on_signal(sd_bus_message* m, void* /*data*/, sd_bus_error* /*error*/) {
    say({{"signal", sd_bus_message_get_member(m)},
         {"interface", sd_bus_message_get_interface(m)},
         {"path", sd_bus_message_get_path(m)},
         {"sender", sd_bus_message_get_sender(m) != nullptr ? sd_bus_message_get_sender(m) : ""},
         {"args", read_all(m)}});
    return 0;
}

void call(const json& command) {
    sd_bus_message* m = nullptr;
    check(sd_bus_message_new_method_call(
              bus, &m, command.at("to").get<std::string>().c_str(), command.at("path").get<std::string>().c_str(),
              command.at("interface").get<std::string>().c_str(), command.at("member").get<std::string>().c_str()),
          "new call");
    check(append(m, command.value("signature", ""), command.value("args", json::array())), "append");
    if (command.value("interactive", false)) sd_bus_message_set_allow_interactive_authorization(m, 1);
    const auto id = command.value("id", std::intptr_t{0});
    check(sd_bus_call_async(bus, nullptr, m, on_reply, reinterpret_cast<void*>(id), UINT64_MAX), "call");
    sd_bus_message_unref(m);
    if (!command.value("quit", false)) return;
    sd_bus_flush(bus);
    std::_Exit(0);
}

std::vector<char*> argv_of(std::vector<std::string>& words) {
    std::vector<char*> out;
    for (auto& word : words) out.push_back(word.data());
    out.push_back(nullptr);
    return out;
}

void run(const json& command) {
    if (command.contains("member")) return call(command);
    if (command.contains("match")) {
        check(sd_bus_add_match(bus, nullptr, command["match"].get<std::string>().c_str(), on_signal, nullptr), "match");
        return say({{"matched", command["match"]}});
    }
    if (command.contains("own")) {
        check(sd_bus_request_name(bus, command["own"].get<std::string>().c_str(), 0), "own");
        return say({{"owned", command["own"]}});
    }
    auto words = command.at(command.contains("exec") ? "exec" : "spawn").get<std::vector<std::string>>();
    const auto argv = argv_of(words);
    if (command.contains("exec")) {
        say({{"exec", words[0]}});
        execvp(argv[0], argv.data());
        give_up("exec", -errno);
    }
    pid_t pid = 0;
    check(-posix_spawnp(&pid, argv[0], nullptr, nullptr, argv.data(), environ), "spawn");
    say({{"spawned", pid}});
}

int on_input(sd_event_source* /*source*/, int fd, std::uint32_t /*events*/, void* /*data*/) {
    static std::string pending;
    char buffer[65536];
    const auto got = read(fd, buffer, sizeof buffer);
    if (got <= 0) return sd_event_exit(event, 0);
    pending.append(buffer, static_cast<std::size_t>(got));
    for (auto end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
        const auto line = pending.substr(0, end);
        pending.erase(0, end + 1);
        run(json::parse(line));
    }
    return 0;
}

/// Whoever calls connect(2) is the caller, for good: the bus asks the kernel once. Source: unix(7), SO_PEERCRED.
int connect_to(const std::string& address) {
    const auto path = address.substr(address.find('=') + 1);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::strncpy(to.sun_path, path.c_str(), sizeof to.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) < 0) give_up("connect", -errno);
    return fd;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) return 64;
    const int fd = connect_to(argv[1]);
    if (argc > 2) {
        const pid_t child = fork();
        if (child < 0) give_up("fork", -errno);
        if (child > 0) {
            for (const int standard : {STDIN_FILENO, STDOUT_FILENO}) {
                const int null = open("/dev/null", O_RDWR);
                dup2(null, standard);
                close(null);
            }
            close(fd);
            execvp(argv[2], argv + 2);
            _exit(127);
        }
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    check(sd_event_new(&event), "event");
    check(sd_bus_new(&bus), "bus");
    check(sd_bus_set_fd(bus, fd, fd), "fd");
    check(sd_bus_set_bus_client(bus, 1), "client");
    check(sd_bus_start(bus), "start");
    check(sd_bus_attach_event(bus, event, 0), "attach");
    check(sd_event_add_io(event, nullptr, STDIN_FILENO, EPOLLIN, on_input, nullptr), "input");
    const char* unique = nullptr;
    check(sd_bus_get_unique_name(bus, &unique), "name");
    say({{"unique", unique}});
    sd_event_loop(event);
    std::_Exit(0);
}
