#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles each header of kernels and operations by itself, for the tier that it is meant for.

    check_headers.py BUILD_DIR

A header includes what it uses, so that no file has to include others in a certain order. Bodies that the list of
kernels names are left out: the build compiles them by themselves. Prints the first errors of each header that fails
and exits 1 if there is any.
"""

import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

# The tier of a header, by its path; scalar where none of these is found.
TIERS = [
    (r"/amx\w*/", "amx"),
    (r"/vec_(avx2|avx512|avx512_vnni|avx512_bf16|neon)\.h$", None),
    (r"bf16_dot", "avx512_bf16"),
]

# What has to be included before: the sizes of a product in registers are macros of its kernel.
BEFORE = dict.fromkeys(("kernels/simd/gemm_body.h", "kernels/simd/pack_body.h"),
                       "operations/attention/cpu/tile/tile_shape.h")


def tier_of(header):
    for pattern, tier in TIERS:
        found = re.search(pattern, header)
        if found:
            return tier or found.group(1)
    return "scalar"


def flags_of_tiers(commands):
    """The compiler and its flags for each tier that this build has."""
    flags = {}
    for entry in commands:
        path = Path(entry["file"])
        tier = "amx" if path.name == "amx.c" else None
        if path.parent.name == "generated":
            found = re.search(r"^#define EJKI_TIER (\w+)$", path.read_text(), re.M)
            tier = found.group(1) if found else None
        if tier is None or tier in flags or "/tests/" in entry.get("output", ""):
            continue
        words = [w for w in shlex.split(entry["command"]) if not w.startswith(("-M", "-O", "-g"))]
        if Path(words[0]).name == "ccache":
            words = words[1:]
        keep = [w for w in words if w.startswith(("-I", "-isystem", "-m", "-std", "-D", "-f", "--target"))]
        flags[tier] = [words[0], *keep, "-O1", f"-DEJKI_TIER_{tier.upper()}", f"-DEJKI_TIER={tier}"]
    return flags


def compile_alone(header, flags):
    text = "".join(f'#include "{name}"\n' for name in (BEFORE.get(header), header) if name)
    # Functions of a header are static; by itself it uses none of them.
    made = subprocess.run([*flags, "-Wall", "-Wextra", "-Wno-unused", "-Wno-unknown-pragmas", "-Werror",
                           "-fsyntax-only", "-x", "c", "-"], input=text, capture_output=True, text=True)
    return header, made.returncode, [l for l in made.stderr.splitlines() if "error" in l][:3] or [made.stderr[:300]]


def main():
    build = Path(sys.argv[1])
    commands = json.loads((build / "compile_commands.json").read_text())
    flags = flags_of_tiers(commands)
    bodies = {name for path in (build / "src" / "generated").glob("*.c")
              for name in re.findall(r'^#include "(\w+/.*_body\.h)"$', path.read_text(), re.M)}
    headers = sorted(str(path.relative_to(SRC))
                     for room in ("kernels", "operations") for path in (SRC / room).rglob("*.h"))
    jobs = [(h, flags[tier_of(h)]) for h in headers if h not in bodies and tier_of(h) in flags]
    with ThreadPoolExecutor(2) as pool:
        failed = [made for made in pool.map(lambda job: compile_alone(*job), jobs) if made[1] != 0]
    for header, _, errors in failed:
        print(f"src/{header} does not compile by itself:", *errors, sep="\n    ")
    if not failed:
        print(f"{len(jobs)} headers compile by themselves")
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
