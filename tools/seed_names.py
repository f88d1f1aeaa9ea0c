#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/seed-names.md from docs/seed-names.tsv, and compares the variables of docs/howto/environment.md
with those that are read.

For every name in C it looks up the public header that declares it and the tests that mention it. With --check,
as the tests run it, nothing is written. Prints one line per fault and exits 1 if there is any: a name that no
header declares or no test mentions, a row that says neither what nor why, a page that is not up to date.

`type.member` is a member of a struct, also of one that EJK_RECORD_STRUCT declares.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/seed-names.tsv"
PAGE = ROOT / "docs/seed-names.md"
ENVIRONMENT = ROOT / "docs/howto/environment.md"
REASONS = ("later: ", "no meaning in C: ")
TESTS_SHOWN = 2

HEAD = """# Names of the documents, and where they are

Every public name of the documents that this library re-creates, with its name in C, the header that declares it and
tests that use it. Documents 000 to 004 are the published pages; the others are parts of the Python package. A dotted
name is a member of a struct. A name with `…` is a parameter.

Written by `tools/seed_names.py` from `docs/seed-names.tsv`, and compared by a test. Change the table, not this page.
"""


# ---- Looking names up ------------------------------------------------------------------------------

def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


def read_all(folder, *patterns):
    """Paths relative to the root, and texts."""
    paths = {path for pattern in patterns for path in (ROOT / folder).rglob(pattern)}
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def words_of(texts):
    return {path: set(re.findall(r"\w+", text)) for path, text in texts.items()}


def declares(text, name):
    n = re.escape(name)
    forms = (rf"\bEJK_API\b[^;{{}}]*?\b{n}\s*[(;]", rf"}}\s*{n}\s*;", rf"\btypedef\b[^;{{}}]*\b{n}\s*[;)]",
             rf"\bEJK_RECORD_STRUCT\(\s*{n}\s*,", rf"#\s*define\s+{n}\b")
    return any(re.search(form, text) for form in forms)


def header_of(name, headers, header_words):
    """The header that declares a name or the type of a member, which it has to mention too."""
    for path, text in headers.items():
        if header_words[path].issuperset(name.split(".")) and declares(text, name.split(".")[0]):
            return path
    return None


def tests_of(name, test_words):
    """Tests that mention a name, before what they share."""
    hits = [path for path, words in test_words.items() if words.issuperset(name.split("."))]
    return sorted(hits, key=lambda path: (not Path(path).name.startswith("test_"), path))


# ---- The page --------------------------------------------------------------------------------------

def rows(faults):
    for number, line in enumerate(TABLE.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != 4 or not cells[0] or not cells[1]:
            faults.append(f"{TABLE.name}:{number}: expected four columns: document, name, names in C, remark")
            continue
        yield [cell.replace("|", "\\|") for cell in cells]


def short(path):
    return path.removeprefix("include/ejkernel/").removeprefix("tests/")


def row_of(name, c_names, remark, found_in, faults):
    if not c_names:
        if not remark.startswith(REASONS):
            faults.append(f"{name}: no name in C, and the remark is neither 'later: …' nor 'no meaning in C: …'")
        return f"| `{name}` | | | | {remark} |"
    found_headers, found_tests = [], []
    for c_name in c_names.split():
        header, used = found_in(c_name)
        if not header:
            faults.append(f"{name}: {c_name} is declared in no public header")
        if not used:
            faults.append(f"{name}: {c_name} is mentioned in no test")
        found_headers += [short(header)] if header else []
        found_tests += [short(path) for path in used[:TESTS_SHOWN]]
    cells = ([f"`{n}`" for n in c_names.split()], dict.fromkeys(found_headers), dict.fromkeys(found_tests))
    return f"| `{name}` | {' | '.join(', '.join(cell) for cell in cells)} | {remark} |"


def page(faults):
    headers = {path: without_comments(text) for path, text in read_all("include/ejkernel", "*.h").items()}
    header_words, test_words = words_of(headers), words_of(read_all("tests", "*.c", "*.h", "*.py"))
    lines, document = [HEAD.rstrip("\n")], None

    def found_in(c_name):
        return header_of(c_name, headers, header_words), tests_of(c_name, test_words)

    for own, name, c_names, remark in rows(faults):
        if own != document:
            lines += ["", f"## {own}", "", "| name | in C | header | tests | remark |", "|---|---|---|---|---|"]
            document = own
        lines.append(row_of(name, c_names, remark, found_in, faults))
    return "\n".join(lines) + "\n"


# ---- Variables -------------------------------------------------------------------------------------

def check_environment(faults):
    """What the code reads is in the first table of the page, and what is there is read."""
    code = {**read_all("src", "*.c", "*.h"), **read_all("cli", "*.c", "*.h")}
    read = {name for text in code.values() for name in re.findall(r'"(EJKERNEL_[A-Z_]+)"', text)}
    if not ENVIRONMENT.is_file():
        faults.append(f"{ENVIRONMENT.name} is missing")
        return
    first_table = ENVIRONMENT.read_text(encoding="utf-8").split("\n## ")[0]
    told = set(re.findall(r"^\| `(EJKERNEL_[A-Z_]+)`", first_table, flags=re.M))
    faults.extend(f"{name} is read, but not in {ENVIRONMENT.name}" for name in sorted(read - told))
    faults.extend(f"{name} is in {ENVIRONMENT.name}, but nothing reads it" for name in sorted(told - read))


def main():
    faults = []
    text = page(faults)
    check_environment(faults)
    if sys.argv[1:] == ["--check"]:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            faults.append(f"{PAGE.name} is not up to date: run tools/seed_names.py")
    else:
        PAGE.write_text(text, encoding="utf-8")
    print("\n".join(faults) if faults else "every name is declared, tested and listed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
