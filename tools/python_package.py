#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completes the Python package: writes what follows from the library's description of its operations.

Usage: python_package.py <version of the library> <output of `ejk info --operations --json`> <folder> [--link <build>]

Writes _description.json and the stubs of functions to the folder. With --link, the folder becomes a whole package for
tests: links to its sources, and to the library and the command in a build folder.
"""

import argparse
import importlib
import json
import os
import sys
import types


PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", "libejkernel")


def stubs(package, folder):
    """The stubs by the package's own code, of which only what needs no library is imported."""
    module = types.ModuleType("libejkernel")
    module.__path__ = [package]
    sys.modules["libejkernel"] = module
    description = importlib.import_module("libejkernel._description")
    catalogue = description.Catalogue(os.path.join(folder, "_description.json"))
    return importlib.import_module("libejkernel._stubs").stubs(catalogue)


def write(path, text):
    """Only where something changed, so that nothing is built again in vain; and whole, whoever reads it meanwhile."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(file.name, path)


def link(source, target):
    made = f"{target}.{os.getpid()}"
    os.symlink(os.path.abspath(source), made)
    os.replace(made, target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("version")
    parser.add_argument("description")
    parser.add_argument("folder")
    parser.add_argument("--link")
    wish = parser.parse_args()
    with open(wish.description, encoding="utf-8") as file:
        operations = json.load(file)
    os.makedirs(wish.folder, exist_ok=True)
    description = {"version": wish.version, "operations": operations}
    write(os.path.join(wish.folder, "_description.json"), json.dumps(description, separators=(",", ":")) + "\n")
    for name, text in stubs(PACKAGE, wish.folder).items():
        write(os.path.join(wish.folder, name), text)
    if wish.link:
        os.makedirs(os.path.join(wish.folder, "lib"), exist_ok=True)
        os.makedirs(os.path.join(wish.folder, "bin"), exist_ok=True)
        for name in os.listdir(PACKAGE):
            if name.endswith(".py") or name == "py.typed":
                link(os.path.join(PACKAGE, name), os.path.join(wish.folder, name))
        link(os.path.join(wish.link, "libejkernel.so"), os.path.join(wish.folder, "lib", "libejkernel.so.0"))
        link(os.path.join(wish.link, "ejk"), os.path.join(wish.folder, "bin", "ejk"))


if __name__ == "__main__":
    sys.exit(main())
