# SPDX-License-Identifier: Apache-2.0
"""What the tests of frameworks have in common: random calls of every operation, and what they should give."""

import os
import re

import libejkernel
import libejkernel.numpy as ejk
import numpy as np
from calls import random_calls
from libejkernel import _shapes
from libejkernel._description import catalogue

OPERATIONS = libejkernel.operations()
DIFFERENTIABLE = [name for name in OPERATIONS if catalogue().gradient_of(name)]
BOUNDS = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def few(count):
    """So many calls of an operation with EJK_TEST_FULL, which `ctest -C long` sets, else half of them."""
    return count if "EJK_TEST_FULL" in os.environ else (count + 1) // 2


class Wish:
    """A call as a framework's function is asked for it: arrays, other arguments, and flags of results."""

    def __init__(self, call):
        self.call, self.operation = call, call.operation
        arguments, self.outputs = call.python()
        self.arrays = {n: a.copy() for n, a in arguments.items() if isinstance(a, np.ndarray)}
        by_name = self.operation.args.by_name
        self.values = {n: v for n, v in arguments.items() if n not in self.arrays}
        self.values |= {"return_" + n: True for n in self.outputs if not by_name[n].is_required}

    def expected(self):
        """Results by name, then states that were updated, as the NumPy functions compute them from the same arrays."""
        given = {n: a.copy() for n, a in self.arrays.items()}
        result = getattr(ejk, self.operation.name)(**given, **self.values)
        found = dict(zip(self.outputs, result if isinstance(result, tuple) else (result,)))
        return found | {f.name: given[f.name] for f in self.operation.updated if f.name in given}

    def is_open(self, name):
        """Whether the type of a result was the choice of C's caller."""
        return _shapes.is_any_float(self.operation.args, self.operation.args.by_name[name])

    def floats(self):
        """Names of the operands that are floating-point numbers."""
        return [n for n, a in self.arrays.items() if a.dtype.name in BOUNDS]

    def pullback(self, seed=0):
        """(cotangents, gradients by name) by the NumPy functions; cotangents by results, None for the others."""
        gradient = catalogue().gradient(self.operation.name)
        results, back = ejk.vjp(self.operation.name, **self.arrays, **self.values)
        results = results if isinstance(results, tuple) else (results,)
        draw = np.random.default_rng(seed)
        cotangents = [
            draw.standard_normal(r.shape).astype(r.dtype) if n in gradient.cotangents else None
            for n, r in zip(self.outputs, results)
        ]
        found = back(*cotangents)
        names = getattr(found, "_fields", None) or [f.name for f in gradient.backward.outputs][:1]
        found = found if isinstance(found, tuple) else (found,)
        return cotangents, {n.removeprefix("d_"): g for n, g in zip(names, found)}

    @property
    def updates(self):
        """Whether the call updates a state."""
        return any(f.name in self.arrays for f in self.operation.updated)


def wishes(name, count, seed=0, finite=False):
    """Calls, each made when it is asked for."""
    return (Wish(call) for call in random_calls(name, count, seed, finite=finite, usual=True))


def derivable(name, count, seed=0):
    """(wish, cotangents, gradients) of calls of finite numbers with gradients through each of their results."""
    through, found = catalogue().gradient(name).cotangents, 0
    for wish in wishes(name, 100 * count, seed, finite=True):
        if wish.updates or not set(wish.outputs) <= set(through):
            continue
        try:
            cotangents, gradients = wish.pullback()
        except libejkernel.Error:
            continue  # of what the library says that it has no gradients
        found += 1
        yield wish, cotangents, gradients
        if found == count:
            break
    assert found, f"no call of {name} with gradients"


def checkable(name, count, seed, runs):
    """(wish, step, bound) of calls whose gradients differences can be compared with.

    In double precision, where the units say no other type and `runs(wish)` says that the library takes it; else in
    float32 with wide steps.
    """
    for wish, _, _ in derivable(name, count, seed):
        arrays, names = wish.arrays, wish.operation.args.by_name
        wish.values = {n: v for n, v in wish.values.items() if n in names and "dtype" not in n}
        if all(wish.is_open(n) for n in wish.floats()):
            wish.arrays = {n: a.astype(np.float64) if n in wish.floats() else a for n, a in arrays.items()}
            if runs(wish):
                yield wish, 1e-6, 1e-5
                continue
        wish.arrays = {n: a.astype(np.float32) if a.dtype.name in BOUNDS else a for n, a in arrays.items()}
        yield wish, 1e-2, 2e-2


def calm(array):
    """An array with the magnitudes of its numbers, and 0 for those that are none: sums are positive."""
    if array.dtype.name not in BOUNDS:
        return array
    return np.where(np.isfinite(array), abs(array), np.zeros((), array.dtype))


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def close(a, b, what):
    """Within the rounding of the type; NaN and infinities in the same places."""
    bound = BOUNDS.get(a.dtype.name, 0)
    assert a.shape == b.shape, f"{what}: {a.shape} and {b.shape}"
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(b)
    assert np.array_equal(np.isfinite(a), finite), what
    scale = max(1.0, np.abs(b[finite]).max(initial=0))
    assert np.abs(a[finite] - b[finite]).max(initial=0) <= bound * scale, what


def python_of(page):
    """The blocks of Python of a page of the documents."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with open(os.path.join(root, page), encoding="utf-8") as file:
        return re.findall(r"^```python\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)
