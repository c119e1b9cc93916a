#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "service/options.hpp"
#include "service/run.hpp"

namespace {

/// Where a standard descriptor is closed, a file of ours would get its number, and the log would go there. What stands
/// in for it is opened the wrong way round, so that using it fails as it did.
void fill_standard_descriptors() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
}

/// Whatever shell, session or service started us has left its own habits.
void leave_the_callers_habits() {
    fill_standard_descriptors();
    umask(022);                // others read the runtime directory, and only we write there
    signal(SIGPIPE, SIG_IGN);  // a launcher or a log that went away is no reason to die
    rlimit files{};            // each holder and each connection is a descriptor or two; nothing is executed from here
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

int main(int argc, char** argv) {
    using namespace numalease;
    leave_the_callers_habits();
    const auto options = service::parse_options(argc, argv);
    if (!options) {
        std::fprintf(stderr, "numa-leased: %s\n", options.error().detail.c_str());
        return model::row_of(options.error().code).exit_status;
    }
    if (options->help || options->version) {
        std::fputs((options->help ? service::usage() : service::version_text()).c_str(), stdout);
        return 0;
    }
    return service::run(*options);
}
