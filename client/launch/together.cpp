#include "launch/together.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace numalease::client {

Together::Pipe::Pipe() {
    if (pipe2(ends.data(), O_CLOEXEC) < 0) ends = {-1, -1};
}

Together::Pipe::~Pipe() {
    close_end(0);
    close_end(1);
}

void Together::Pipe::close_end(std::size_t end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
}

bool Together::Pipe::read_byte() const {
    char byte = 0;
    ssize_t got = 0;
    do got = read(ends[0], &byte, 1);
    while (got < 0 && errno == EINTR);
    return got == 1;
}

bool Together::Pipe::write_byte() const { return write(ends[1], "", 1) == 1; }

void Together::add() { can_.push_back(std::make_unique<Pipe>()); }
void Together::added() { can_.back()->close_end(1); }

void Together::enter() { go_.close_end(1); }

bool Together::wait_for_all(std::size_t index) { return can_[index]->write_byte() && go_.read_byte(); }

bool Together::begin() {
    const bool all = std::ranges::all_of(can_, [](const auto& pipe) { return pipe->read_byte(); });
    for (std::size_t i = 0; all && i < can_.size(); ++i)
        if (!go_.write_byte()) break;  // who waits then sees the end of it
    go_.close_end(1);
    return all;
}

}  // namespace numalease::client
