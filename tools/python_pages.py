#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages of the Python package's API, from its docstrings, by pdoc. Usage: python_pages.py <folder>"""

import importlib
import pathlib
import sys

import pdoc

PARTS = ["numpy", "jax", "torch", "transformers", "masks", "mask_info", "tuning", "profiling", "labels"]


def main():
    names = ["libejkernel", *(f"libejkernel.{part}" for part in PARTS)]
    for name in names:
        module = importlib.import_module(name)
        for member in dir(module):
            getattr(module, member)  # pdoc shows only functions that have been made
    pdoc.render.configure(docformat="numpy")
    pdoc.pdoc(*names, output_directory=pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    main()
