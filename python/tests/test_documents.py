# SPDX-License-Identifier: Apache-2.0
"""The Python of the documents runs."""

import importlib.util
import os
import re

import libejkernel
import libejkernel.numpy as ejk
import numpy as np
import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGES = ["docs/python/numpy.md", "README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_examples(page, capsys):
    path = os.path.join(ROOT, page)
    if not os.path.exists(path):
        pytest.skip("no source tree")
    with open(path, encoding="utf-8") as file:
        blocks = BLOCK.findall(file.read())
    draw = np.random.default_rng(0)
    names = {
        "np": np,
        "ejk": ejk,
        "libejkernel": libejkernel,
        "d_out": np.ones((1, 512, 8, 64), np.float32),
        "segment_ids": np.repeat(np.arange(4, dtype=np.int32), 128)[None],
    }
    assert blocks
    for block in blocks:
        if "mine.so" in block:  # test_own_operation.py has one
            continue
        frameworks = set(re.findall(r"^(?:import|from) (jax|torch|transformers)\b", block, re.MULTILINE))
        if frameworks:
            if all(importlib.util.find_spec(name) for name in frameworks):
                exec(block, {})
            continue
        if "blocksparse" in block:
            names["head_first"] = [draw.standard_normal((1, 2, 4096, 16), np.float32) for _ in range(3)]
            block = block.replace("blocksparse_attention(q, k, v,", "blocksparse_attention(*head_first,")
        exec(block, names)
    assert names["out"].size
