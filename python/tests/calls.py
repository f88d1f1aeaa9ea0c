# SPDX-License-Identifier: Apache-2.0
"""Random calls of any operation, made by the library itself: what the tests compare Python's calls with."""

import ctypes
import json
import random
import re

import pytest

from libejkernel import _library, _shapes, _tensors
from libejkernel._description import catalogue

lib = _library.lib
P, I, S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_library.declare(
    {
        "ejk_problem_parse": ((P, S, P), I),
        "ejk_problem_destroy": ((P,), None),
        "ejk_problem_args": ((P,), P),
        "ejk_problem_allocate": ((P, ctypes.c_uint64), I),
        "ejk_record_to_json": ((P, P, I, P), I),
        "ejk_call": ((P, P, P), I),
    }
)

SET_ONLY = 1


def array(view):
    """The memory of a tensor, to read and to write."""
    return _tensors.array(view, None, writable=True)


class Call:
    """A call of the library's own, with memory and random contents; MakingFailed where there is none."""

    def __init__(self, name, text, seed):
        self.operation = catalogue()[name]
        self.text = text
        self.context = _library.context()
        self.problem = ctypes.c_void_p()
        _library.check(lib.ejk_problem_parse(self.context.handle, text.encode(), ctypes.byref(self.problem)))
        _library.check(lib.ejk_problem_allocate(self.problem, seed))
        self.args = lib.ejk_problem_args(self.problem)
        self.kernel = self.context.kernel(name)

    def __del__(self):
        lib.ejk_problem_destroy(self.problem)

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


_LENGTHS = (1, 2, 3, 4, 6, 8, 16)


def _symbols(record, draw):
    given = {item.partition("=")[0]: "=" in item for item in filter(None, record.symbols.split(","))}
    words = []
    for symbol in sorted(record.unit_symbols):
        if symbol not in record.by_name and not given.get(symbol, False):
            words.append((symbol, draw.choice(_LENGTHS)))
    return words


def _field_item(field, draw):
    values = {
        "BOOL": lambda: "true",
        "OPT_BOOL": lambda: draw.choice(("true", "false")),
        "OPT_INT": lambda: str(draw.choice((1, 2, 3, 4))),
        "INT": lambda: str(draw.choice((1, 2, 4))),
        "OPT_FLOAT": lambda: str(draw.choice((0.25, 1.5))),
        "FLOAT": lambda: "0.125",
        "WINDOW": lambda: draw.choice(("2,1", "3,", ",2", "4")),
        "NAME": lambda: draw.choice(re.findall("[a-z][a-z0-9_]+", field.doc) or ["none"]),
        "DTYPE": lambda: draw.choice(("float32", "bfloat16", "float16")),
    }
    return f"{field.name}={values[field.kind]()}" if field.kind in values else None


def _text(operation, draw):
    record = operation.args
    kept = {symbol for t in record.tensors if t.is_required for symbol in _shapes.unit_of(t.unit).symbols}
    items = [f"{s}={n}" for s, n in _symbols(record, draw) if s in kept]
    items.append("dtype=" + draw.choice(("float32", "float32", "bfloat16", "float16")))
    optional = [f.name for f in record.tensors if not f.is_required]
    wanted = [name for name in optional if draw.random() < 0.2]
    if wanted:
        items.append("with=" + "+".join(wanted))
    for field in record.fields:
        item = _field_item(field, draw) if draw.random() < 0.15 else None
        if item:
            items.append(item)
    return f"{operation.name}:{','.join(items)}"


def random_calls(name, count, seed=0, tries=4000):
    """Calls that the library accepts, as many as there are within so many tries."""
    operation = catalogue()[name]
    draw = random.Random(f"{name}{seed}")
    found = 0
    for attempt in range(tries):
        if found == count:
            return
        text = _text(operation, draw)
        try:
            call = Call(name, text, attempt)
            call.run()
        except _library.Error:
            continue
        found += 1
        yield Call(name, text, attempt)
    if not found:
        pytest.skip(f"no call of {name} in {tries} tries; the last was {text}")
