// Stands in for polkit on a private bus: answers CheckAuthorization from a table, and prints every question.
//
//     fake_polkit --bus ADDRESS --table FILE
//
// A line of the table: ACTION yes|no|challenge|silent; the file is read at each question, what it does not name is
// "no". Prints "ready" once it owns the name, then "ACTION KIND DETAIL FLAGS" for each question, where KIND DETAIL is
// "system-bus-name :1.5" or "unix-process 1234".

#include <systemd/sd-bus.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace {

std::string table;

std::string verdict_on(const std::string& action) {
    std::ifstream file(table);
    for (std::string name, verdict; file >> name >> verdict;)
        if (name == action) return verdict;
    return "no";
}

/// (sa{sv}): the kind, and the name or the PID that goes with it.
int read_subject(sd_bus_message* m, std::string& kind, std::string& detail) {
    const char* text = nullptr;
    int r = sd_bus_message_enter_container(m, 'r', "sa{sv}");
    if (r >= 0) r = sd_bus_message_read(m, "s", &text);
    if (r < 0) return r;
    kind = text;
    r = sd_bus_message_enter_container(m, 'a', "{sv}");
    while (r >= 0 && (r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
        const char* key = nullptr;
        unsigned pid = 0;
        r = sd_bus_message_read(m, "s", &key);
        if (r >= 0 && std::strcmp(key, "name") == 0) {
            r = sd_bus_message_read(m, "v", "s", &text);
            if (r >= 0) detail = text;
        } else if (r >= 0 && std::strcmp(key, "pid") == 0) {
            r = sd_bus_message_read(m, "v", "u", &pid);
            if (r >= 0) detail = std::to_string(pid);
        } else if (r >= 0) {
            r = sd_bus_message_skip(m, "v");
        }
        if (r >= 0) r = sd_bus_message_exit_container(m);
    }
    if (r >= 0) r = sd_bus_message_exit_container(m);
    return r >= 0 ? sd_bus_message_exit_container(m) : r;
}

int on_check(sd_bus_message* m, void* /*data*/, sd_bus_error* /*error*/) {
    std::string kind;
    std::string detail;
    const char* action = nullptr;
    unsigned flags = 0;
    int r = read_subject(m, kind, detail);
    if (r >= 0) r = sd_bus_message_read(m, "s", &action);
    if (r >= 0) r = sd_bus_message_skip(m, "a{ss}");
    if (r >= 0) r = sd_bus_message_read(m, "u", &flags);
    if (r < 0) return r;
    std::printf("%s %s %s %u\n", action, kind.c_str(), detail.c_str(), flags);
    std::fflush(stdout);
    const auto verdict = verdict_on(action);
    if (verdict == "silent") return 1;  // taken, and never answered
    return sd_bus_reply_method_return(m, "(bba{ss})", verdict == "yes", verdict == "challenge", 0);
}

const sd_bus_vtable kTable[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_METHOD("CheckAuthorization", "(sa{sv})sa{ss}us", "(bba{ss})", on_check, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_VTABLE_END,
};

int serve(sd_bus* bus, const char* address) {
    int r = sd_bus_set_address(bus, address);
    if (r >= 0) r = sd_bus_set_bus_client(bus, 1);
    if (r >= 0) r = sd_bus_start(bus);
    if (r >= 0)
        r = sd_bus_add_object_vtable(bus, nullptr, "/org/freedesktop/PolicyKit1/Authority",
                                     "org.freedesktop.PolicyKit1.Authority", kTable, nullptr);
    if (r >= 0) r = sd_bus_request_name(bus, "org.freedesktop.PolicyKit1", 0);
    if (r < 0) return r;
    std::puts("ready");
    std::fflush(stdout);
    while (r >= 0) {
        r = sd_bus_process(bus, nullptr);
        if (r == 0) r = sd_bus_wait(bus, UINT64_MAX);
    }
    return r;
}

}  // namespace

int main(int argc, char** argv) {
    const char* address = nullptr;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (std::strcmp(argv[i], "--bus") == 0) address = argv[i + 1];
        if (std::strcmp(argv[i], "--table") == 0) table = argv[i + 1];
    }
    sd_bus* bus = nullptr;
    if (address == nullptr || table.empty() || sd_bus_new(&bus) < 0) {
        std::fputs("fake_polkit --bus ADDRESS --table FILE\n", stderr);
        return 64;
    }
    const int r = serve(bus, address);
    std::fprintf(stderr, "fake_polkit: %s\n", std::strerror(-r));
    return 1;
}
