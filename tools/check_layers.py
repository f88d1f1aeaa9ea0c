#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the compiler does not: who includes whom, and how files are kept.

Prints one line per fault and exits 1 if there is any. The order of rooms is explained in
docs/architecture.md and docs/adr/0001-order-of-rooms.md.
"""

import re
import sys
from pathlib import Path

# ---- What is allowed -------------------------------------------------------------------------------

# From the ground up: a room may use the public headers of itself and of every room before it.
ROOMS = ["base", "tensor", "record", "device", "mask", "sequence", "numeric", "mask_info", "draw", "kernels",
         "ops/core", "ops/identity", "ops/config", "ops/execution", "operations", "bindings"]

# The room that each public header belongs to; ejkernel.h includes them all and so belongs to the highest.
PUBLIC = {
    "status.h": "base",
    "tensor.h": "tensor",
    "record.h": "record",
    "device.h": "device",
    "cuda.h": "device",
    "gpu_measure.h": "device",
    "sequence.h": "sequence",
    "numeric.h": "numeric",
    "splash_mask.h": "mask",
    "mask_drawing.h": "draw",
    "mask_info.h": "mask_info",
    "registry.h": "kernels",
    "hooks.h": "ops/core",
    "params.h": "ops/core",
    "kernel.h": "ops/core",
    "chooser.h": "ops/core",
    "context.h": "ops/core",
    "plan.h": "ops/core",
    "problem.h": "ops/core",
    "identity.h": "ops/identity",
    "labels.h": "ops/identity",
    "config.h": "ops/config",
    "selector.h": "ops/config",
    "tuning.h": "ops/execution",
    "benchmark.h": "ops/execution",
    "executor.h": "ops/execution",
    "states.h": "ops/execution",
    "recording.h": "ops/execution",
    "batch.h": "ops/execution",
    "lowered.h": "ops/execution",
    "profiler.h": "ops/execution",
    "attention.h": "operations",
    "attention_merge.h": "operations",
    "flash_attention.h": "operations",
    "grouped_matmul.h": "operations",
    "matmul.h": "operations",
    "moe.h": "operations",
    "quantized_matmul.h": "operations",
    "mean_pooling.h": "operations",
    "paged_attention.h": "operations",
    "paged_cache.h": "operations",
    "flash_mla.h": "operations",
    "causal_conv1d.h": "operations",
    "state_space_v1.h": "operations",
    "gated_rms_norm.h": "operations",
    "blocksparse_attention.h": "operations",
    "scaled_dot_product_attention.h": "operations",
    "gated_delta_rule.h": "operations",
    "gla_attention.h": "operations",
    "kda_attention.h": "operations",
    "lightning_attention.h": "operations",
    "ragged_gated_delta_rule.h": "operations",
    "recurrent.h": "operations",
    "recurrent_attention.h": "operations",
    "rwkv4.h": "operations",
    "rwkv6.h": "operations",
    "rwkv7.h": "operations",
    "rwkv7_mul.h": "operations",
    "ejkernel.h": "operations",
}

# Private headers of other rooms that a room may include; its own are always allowed.
PRIVATE = {
    "base": [],
    "tensor": ["base"],
    "record": ["base", "tensor"],
    "device": ["base", "tensor"],
    "sequence": ["base", "device"],
    "numeric": ["base", "device"],
    "mask": ["base"],
    "draw": ["base", "mask"],
    "mask_info": ["base"],
    "kernels": ["base", "tensor", "device"],
    "ops/core": ["base", "tensor", "record", "device"],
    "ops/identity": ["base", "record"],
    "ops/config": ["base"],
    "ops/execution": ["base", "record", "device", "ops/core"],
    "operations": ["base", "tensor", "device", "kernels", "ops/core"],
    "bindings": ["base"],
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

# Rooms that serve every operation, and words that only an operation has; the names of the operations come besides.
GENERIC = {"base", "tensor", "record", "device", "kernels", "ops/core", "ops/identity", "ops/config", "ops/execution",
           "bindings"}
OPERATION_WORDS = ["flash", "Hkv", "cum_seqlens", "fwd_block_mask"]

MAX_LINES = 600
CODE = {".c", ".h", ".cu", ".cuh", ".inc", ".list", ".py", ".sh", ".cmake"}
MAX_COLUMNS = 120
NARROW = ["include", "src", "cli"]  # but for rows of lists
SKIPPED = (".git", "build", "third_party", "examples/data")

# ---- The checks ------------------------------------------------------------------------------------

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# A folder of somebody's machine at the start of a path; not the same word inside a longer path or URL.
MACHINE = re.compile(r"(?<![\w./}~*])/(?:work|root|tmp|home)(?![\w.-])")


def room_of(path):
    """The room or outside folder a file lies in, '' for the rest of the tree."""
    parts = path.parts
    if parts[0] == "src":
        inner = "/".join(parts[1:-1])
        rooms = [r for r in ROOMS if inner == r or inner.startswith(r + "/")]
        return rooms[0] if rooms else "src/" + inner
    if parts[:2] == ("include", "ejkernel"):
        return PUBLIC.get(path.name, "?")
    return parts[0]


def public_fault(room, header):
    if header not in PUBLIC:
        return "is not in the table of public headers"
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
        yield f"{path}: {room} is not a room of ROOMS, nor a public header of PUBLIC"
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            fault = include_fault(root, path, *match.groups())
            if fault:
                yield f"{path}:{number}: {match.group(2)} {fault}"


def operation_word(root):
    """Matches what a generic room may not say: words of an operation, and every `operation` of the lists of kernels."""
    lists = (root / "src/operations").rglob("kernels.list")
    names = [line.split()[1] for file in lists for line in file.read_text().splitlines() if line.startswith("operation ")]
    return re.compile(r"(?<![A-Za-z])(" + "|".join(OPERATION_WORDS) + r")|\b(" + "|".join(n for n in names if "_" in n) + r")\b")


def check_generic(path, lines, word):
    for number, line in enumerate(lines, 1):
        match = word.search(line)
        if match:
            yield f"{path}:{number}: '{match.group(0)}' belongs to an operation, not to a room that serves all"


def check_rooms_page(root):
    """The rooms of docs/architecture.md are those of ROOMS, in the same order, and those of the tree."""
    page = re.findall(r"^\| `src/([a-z_/]+)/` \|", (root / "docs/architecture.md").read_text(), re.M)
    if page != ROOMS:
        yield f"docs/architecture.md: has the rooms {' '.join(page)}, expected {' '.join(ROOMS)}"
    tree = {room_of(p.relative_to(root)) for p in (root / "src").rglob("*.[ch]")}
    if tree != set(ROOMS):
        yield f"src: has the rooms {' '.join(sorted(tree))}, expected those of ROOMS"


def check_text(path, lines):
    code = path.suffix in CODE or path.name == "CMakeLists.txt"
    if code and len(lines) > MAX_LINES:
        yield f"{path}: {len(lines)} lines, at most {MAX_LINES} are allowed"
    narrow = code and path.suffix != ".list" and path.parts[0] in NARROW
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


def main():
    root = Path(__file__).resolve().parent.parent
    faults = list(check_rooms_page(root))
    word = operation_word(root)
    for path, lines in text_files(root):
        faults += check_text(path, lines)
        if path.parts[0] == "src" and room_of(path) in GENERIC or path.parts[:2] == ("python", "libejkernel"):
            faults += check_generic(path, lines, word)
        if path.suffix in {".c", ".h", ".inc"}:
            faults += check_includes(root, path, lines)
    print("\n".join(faults) if faults else "every include goes down, every file is short, every line narrow")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
