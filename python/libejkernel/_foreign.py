# SPDX-License-Identifier: Apache-2.0
"""Calls that frameworks make through C: their texts, and the context in which they run.

The text of a call is what a handler in C finds its plan by, with the shapes of the tensors: operation, names of
operands and results, and the other arguments as JSON. `call_text()` says how it looks, `Call` what is behind it.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import re
from functools import lru_cache

from . import _calls, _library, _records, _shapes, _signature
from ._description import catalogue

_library.declare({"ejk_bindings_use": ((ctypes.c_void_p,), None)})

_used = None  # the context in which handlers run: it must not go before they are told


def _use():
    global _used
    last, _used = _used, _library.context()
    _library.lib.ejk_bindings_use(_used.handle)
    del last


@lru_cache(maxsize=None)
def start():
    """Has handlers run in the process's context from now on."""
    _use()
    _library.on_context_change(_use)
    atexit.register(_library.lib.ejk_bindings_use, None)


# ---- Arguments -------------------------------------------------------------------------------------------------------


def _window(name, value):
    sides = value if isinstance(value, (tuple, list)) else (value, value)
    return [None if side is None else _records.integer(name, side) for side in sides]


_JSON = {
    "BOOL": _records._truth,
    "OPT_BOOL": _records._truth,
    "INT": _records.integer,
    "OPT_INT": _records.integer,
    "FLOAT": _records._number,
    "OPT_FLOAT": _records._number,
    "WINDOW": _window,
    "NAME": lambda name, value: getattr(value, "value", value),
    "DTYPE": lambda name, value: _records.dtype_name(value),
    "INTS": lambda name, value: [_records.integer(name, each) for each in value],
}


def _plain(record, values):
    found = {}
    for name, value in values.items():
        field = record.by_name.get(name)
        if value is None or field is None:
            found[name] = value  # what is unknown the library refuses, by its name
        elif field.kind == "RECORD":
            found[name] = _plain(field.record, _records.plain(value))
        else:
            found[name] = _JSON[field.kind](name, value)
    return found


def json_of(operation, values):
    """The arguments that are not tensors and not at their defaults, as JSON."""
    given = _calls.given_values(operation, values)
    return json.dumps(_plain(operation.args, given), sort_keys=True, separators=(",", ":"))


def split(operation, given, states=True):
    """(tensors by name, names of results, JSON of the rest) of a call whose arguments are `given` by name.

    With `states`, what is updated is among the results.
    """
    if operation.takes_mask_info and given.get("mask_info") is not None:
        given = {**given, **given["mask_info"].call_arguments(given, operation)}
    by_name = operation.args.by_name
    tensors, values = {}, {}
    for name, value in given.items():
        field = by_name.get(name)
        if value is None or field is None or not field.is_input:
            continue
        if field.kind == "TENSORS":
            _library.fail("UNAVAILABLE", f"{name} is a list of tensors, which only libejkernel.numpy takes")
        (tensors if field.kind == "TENSOR" else values)[name] = value
    asked = {f.name for f in operation.outputs if f.is_required or given.get("return_" + f.name)}
    asked = asked or set(operation.default_results(tensors))
    results = [f.name for f in operation.outputs if f.name in asked]
    if states:
        results += [f.name for f in operation.updated if f.name in tensors]
    return tensors, tuple(results), json_of(operation, values)


# ---- Calls -----------------------------------------------------------------------------------------------------------


class Call:
    """What a call is but for its tensors. Equal calls are the same object: made by `call_of()`.

    `mapped` says of a mapped call which operands have one more axis in front, for its `elements`.
    """

    def __init__(self, name, operands, results, arguments, elements, mapped):
        self.operation = catalogue()[name]
        self.name, self.operands, self.results = name, operands, results
        self.arguments, self.elements, self.mapped = arguments, elements, mapped
        self.values = json.loads(arguments)
        star = "*" if elements else ""
        inputs = ",".join("*" * each + operand for operand, each in zip(operands, self.mapped))
        outputs = ",".join(star + result for result in results)
        self.text = f"{name};{inputs};{outputs};{elements};{arguments}"
        self.aliases = {operands.index(r): i for i, r in enumerate(results) if r in operands}

    def specs(self, shapes, dtypes):
        """(shape, name of the type) of each result; the library has checked the call."""
        views = {}
        for name, shape, dtype, mapped in zip(self.operands, shapes, dtypes, self.mapped):
            views[name] = _calls.abstract(name, shape[1:] if mapped else shape, dtype)
        new = [name for name in self.results if name not in views]
        plan, _, made = _calls.prepare(self.operation, views, self.values, new)
        del plan
        found = {**views, **made}
        front = (self.elements,) if self.elements else ()
        return [(front + found[n].shape, _records.DTYPE_NAMES[found[n].dtype]) for n in self.results]

    def with_results(self, more):
        """The same call with more results."""
        order = [f.name for f in self.operation.outputs if f.name in more or f.name in self.results]
        order += [name for name in self.results if name in self.operands]
        return call_of(self.name, self.operands, tuple(order), self.arguments)

    def with_choice(self, plan):
        """The same call, given the parameters of a plan by its description, which it then always has."""
        entry = self.operation.entry
        field, inner = entry["config_field"], entry["parameters_field"]
        chosen = {}
        for step in plan.get("steps", [plan]):
            for name, value in step["parameters"].items():
                chosen.setdefault(name, set()).add(value)
        # What steps disagree about stays open, since no one value is that of all.
        parameters = {name: values.pop() for name, values in chosen.items() if len(values) == 1}
        config = dict(self.values.get(field) or {})
        if inner:
            config[inner] = {**(config.get(inner) or {}), **parameters}
        else:
            config |= parameters
        if not parameters:
            return self
        arguments = json.dumps({**self.values, field: config}, sort_keys=True, separators=(",", ":"))
        return call_of(self.name, self.operands, self.results, arguments, self.elements, self.mapped)


_call = lru_cache(maxsize=4096)(Call)


def call_of(name, operands, results, arguments, elements=0, mapped=()):
    """The Call of these."""
    return _call(name, operands, results, arguments, elements, mapped or (False,) * len(operands))


@lru_cache(maxsize=4096)
def call_of_text(text):
    """The Call of a text."""
    name, operands, results, elements, arguments = text.split(";", 4)
    operands, results = (tuple(filter(None, each.split(","))) for each in (operands, results))
    bare = [tuple(each.removeprefix("*") for each in names) for names in (operands, results)]
    return call_of(name, *bare, arguments, int(elements), tuple(each.startswith("*") for each in operands))


# ---- Gradients -------------------------------------------------------------------------------------------------------


_GROUPS = {"int": "int32", "index": "int32", "bool": "bool", "float8": "float8_e4m3fn"}


class Pullback:
    """How the gradients of a call are computed; made by `pullback_of()`.

    `extended` is the call with all that its gradients need, `keeping` that with what saves time on a CPU besides;
    `residuals` are the names of what they need of its results.
    """

    def __init__(self, call):
        self.call = call
        self.gradient = gradient = catalogue().gradient(call.name)
        self.extended = call.with_results(gradient.required)
        self.keeping = call.with_results([*gradient.required, *gradient.kept])
        self.residuals = [name for name in gradient.residuals if name in self.extended.results]
        self.backward = gradient.backward
        values = {n: v for n, v in call.values.items() if n in self.backward.args.by_name}
        self.arguments = json.dumps(values, sort_keys=True, separators=(",", ":"))
        self.shared = [name for name in gradient.shared if name in call.operands]

    def differentiable(self, names):
        """Those of the operands that have gradients."""
        return [name for name in names if name in self.gradient.gradients]

    def check_cotangents(self, names):
        """Refuses cotangents of results through which there are no gradients."""
        for name in names:
            if name not in self.gradient.cotangents:
                _library.fail("UNAVAILABLE", f"{self.call.name} has no gradients through {name}")

    def missing(self, names):
        """Results whose cotangents have to be there, but are not among `names`."""
        by_name = self.backward.args.by_name
        return [r for r, d in self.gradient.cotangents.items() if by_name[d].is_required and r not in names]

    def backward_call(self, cotangents, wanted):
        """The call that computes the gradients of `wanted`, given the `cotangents` of these results."""
        names = set(self.shared) | set(self.residuals) | {self.gradient.cotangents[name] for name in cotangents}
        operands = tuple(field.name for field in self.backward.inputs if field.name in names)
        results = {self.gradient.gradients[name] for name in wanted}
        results |= {field.name for field in self.backward.outputs if field.is_required}
        order = tuple(field.name for field in self.backward.outputs if field.name in results)
        return call_of(self.backward.name, operands, order, self.arguments)

    def dtype_of(self, name, dtypes):
        """The name of the type that an operand of the backward call has to have; None: any, or not said by its unit."""
        record = self.backward.args
        field = record.by_name[name]
        for _ in range(len(record.fields) + 1):
            element = _shapes.unit_of(field.unit).element
            if element not in record.by_name:
                element = _GROUPS.get(element, element)
                return element if element in _records.DTYPES else None
            if element in dtypes:
                return dtypes[element]
            field = record.by_name[element]
        return None


@lru_cache(maxsize=4096)
def pullback_of(call):
    """The Pullback of a call; None if it has no gradients."""
    gradient = catalogue().gradient(call.name)
    if gradient is None or gradient.lost(call.operands, call.values):
        return None
    return Pullback(call)


def no_derivative(call):
    """Why a call cannot be differentiated, or not in this way."""
    gradient = catalogue().gradient(call.name)
    if gradient is None:
        return f"{call.name} has no gradients"
    return gradient.refusal(call.operands, call.values) or (
        f"{call.name} has first derivatives only, and in reverse mode only"
    )


# ---- Batches ---------------------------------------------------------------------------------------------------------

BATCH = "B"
_BATCH_WORD = re.compile(rf"\b{BATCH}\b")


def _batch_axis(field, rank):
    """Where a tensor of that rank has the batch; None if nowhere or in different places."""
    unit = _shapes.unit_of(field.unit)
    found = set()
    for shape in unit.shapes:
        if len(shape) == rank:
            found.add(next((i for i, axis in enumerate(shape) if axis[0] == BATCH), None))
    return found.pop() if len(found) == 1 else None


def _batch_of(record, names, shapes):
    """The batch of a call; None if it has none. What is broadcast over it may have 1."""
    found = None
    for name, shape in zip(names, shapes):
        axis = _batch_axis(record.by_name[name], len(shape))
        if axis is not None and (found is None or found == 1):
            found = shape[axis]
    return found


class Folding:
    """How a call for each of `size` elements becomes one call with a greater batch.

    `axes` has for each operand where its batch is, or None; `spread` whether it has to be repeated for every element;
    `length` is the batch of an element, `results` where the results have theirs.
    """

    def __init__(self, axes, spread, length, results):
        self.axes, self.spread, self.length, self.results = axes, spread, length, results


def folding_of(call, size, shapes, dtypes, batched):
    """The Folding of a call, `shapes` those of one element; None where elements have to be computed one by one.

    They have to where an operand or a result has no batch of its own, as packed sequences and the gradient of what all
    elements share, and where a call draws random numbers, since these depend on the place in the batch.
    """
    record = call.operation.args
    if call.elements or any(name.startswith("dropout") and value for name, value in call.values.items()):
        return None
    specs = dict(zip(call.results, call.specs(shapes, dtypes)))
    length = _batch_of(record, call.operands, shapes)
    if length is None:
        return None
    axes, spread = [], []
    for name, shape, each in zip(call.operands, shapes, batched):
        field = record.by_name[name]
        axis = _batch_axis(field, len(shape))
        single = "d_" + name in call.results or field.is_updated  # each element has to have one of its own
        if axis is None and (each or _BATCH_WORD.search(field.unit)):
            return None
        if axis is not None and shape[axis] != length:
            if each or single:
                return None
            axis = None
        if axis is not None and not each and length == 1 and not single and BATCH + "|1" in field.unit:
            axis = None  # it is broadcast over the batch, however long
        axes.append(axis)
        spread.append(axis is not None and not each)
    results = []
    for name in call.results:
        axis = _batch_axis(record.by_name[name], len(specs[name][0]))
        if axis is None or specs[name][0][axis] != length:
            return None
        results.append(axis)
    folded = [
        shape if axis is None else (*shape[:axis], size * length, *shape[axis + 1 :])
        for shape, axis in zip(shapes, axes)
    ]
    try:
        call.specs(folded, dtypes)
    except _library.Error:
        return None
    return Folding(axes, spread, length, results)


def _folded(arrays, run, call, folding, size, given):
    """All elements by one call with a greater batch."""
    joined = []
    for array, axis, spread in zip(given, folding.axes, folding.spread):
        if spread:
            array = arrays.broadcast_to(array, (size, *array.shape))
        if axis is not None:
            array = arrays.moveaxis(array, 0, axis)
            array = array.reshape(*array.shape[:axis], size * folding.length, *array.shape[axis + 2 :])
        joined.append(array)
    parts = []
    for result, axis in zip(run(call)(*joined), folding.results):
        apart = result.reshape(*result.shape[:axis], size, folding.length, *result.shape[axis + 1 :])
        parts.append(arrays.moveaxis(apart, axis, 0))
    return tuple(parts)


def _one_by_one(arrays, run, call, size, given, batched):
    """All elements by a call that computes one after the other; those of a mapped call are joined with its own."""
    own = call.elements or 1
    joined, mapped = [], []
    for i, (array, each, before) in enumerate(zip(given, batched, call.mapped)):
        if not each and (before or i in call.aliases):
            array = arrays.broadcast_to(array, (size, *array.shape))
            each = True
        if call.elements and each:
            if not before:
                array = arrays.broadcast_to(array[:, None], (size, own, *array.shape[1:]))
            array = array.reshape(size * own, *array.shape[2:])
        joined.append(array)
        mapped.append(each)
    new = call_of(call.name, call.operands, call.results, call.arguments, size * own, tuple(mapped))
    results = run(new)(*joined)
    if call.elements:
        results = tuple(r.reshape(size, own, *r.shape[1:]) for r in results)
    return tuple(results)


def run_mapped(arrays, run, call, size, given, batched):
    """The results of a call for each of `size` elements, which lie along the first axes of operands that are `batched`.

    `arrays` is a module with broadcast_to() and moveaxis(), `run` makes a function of a call's operands.
    """
    shapes = [tuple(a.shape[1:]) if each else tuple(a.shape) for a, each in zip(given, batched)]
    dtypes = [a.dtype for a in given]
    folding = folding_of(call, size, shapes, dtypes, batched)
    if folding is not None:
        return _folded(arrays, run, call, folding, size, given)
    return _one_by_one(arrays, run, call, size, given, batched)


# ---- Functions -------------------------------------------------------------------------------------------------------


class Function:
    """What a framework's function of an operation is made from."""

    def __init__(self, name):
        self.operation = catalogue()[name]
        self.arguments = _signature.argument_list(self.operation, destinations=False)
        self.signature = _signature.signature(self.operation, destinations=False)
        self.names = [a.field.name if a.use == "input" else a.name for a in self.arguments]

    def given(self, positional, keywords):
        """The arguments of a call by the names of fields and of the binding's own."""
        said = self.signature.bind(*positional, **keywords)
        said.apply_defaults()
        return dict(zip(self.names, said.arguments.values()))

    def dress(self, function, module):
        """Gives a function name, signature and docstring."""
        name = self.operation.name
        function.__name__ = function.__qualname__ = name
        function.__module__ = module
        function.__signature__ = self.signature
        function.__doc__ = _signature.docstring(self.operation, catalogue().gradient_of(name), destinations=False)
        return function
