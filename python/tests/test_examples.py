# SPDX-License-Identifier: Apache-2.0
"""The example programs, against the goldens that their C counterparts have."""

import importlib.util
import os

import numpy as np
import pytest

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples")
DATA = os.path.join(EXAMPLES, "data", "bytelm")

pytestmark = pytest.mark.skipif(not os.path.exists(DATA), reason="no source tree")


@pytest.fixture(scope="module")
def bytelm():
    spec = importlib.util.spec_from_file_location("bytelm", os.path.join(EXAMPLES, "python", "bytelm.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name):
    with open(os.path.join(DATA, name), "rb") as file:
        return file.read()


def test_bytelm_has_the_exact_logits(bytelm):
    prompt, exact = read("prompt.txt"), np.load(os.path.join(DATA, "logits.npy"))
    assert np.abs(bytelm.Model().read(prompt) - exact).max() < 2e-4
    model, at = bytelm.Model(), 0
    for count in (1, 130, 7, 333):
        found = model.read(prompt[at : at + count])
        assert np.abs(found - exact[at : at + count]).max() < 2e-4
        at += count
    with pytest.raises(ValueError, match="expected at most 1024"):
        model.read(prompt)


def test_bytelm_writes_the_likeliest_bytes(bytelm):
    written = b"".join(bytelm.Model().generate(read("prompt.txt")[:600], 120))
    assert written == read("greedy_600_120.txt")
