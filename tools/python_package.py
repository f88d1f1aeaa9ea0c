#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completes the Python package: writes what follows from the library's description of its operations.

Usage: python_package.py <libejkernel.so> <output of `ejk info --operations --json`> <folder> [--link <package>]

Writes _description.json and the stubs of functions to the folder. With --link, the folder becomes a whole package for
tests: links to the sources of <package> and to the library.
"""

import argparse
import ctypes
import json
import os
import sys


def version_of(library):
    loaded = ctypes.CDLL(os.path.abspath(library))
    loaded.ejk_version.restype = ctypes.c_char_p
    return loaded.ejk_version().decode()


def write(path, text):
    """Only where something changed, so that nothing is built again in vain."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def link(source, target):
    if os.path.lexists(target):
        os.remove(target)
    os.symlink(os.path.abspath(source), target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("description")
    parser.add_argument("folder")
    parser.add_argument("--link", metavar="PACKAGE")
    wish = parser.parse_args()
    with open(wish.description, encoding="utf-8") as file:
        operations = json.load(file)
    os.makedirs(wish.folder, exist_ok=True)
    description = {"version": version_of(wish.library), "operations": operations}
    write(os.path.join(wish.folder, "_description.json"), json.dumps(description, separators=(",", ":")) + "\n")
    if wish.link:
        os.makedirs(os.path.join(wish.folder, "lib"), exist_ok=True)
        os.makedirs(os.path.join(wish.folder, "bin"), exist_ok=True)
        for name in os.listdir(wish.link):
            if name.endswith(".py") or name == "py.typed":
                link(os.path.join(wish.link, name), os.path.join(wish.folder, name))
        link(wish.library, os.path.join(wish.folder, "lib", "libejkernel.so.0"))
        link(os.path.join(os.path.dirname(wish.library), "ejk"), os.path.join(wish.folder, "bin", "ejk"))


if __name__ == "__main__":
    sys.exit(main())
