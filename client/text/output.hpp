#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/error.hpp"
#include "model/value.hpp"

/// What reaches a person: text that cannot drive their terminal, tables, JSON, and failures as one line.
namespace numalease::client {

/// Control characters and bytes that are not UTF-8 as \xNN: text of another user must not move our cursor.
std::string printable(std::string_view text);

/// One word for a POSIX shell: as it is where that is safe, else in single quotes.
std::string shell_word(std::string_view text);
/// `A=1 B='x y' command arg`, ready to paste.
std::string shell_line(const std::vector<std::string>& argv);

/// Columns padded to their widest cell; the last one is cut to `width` (0: not at all). Cells are made printable.
using Table = std::vector<std::vector<std::string>>;
std::string table_text(const Table& rows, std::size_t width);

/// Width of standard output: COLUMNS, else the terminal's, else 0 for "no limit".
std::size_t terminal_width();

/// Indented JSON. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const model::Dict& dict);
std::string json_text(const model::Value::Dicts& list);

/// `numa-leasectl: …` on standard error, one line. Returns the exit status of DESIGN §11.
int say_failure(const model::Error& error);
/// `numa-leasectl: …` on standard error for what is worth knowing and is no failure.
void say(std::string_view line);
/// Writes to standard output; a failure to do so is an exit status of 125.
int print(std::string_view text);

/// "alice", or the number where it has no name.
std::string user_name(std::uint64_t uid);

}  // namespace numalease::client
