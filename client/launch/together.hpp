#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace numalease::client {

/// Children of one process that begin together, or not at all: each says that it can, and then waits for the others.
/// The order is add(), fork, and in the parent added(), for one after the other.
class Together {
public:
    /// In the parent, before a child is forked; and after, so that the child's end is seen.
    void add();
    void added();

    /// In the child that was added as the `index`-th, first of all: nobody else's word may keep it waiting.
    void enter();
    /// In that child. False: somebody cannot, or the parent is gone.
    [[nodiscard]] bool wait_for_all(std::size_t index);

    /// In the parent: waits until each child can, or has ended; then lets them begin, or tells them not to.
    [[nodiscard]] bool begin();

private:
    /// Closed when it is no longer needed.
    struct Pipe {
        std::array<int, 2> ends{-1, -1};
        Pipe();
        Pipe(const Pipe&) = delete;
        Pipe& operator=(const Pipe&) = delete;
        ~Pipe();
        void close_end(std::size_t end);
        [[nodiscard]] bool read_byte() const;  ///< or the end of it: false
        [[nodiscard]] bool write_byte() const;
    };

    Pipe go_;
    std::vector<std::unique_ptr<Pipe>> can_;
};

}  // namespace numalease::client
