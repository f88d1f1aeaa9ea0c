# SPDX-License-Identifier: Apache-2.0
"""Random calls of any operation, made by its case of the conformance harness: what Python's calls are compared with."""

import ctypes
import json
import os
from functools import cache

import libejkernel
import numpy as np
import pytest
from libejkernel import _library, _records, _tensors
from libejkernel._description import catalogue

lib = _library.lib
P, I, S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_library.declare({"ejk_record_to_json": ((P, P, I, P), I), "ejk_call": ((P, P, P), I)})

SET_ONLY = 1
BUDGET = 20000  # multiplications
MOST_ELEMENTS = 20000
TRIES = 2000


@cache
def _maker():
    """The library of the cases, which the tests of C are built with."""
    beside = os.path.join(os.path.dirname(os.path.realpath(_library._path())), "tests", "libconformance_calls.so")
    path = os.environ.get("EJKERNEL_TEST_CALLS", beside)
    if not os.path.exists(path):
        pytest.skip(f"no cases of the conformance harness: {path} is not built")
    made = ctypes.CDLL(path)
    made.calls_dtype.argtypes = [ctypes.c_uint64]
    made.calls_open.argtypes, made.calls_open.restype = [S, ctypes.c_uint64, ctypes.c_int64], P
    made.calls_args.argtypes, made.calls_args.restype = [P], P
    made.calls_is_hostile.argtypes, made.calls_is_hostile.restype = [P], ctypes.c_bool
    made.calls_close.argtypes, made.calls_close.restype = [P], None
    return made


def array(view):
    """The memory of a tensor, to read and to write."""
    return _tensors.array(view, None, writable=True)


class NoCall(Exception):
    """A seed from which no call follows."""


class Call:
    """A call of a case, with memory and contents."""

    def __init__(self, name, seed):
        self.maker = _maker()
        self.memory = self.maker.calls_open(name.encode(), seed, BUDGET)
        if not self.memory:
            raise NoCall
        self.operation, self.context = catalogue()[name], _library.context()
        self.args = self.maker.calls_args(self.memory)
        self.kernel = self.context.kernel(name)
        self.is_hostile = self.maker.calls_is_hostile(self.memory)
        self.text = f"{name}, seed {seed}"

    def __del__(self):
        if getattr(self, "memory", None):
            self.maker.calls_close(self.memory)

    def tensor(self, field):
        """The array of a tensor, or those of a list; None where the call has none. Valid as long as the call."""
        if field.kind == "TENSOR":
            return array(_tensors.Tensor.from_address(self.args + field.offset))
        count = ctypes.c_int32.from_address(self.args + field.offset + field.size - 8).value
        members = (_tensors.Tensor * count).from_address(self.args + field.offset)
        return [array(member) for member in members] or None

    def tensors(self):
        return {f.name: self.tensor(f) for f in self.operation.args.tensors if self.tensor(f) is not None}

    def values(self):
        """The other arguments that are set."""
        record = ctypes.c_void_p.from_address(self.kernel + 24).value  # behind op_id, version and doc
        text = _library.text_from(lib.ejk_record_to_json, record, self.args, SET_ONLY)
        loaded = json.loads(text)
        tensors = {field.name for field in self.operation.args.tensors}
        return {name: value for name, value in loaded.items() if name not in tensors}

    def run(self):
        """Calls it in C."""
        _library.check(lib.ejk_call(self.context.handle, self.kernel, self.args))

    def python(self):
        """(arguments, wanted flags) for the function of Python, inputs copied: states are theirs to update."""
        by_name = self.operation.args.by_name
        tensors = self.tensors()
        inputs = {n: a.copy() if by_name[n].is_output else a for n, a in tensors.items() if by_name[n].is_input}
        outputs = [n for n in tensors if not by_name[n].is_input]
        return {**inputs, **self.values()}, outputs

    def looks(self):
        """(shapes and types of results, what the library takes them to be)"""
        by_name, tensors = self.operation.args.by_name, self.tensors()
        given = {n: (a.shape, a.dtype.name) for n, a in tensors.items() if by_name[n].is_input}
        made = {n: (a.shape, a.dtype.name) for n, a in tensors.items() if not by_name[n].is_input}
        return made, libejkernel.infer(self.operation.name, given, self.values(), list(made))

    def chosen(self):
        """Names of results that C's caller chose to be other than the library takes them to be.

        Units leave some lengths and types to the caller: rows that nobody writes, the words of codes.
        """
        made, found = self.looks()
        return [name for name, look in made.items() if found[name] != look]

    def is_usual(self):
        """Whether it asks for a result, its results look as follows from the rest, and 32 bits hold its integers."""
        fits = all(np.all(a == a.astype(np.int32)) for a in self.tensors().values() if np.asarray(a).dtype == np.int64)
        return fits and bool(self.results()) and not self.chosen()

    def results(self):
        """Names of what it writes."""
        return [n for n in self.tensors() if self.operation.args.by_name[n].is_output]

    def elements(self):
        return sum(np.size(each) for each in self.tensors().values())


def random_calls(name, count, seed=0, dtype=None, finite=False, usual=False):
    """Calls that the library accepts, of few elements, as many as there are within so many tries.

    `dtype` is the type of their first tensor; `finite` leaves out those that are about NaN and infinities, `usual`
    those that a function without destinations cannot make.
    """
    maker, found = _maker(), 0
    for attempt in range(seed * TRIES + 1, (seed + 1) * TRIES + 1):
        if found == count:
            return
        if dtype and maker.calls_dtype(attempt) != _records.DTYPES[dtype]:
            continue
        try:
            call = Call(name, attempt)
        except NoCall:
            continue
        if (finite and call.is_hostile) or call.elements() > MOST_ELEMENTS:
            continue
        if usual and not call.is_usual():
            continue
        call.run()
        found += 1
        yield Call(name, attempt)
    assert found, f"no call of {name} in {TRIES} tries"
