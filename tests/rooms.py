#!/usr/bin/env python3
"""The ctest `rooms`: every #include and link of every room against the table in ARCHITECTURE.md.

rooms.py SOURCE_DIR      exit 1 and one line for each breach
rooms.py --self-test     shows that a breach is found
"""
import pathlib
import re
import sys
import tempfile

# How a library shows in an #include and in target_link_libraries.
LIBRARIES = {
    "libsystemd": (r"systemd/", r"PkgConfig::LIBSYSTEMD"),
    "hwloc": (r"hwloc", r"PkgConfig::HWLOC"),
    "libnuma": (r"numa(if)?\.h", r"numa::numa"),
    "yaml-cpp": (r"yaml-cpp/", r"yaml-cpp(::yaml-cpp)?"),
    "spdlog": (r"(spdlog|fmt)/", r"(spdlog|fmt)::\w+"),
    "CLI11": (r"CLI/", r"CLI11::CLI11"),
    "nlohmann-json": (r"nlohmann/", r"nlohmann_json::nlohmann_json"),
    "threads": (r"(thread|mutex|condition_variable|future)$", r"Threads::Threads"),
}
ALWAYS_LINKED = {"numalease_flags"}


def read_table(architecture: str) -> dict[str, set[str]]:
    rooms = {}
    for line in architecture.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and (name := re.fullmatch(r"`([\w/]+)`", cells[0])):
            rooms[name[1]] = {word.strip() for word in cells[2].split(",")}
    return rooms


def breaches(source: pathlib.Path) -> list[str]:
    rooms = read_table((source / "ARCHITECTURE.md").read_text())
    if len(rooms) < 2:
        return ["ARCHITECTURE.md: no table of rooms"]
    names = {path.split("/")[-1] for path in rooms}
    found = []
    for path, allowed in rooms.items():
        own = path.split("/")[-1]
        folder = source / path
        files = [f for f in sorted(folder.rglob("*")) if f.suffix in (".cpp", ".hpp")]
        if not files:
            found.append(f"{path}: no such room")
        for file in files:
            for number, line in enumerate(file.read_text().splitlines(), 1):
                include = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
                if not include:
                    continue
                room = include[1].split("/")[0]
                if room in names and "/" in include[1]:
                    used = room
                else:
                    used = next((lib for lib, (inc, _) in LIBRARIES.items() if re.match(inc, include[1])), None)
                if used and used != own and used not in allowed:
                    found.append(f"{file.relative_to(source)}:{number}: {own} may not use {used}")
        for number, line in enumerate((folder / "CMakeLists.txt").read_text().splitlines(), 1):
            for word in re.findall(r"[\w:+-]+", line.split("#")[0]):
                used = None
                if word.startswith("numalease::"):
                    used = word.split("::")[1]
                else:
                    used = next((lib for lib, (_, link) in LIBRARIES.items() if re.fullmatch(link, word)), None)
                if used and word not in ALWAYS_LINKED and used != own and used not in allowed:
                    found.append(f"{path}/CMakeLists.txt:{number}: {own} may not link {used}")
    return found


def self_test() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "ARCHITECTURE.md").write_text("| `a` | x | std | y |\n| `b` | x | a, hwloc | y |\n")
        for room, text, links in (("a", '#include "b/x.hpp"\n#include <hwloc.h>\n', "numalease::b\n"),
                                  ("b", '#include "a/x.hpp"\n#include <hwloc.h>\n', "numalease::a PkgConfig::HWLOC\n")):
            (root / room).mkdir()
            (root / room / "x.cpp").write_text(text)
            (root / room / "CMakeLists.txt").write_text(links)
        found = breaches(root)
        expected = ["a/x.cpp:1: a may not use b", "a/x.cpp:2: a may not use hwloc", "a/CMakeLists.txt:1: a may not link b"]
        return [] if found == expected else [f"self-test: found {found}"]


if __name__ == "__main__":
    problems = self_test() if sys.argv[1:] == ["--self-test"] else breaches(pathlib.Path(sys.argv[1]))
    print("\n".join(problems) or "every include and link is allowed")
    sys.exit(1 if problems else 0)
