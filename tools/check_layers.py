#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the compiler does not: who includes whom, what rooms may say, and how files are kept.

Prints one line per fault and exits 1 if there is any. docs/adr/0001-order-of-rooms.md explains the order of rooms,
docs/architecture.md has them with their public headers. What is an operation's own needs no entry in either: a public
header that no row names is an operation's, and the words of an operation are read from lists of kernels and headers.
"""

import re
import sys
from pathlib import Path

# ---- What is allowed -------------------------------------------------------------------------------

# From the ground up: a room may use the public headers of itself and of every room before it.
ROOMS = ["base", "tensor", "record", "device", "mask", "sequence", "numeric", "mask_info", "draw", "kernels",
         "ops/core", "ops/identity", "ops/config", "ops/execution", "operations", "bindings"]

# Private headers of other rooms that a room may include; its own are always allowed.
PRIVATE = {
    "base": [],
    "tensor": ["base"],
    "record": ["base", "tensor"],
    "device": ["base", "tensor"],
    "sequence": ["base", "tensor", "device"],
    "numeric": ["base", "tensor", "device"],
    "mask": ["base"],
    "draw": ["base", "mask"],
    "mask_info": ["base", "tensor"],
    "kernels": ["base", "tensor", "device"],
    "ops/core": ["base", "tensor", "record", "device"],
    "ops/identity": ["base", "record"],
    "ops/config": ["base"],
    "ops/execution": ["base", "record", "device", "ops/core"],
    "operations": ["base", "tensor", "device", "kernels", "ops/core"],
    "bindings": ["base", "device", "ops/core"],
}

# Outside src: public headers and the folder's own only. tests may use anything.
OUTSIDE = ["cli", "python", "bench", "examples"]

# Headers of other libraries: the places that may see them.
EXTERNAL = {
    "cpuinfo.h": ["device"],
    "pthreadpool.h": ["device"],
    "dlpack/dlpack.h": ["tensor"],
    "Random123/threefry.h": ["numeric"],
    "jansson.h": ["tensor", "record", "device", "mask", "draw", "ops/core", "ops/identity", "ops/config",
                  "ops/execution", "cli"],
    "openssl/evp.h": ["device", "mask", "ops/identity"],
    "openssl/bn.h": ["ops/identity"],
    "openssl/err.h": ["ops/identity"],
    "sqlite3.h": ["ops/config"],
    "png.h": ["draw"],
    "xla/ffi/api/c_api.h": ["bindings"],
    "cmocka.h": [],
}

# Headers that the build generates: the places that may see them.
GENERATED = {"kernel_lines.h": ["kernels"], "operations.inc": ["operations"]}

# Rooms that serve every operation. They may not say words that only an operation has: beginnings of words, here; names
# of operations, but for a plain word; and those of their tensors and integers, as far as these are two words.
GENERIC = {"base", "tensor", "record", "device", "kernels", "ops/core", "ops/identity", "ops/config", "ops/execution",
           "bindings", "cli"}
ABOUT_ATTENTION = {"masks.py", "transformers.py"}  # of the Python package, which is generic otherwise
OPERATION_WORDS = ["flash", "Hkv", "Hq", "cum_seqlens", "fwd_block_mask", "block_table", "mamba",
                   "rwkv", "paged_", "moe_"]
PLAIN_WORDS = {"attention"}

MAX_LINES = 600
CODE = {".c", ".h", ".cu", ".cuh", ".inc", ".list", ".py", ".sh", ".cmake"}
MAX_COLUMNS = 120  # but for rows of lists
SKIPPED = (".git", "build", "third_party", "examples/data")

# ---- The checks ------------------------------------------------------------------------------------

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# A folder of somebody's machine at the start of a path; not the same word inside a longer path or URL.
MACHINE = re.compile(r"(?<![\w./}~*])/(?:work|root|tmp|home)(?![\w.-])")


def public_headers(root):
    """The room that each public header belongs to: as the page says, else that of the operations."""
    rows = re.findall(r"^\| `src/([a-z_/]+)/` \|.*\| ([^|]*) \|$", (root / "docs/architecture.md").read_text(), re.M)
    named = {header: room for room, cell in rows for header in re.findall(r"`(\w+\.h)`", cell)}
    return {path.name: named.get(path.name, "operations") for path in (root / "include/ejkernel").glob("*.h")}


ROOT = Path(__file__).resolve().parent.parent
PUBLIC = public_headers(ROOT)


def room_of(path):
    """The room or outside folder a file lies in, '' for the rest of the tree."""
    parts = path.parts
    if parts[0] == "src":
        inner = "/".join(parts[1:-1])
        rooms = [r for r in ROOMS if inner == r or inner.startswith(r + "/")]
        return rooms[0] if rooms else "src/" + inner
    if parts[:2] == ("include", "ejkernel"):
        return PUBLIC[path.name]
    return parts[0]


def public_fault(room, header):
    if header not in PUBLIC:
        return "is not found in include/ejkernel"
    if room in OUTSIDE:
        return None
    owner = PUBLIC[header]
    if ROOMS.index(owner) > ROOMS.index(room):
        return f"belongs to {owner}, which stands above {room}"
    return None


def private_fault(room, target):
    owner = room_of(target)
    if owner == room:
        return None
    if room in OUTSIDE:
        return f"is private to {owner}: only public headers are allowed here"
    if owner in PRIVATE[room]:
        return None
    return f"is private to {owner}, which {room} may not look into"


def include_fault(root, path, kind, name):
    """What is wrong with one include, or None."""
    room = room_of(path)
    if name.endswith(".c"):
        return "is a C file; shared bodies are called *_body.h or *.inc"
    if room == "tests":
        return None
    if name.startswith("ejkernel/"):
        return public_fault(room, name.removeprefix("ejkernel/"))
    if name in GENERATED:
        return None if room in GENERATED[name] else f"is not for {room}"
    if name in EXTERNAL:
        return None if room in EXTERNAL[name] else f"is not for {room}"
    if kind == "<":
        return None
    for target in (path.parent / name, Path("src") / name):
        if (root / target).is_file():
            target = (root / target).resolve().relative_to(root)
            return private_fault(room, target)
    return "is not found beside the file nor under src"


def check_includes(root, path, lines):
    room = room_of(path)
    if room not in ROOMS and room not in OUTSIDE and room != "tests":
        yield f"{path}: {room} is not a room of ROOMS"
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            fault = include_fault(root, path, *match.groups())
            if fault:
                yield f"{path}:{number}: {match.group(2)} {fault}"


def header_text(header):
    return (ROOT / "include/ejkernel" / header).read_text()


def operation_word():
    """Matches what a generic room may not say.

    Every `operation` of the lists of kernels but plain words, and every field of an operation's records, if it is two
    words and none that the headers of other rooms use, too.
    """
    lists = (ROOT / "src/operations").rglob("kernels.list")
    names = re.findall(r"^operation +(\w+)$", "\n".join(file.read_text() for file in lists), re.M)
    fields, shared = set(), set()
    for header, room in PUBLIC.items():
        if room == "operations":
            fields |= set(re.findall(r"\bF\(\s*[A-Z_]+,\s*(\w+),", header_text(header)))
        else:
            shared |= set(re.findall(r"\w+", header_text(header)))
    own = sorted({*names} - PLAIN_WORDS | {name for name in fields - shared if "_" in name and len(name) > 4})
    return re.compile(r"(?<![A-Za-z])(" + "|".join(OPERATION_WORDS) + r")|\b(" + "|".join(own) + r")\b")


def check_generic(path, lines, word):
    for number, line in enumerate(lines, 1):
        match = word.search(line)
        if match:
            yield f"{path}:{number}: '{match.group(0)}' belongs to an operation, not to a room that serves all"


def check_public(root):
    """Public headers that the page names exist; the others are included by an operation, whose they are."""
    rows = re.findall(r"^\| `src/.*", (root / "docs/architecture.md").read_text(), re.M)
    for header in re.findall(r"`(\w+\.h)`", " ".join(row.split("|")[3] for row in rows)):
        if header not in PUBLIC:
            yield f"docs/architecture.md: names {header}, which is not in include/ejkernel"
    sources = "".join(path.read_text() for path in sorted((root / "src/operations").rglob("*.[ch]")))
    for header, room in PUBLIC.items():
        if room == "operations" and f"<ejkernel/{header}>" not in sources:
            yield f"include/ejkernel/{header}: no row of docs/architecture.md names it, and no operation includes it"


def check_rooms_page(root):
    """The rooms of docs/architecture.md are those of ROOMS, in the same order, and those of the tree; families, too."""
    rows = dict(re.findall(r"^\| `src/([a-z_/]+)/` \|(.*)", (root / "docs/architecture.md").read_text(), re.M))
    if list(rows) != ROOMS:
        yield f"docs/architecture.md: has the rooms {' '.join(rows)}, expected {' '.join(ROOMS)}"
    families = sorted(path.name for path in (root / "src/operations").iterdir() if path.is_dir())
    named = re.findall(r"`(\w+)/`", rows.get("operations", "").split(".")[0])
    if named != families:
        yield f"docs/architecture.md: has the families {' '.join(named)}, expected {' '.join(families)}"
    tree = {room_of(p.relative_to(root)) for p in (root / "src").rglob("*.[ch]")}
    if tree != set(ROOMS):
        yield f"src: has the rooms {' '.join(sorted(tree))}, expected those of ROOMS"


def check_decisions(root):
    """Every page of docs/adr has its line under "Decisions" of docs/architecture.md."""
    decisions = (root / "docs/architecture.md").read_text().split("## Decisions")[1]
    named = set(re.findall(r"\(adr/([\w-]+\.md)\)", decisions))
    for page in {path.name for path in (root / "docs/adr").glob("*.md")} ^ named:
        yield f"docs/adr/{page}: stands in only one of the folder and the list of docs/architecture.md"


def check_example(root):
    """The operation that CONTRIBUTING.md walks through has no more files and lines than the page says."""
    said = re.search(r"`(\w+)` and its gradient, which are (\d+) files of at most (\d+)\s+lines",
                     (root / "CONTRIBUTING.md").read_text())
    if not said:
        yield "CONTRIBUTING.md: does not say how many files and lines its example has"
        return
    name = said.group(1)
    files = [root / f"include/ejkernel/{name}.h", root / f"docs/kernels/{name}.md", root / f"bench/suites/{name}.txt",
             root / f"tests/conformance/{name.split('_')[-1]}_case.c",
             *(file for file in (root / "src/operations").glob(f"*/{name}/**/*") if file.is_file())]
    count, lines = len(files), sum(len(file.read_text().splitlines()) for file in files)
    if count > int(said.group(2)) or lines > int(said.group(3)):
        yield f"{name}: has {count} files of {lines} lines, CONTRIBUTING.md says {said.group(2)} of {said.group(3)}"


def check_text(path, lines):
    code = path.suffix in CODE or path.name == "CMakeLists.txt"
    if code and len(lines) > MAX_LINES:
        yield f"{path}: {len(lines)} lines, at most {MAX_LINES} are allowed"
    narrow = code and path.suffix != ".list"
    for number, line in enumerate(lines, 1):
        if narrow and len(line) > MAX_COLUMNS:
            yield f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS} are allowed"
        if MACHINE.search(line):
            yield f"{path}:{number}: names a folder of one machine: {line.strip()[:80]}"


def text_files(root):
    """Paths of the text files of the tree, relative to it, with their lines."""
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root)
        if file.is_file() and not any(path.is_relative_to(folder) for folder in SKIPPED):
            try:
                yield path, file.read_text(encoding="utf-8").splitlines()
            except UnicodeDecodeError:
                pass


def is_generic(path):
    """Whether a file serves every operation."""
    if path.parts[:2] == ("python", "libejkernel"):
        return path.name not in ABOUT_ATTENTION
    return path.parts[0] in ("src", "cli") and room_of(path) in GENERIC


def main():
    faults = [*check_rooms_page(ROOT), *check_public(ROOT), *check_decisions(ROOT), *check_example(ROOT)]
    word = operation_word()
    for path, lines in text_files(ROOT):
        faults += check_text(path, lines)
        if is_generic(path):
            faults += check_generic(path, lines, word)
        if path.suffix in {".c", ".h", ".inc"}:
            faults += check_includes(ROOT, path, lines)
    print("\n".join(faults) if faults else "every include goes down, every file is short, every line narrow")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
