#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clang's warnings in what a build folder compiles and clang-tidy does not read: it tells of the others itself.

    check_clang.py BUILD_DIR

Files with instructions of their own are compiled, as clang finds only then that a function needs others than its
caller has; the rest is parsed. Nothing is linked: `make check-long` builds everything with clang. Prints what clang
says of each file that fails and exits 1 if there is any.
"""

import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def read_by_tidy():
    """The pattern of files in check_tidy.sh."""
    text = (ROOT / "tools" / "check_tidy.sh").read_text()
    return re.compile(re.search(r'filter="\^\$root/(.*\bops\b.*)"', text).group(1))


def command_of(entry):
    words = shlex.split(entry["command"])
    if Path(words[0]).name == "ccache":
        words = words[1:]
    at = words.index("-o")
    words = ["clang", *words[1:at], *words[at + 2:]]
    words = [w for w in words if w != "-c" and not re.match(r"-O\d|-f(no-)?(tree|peel)-", w)]
    if any(re.match(r"-m(avx|amx|fma|f16c|bmi)", w) for w in words):
        return [*words, "-O0", "-c", "-o", "/dev/null"]
    return [*words, "-fsyntax-only"]


def run(entry):
    made = subprocess.run(command_of(entry), cwd=entry["directory"], capture_output=True, text=True)
    return entry["file"], made.returncode, made.stderr


def main():
    entries = json.loads((Path(sys.argv[1]) / "compile_commands.json").read_text())
    pattern = read_by_tidy()
    rest = [e for e in entries if not pattern.match(e["file"].removeprefix(f"{ROOT}/"))]
    with ThreadPoolExecutor(2) as pool:
        failed = [made for made in pool.map(run, rest) if made[1] != 0]
    for file, _, said in failed:
        print(f"{file}:\n{said[:2000]}")
    if not failed:
        print(f"{len(rest)} files have no warning of clang's")
    return 1 if failed or not rest else 0


if __name__ == "__main__":
    sys.exit(main())
