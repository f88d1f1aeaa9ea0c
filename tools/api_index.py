#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/api.md, the index of the public headers, from their own first sentences and @since marks, and the list
of them in ejkernel.h.

With --check it writes nothing, prints a line per fault and exits 1 if there is any: a header without a sentence or a
mark, a mark beyond VERSION, a page or a list that is out of date, an operation that README.md does not name.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include" / "ejkernel"
PAGE = ROOT / "docs" / "api.md"
WHOLE = HEADERS / "ejkernel.h"
HEAD = """# Public headers

`#include <ejkernel/ejkernel.h>` includes them all. To call an operation, start with `flash_attention.h`; to write a
kernel of your own, with `kernel.h`. "Since" is the version that brought the header; what came to it later is marked
where it is declared. `make docs` turns the headers into pages. This page is written by `tools/api_index.py`.

| header | what it is | since |
|---|---|---|
"""


def numbers(version):
    return tuple(int(part) for part in version.split("."))


def read(path):
    """The first sentence of a header and its own mark, either of them None if it is missing."""
    pattern = r"/\*\*\s*\n \* @file " + re.escape(path.name) + r"\n(.*?)\*/"
    comment = re.search(pattern, path.read_text(encoding="utf-8"), re.S)
    if not comment:
        return None, None
    text = "\n".join(line.removeprefix(" *").strip() for line in comment.group(1).splitlines())
    sentence = re.match(r"(.+?\.)(?=\s|$)", " ".join(text.split("\n\n")[0].split()))
    since = re.search(r"@since (\d+\.\d+)$", text, re.M)
    return sentence and sentence.group(1), since and since.group(1)


def unnamed_operations():
    """Operations of the lists of kernels, gradients apart, that README.md does not name."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lists = (ROOT / "src" / "operations").glob("*/*/kernels.list")
    names = re.findall(r"^operation (\w+)$", "".join(path.read_text(encoding="utf-8") for path in sorted(lists)), re.M)
    return [name for name in names if not name.endswith("_vjp") and f"`{name}`" not in readme]


def main():
    faults, rows, includes = [], [], []
    version = numbers((ROOT / "VERSION").read_text().strip())
    for path in sorted(HEADERS.glob("*.h")):
        sentence, since = read(path)
        name = f"include/ejkernel/{path.name}"
        if not sentence or not since:
            faults.append(f"{name}: the comment of the file has no {'sentence' if not sentence else '@since 0.1'}")
        for mark in re.findall(r"@since (\S+)", path.read_text(encoding="utf-8")):
            if not re.fullmatch(r"\d+\.\d+", mark) or numbers(mark) > version[:2]:
                faults.append(f"{name}: @since {mark} is no version so far")
        if path.name != "ejkernel.h":
            includes.append(f"#include <ejkernel/{path.name}>\n")
            rows.append(f"| [`{path.name}`](../{name}) | {(sentence or '').rstrip('.')} | {since} |\n")
    whole = re.sub(r"#include <[\s\S]*#include <.*\n", "".join(includes), WHOLE.read_text(encoding="utf-8"))
    for path, text in ((PAGE, HEAD + "".join(rows)), (WHOLE, whole)):
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            faults.append(f"{path.relative_to(ROOT)} is out of date: run tools/api_index.py")
    faults += [f"README.md does not name the operation {name}" for name in unnamed_operations()]
    print("\n".join(faults) if faults else f"{len(rows)} public headers, each with a sentence and a version")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
