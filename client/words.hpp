#pragma once

#include "engines/engine.hpp"

namespace CLI {
class App;
}

namespace numalease::client {

/// A command line before CLI11 sees it.
struct Words {
    Argv ours;     ///< options and `positionals` words that are not
    Argv command;  ///< what comes behind `--`, or from the first word that is neither; never looked into
};

/// Where our words end and the command begins: `app` knows which of its options take a value. `--wait` and `--require`
/// may stand without one: they get "forever" and "all" where the next word is none of theirs.
Words split_words(const CLI::App& app, const Argv& words, std::size_t positionals);

}  // namespace numalease::client
