# SPDX-License-Identifier: Apache-2.0
"""Every operation, by random calls that the library makes up: Python's results have the bits of C's."""

import ast
import importlib
import inspect
import math
import os

import libejkernel
import libejkernel.numpy as ejk
import numpy as np
import pytest
from calls import Call, random_calls
from libejkernel import _arrays, _records, _shapes, _signature
from libejkernel._description import catalogue

OPERATIONS = libejkernel.operations()
COUNT = 12
LEAST_USUAL = 4  # of twice as many; the most are all


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def python_results(call, **more):
    """The results of the call from Python, by their names; states too."""
    arguments, outputs = call.python()
    by_name = call.operation.args.by_name
    flags = {"return_" + n: True for n in outputs if not by_name[n].is_required}
    flags |= {n: np.empty_like(call.tensor(by_name[n])) for n in call.chosen()}
    function = getattr(ejk, call.operation.name)
    result = function(**{**arguments, **flags, **more})
    values = result if isinstance(result, tuple) else (result,)
    names = getattr(
        result, "_fields", tuple(outputs) or tuple(f.name for f in call.operation.updated if f.name in arguments)
    )
    states = {f.name: arguments[f.name] for f in call.operation.updated if f.name in arguments}
    return {**dict(zip(names, values)), **states}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_have_the_bits_of_c(name):
    for call in random_calls(name, COUNT):
        if not call.results():  # what Python's call cannot ask for
            continue
        found = python_results(call)
        call.run()
        by_name = call.operation.args.by_name
        expected = {n: a for n, a in call.tensors().items() if by_name[n].is_output}
        assert set(expected) == set(found), call.text
        for each, array in expected.items():
            assert same(found[each], array), f"{call.text}: {each}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_reference_platform_is_reached(name):
    for call in random_calls(name, 1, seed=1):
        arguments, _ = call.python()
        chosen = ejk.plan(name, **arguments, platform="reference").describe()
        assert chosen["platform"] == "reference", call.text


@pytest.mark.parametrize("name", OPERATIONS)
def test_inferred_shapes_are_those_of_c(name):
    """What JAX and PyTorch ask for: shapes and types of results without memory."""
    usual = 0
    for call in random_calls(name, 2 * COUNT, seed=2):
        made, found = call.looks()
        assert list(found) == list(made), call.text
        for each, (shape, _) in made.items():
            inferred = found[each][0]  # of units with shapes of several ranks, C's caller may take another
            assert len(inferred) == len(shape) or math.prod(inferred) == math.prod(shape), call.text
        usual += found == made
    assert usual >= LEAST_USUAL, f"{usual} calls of {2 * COUNT}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_strided_views_and_destinations(name):
    """Views with gaps between rows in, and results into memory of the caller's."""
    for call in random_calls(name, 3, seed=3):
        arguments, outputs = call.python()
        by_name = call.operation.args.by_name
        spread = {}
        for each, value in arguments.items():
            if isinstance(value, np.ndarray) and value.ndim > 1 and value.size:
                wide = np.zeros((*value.shape[:-1], value.shape[-1] + 5), value.dtype)
                view = wide[..., : value.shape[-1]]
                view[...] = value
                value = view
            spread[each] = value
        into = {n: np.empty_like(call.tensor(by_name[n])) for n in outputs}
        result = getattr(ejk, name)(**spread, **into)
        call.run()
        results = result if isinstance(result, tuple) else (result,)
        targets = list(into.values()) or [spread[f.name] for f in call.operation.updated if f.name in spread]
        assert all(r is t for r, t in zip(results, targets)), call.text
        for each, array in into.items():
            assert same(array, call.tensor(by_name[each])), f"{call.text}: {each}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_signature_and_docstring(name):
    function, operation = getattr(ejk, name), catalogue()[name]
    parameters = inspect.signature(function).parameters
    assert [f.name for f in operation.inputs if f.name in parameters] == [f.name for f in operation.inputs]
    assert list(parameters) == [a.name for a in _signature.argument_list(operation)]
    for field in operation.args.fields:
        assert f"\n{field.name} : " in function.__doc__
        if field.doc:
            assert field.doc.split()[-1].lower() in function.__doc__.lower()
    assert function.__name__ == name and function.__module__ == "libejkernel.numpy"


@pytest.mark.parametrize("name", OPERATIONS)
def test_defaults_mean_what_is_not_set(name):
    """A call with every default said is the call that says none."""
    for call in random_calls(name, 2, seed=4, usual=True):
        arguments, outputs = call.python()
        parameters = inspect.signature(getattr(ejk, name)).parameters
        arguments.update({f"return_{n}": True for n in outputs if f"return_{n}" in parameters})
        said = {p.name: p.default for p in parameters.values() if p.default is not p.empty}
        flags = {k: v for k, v in said.items() if k.startswith("return_") and k not in call.operation.args.by_name}
        plain = getattr(ejk, name)(**arguments)
        full = getattr(ejk, name)(**{**said, **flags, **arguments})
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (plain, full))):
            if not call.operation.updated:
                assert same(a, b), call.text


def test_structs_are_the_librarys():
    """Numbers, names, windows and nested records that Python packs are what C reads."""
    for name in OPERATIONS:
        for call in random_calls(name, 4, seed=5):
            values = call.values()
            buffer = bytearray(call.operation.args.size)
            _records.pack(call.operation.args, values, buffer)
            packed = Call.values(_Struct(call, buffer))
            assert packed == values, call.text


class _Struct:
    """A struct of Python's in place of a call's own."""

    def __init__(self, call, buffer):
        self.kernel, self.operation = call.kernel, call.operation
        self._memory = _arrays._Memory(buffer)
        self.args = self._memory.address


@pytest.mark.parametrize("module", ["numpy", "jax", "torch"])
def test_stubs_have_the_signatures(module):
    """They are Python, and say of each function what the function says."""
    pytest.importorskip(module)
    path = os.path.join(os.path.dirname(_arrays.__file__), module + ".pyi")
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    stubs = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in OPERATIONS:
        function = getattr(importlib.import_module("libejkernel." + module), name)
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert [each.arg for each in stubs[name].args] == positional
        assert [each.arg for each in stubs[name].kwonlyargs] == [p.name for p in parameters][len(positional) :]
