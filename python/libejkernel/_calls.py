# SPDX-License-Identifier: Apache-2.0
"""Calls put together: structs of arguments, results that follow, plans. What all bindings share."""

from __future__ import annotations

import ctypes

from . import _library, _records
from ._description import catalogue


class View:
    """What a call has to know of a tensor, but for its address: strides count elements."""

    __slots__ = ("device", "dtype", "shape", "strides")

    def __init__(self, dtype, shape, strides=None, device=(0, 0)):
        self.dtype, self.shape, self.device = dtype, tuple(shape), device
        self.strides = _records.contiguous(shape) if strides is None else tuple(strides)


class Plan:
    """A call's plan: what `execute` runs. It keeps its context."""

    def __init__(self, context, operation, arguments, results=""):
        self.handle, self.context = context.plan(operation.name, arguments, results), context

    def __del__(self, destroy=_library.lib.ejk_plan_destroy, getpid=_library.os.getpid):
        handle = getattr(self, "handle", None)
        if handle and self.context.process == getpid():
            destroy(handle)

    def describe(self):
        """What was chosen, as a dict: implementation, parameters, workers, workspace."""
        return _library.json_from(_library.lib.ejk_plan_describe, self.handle)

    def explain(self):
        """All implementations, with what stands against each."""
        return _library.json_from(_library.lib.ejk_plan_explain, self.handle)


def given_values(operation, values):
    """The fields that are not at their defaults: what has to be written into the struct."""
    given = {}
    for name, value in values.items():
        field = operation.args.by_name[name]
        default = field.default
        if value is None or (default is not None and type(value) is type(default) and value == default):
            continue
        given[name] = value
    return given


def arguments(operation, views, values):
    """The struct of a call, as a bytearray: `views` by the names of tensors, `values` of the other fields.

    Of a list of tensors there is a sequence of views.
    """
    buffer = bytearray(operation.args.size)
    _records.pack(operation.args, values, buffer)
    for name, view in views.items():
        field = operation.args.by_name[name]
        if field.kind == "TENSORS":
            _records.pack_tensors(field, buffer, view)
        else:
            _records.pack_tensor(name, field.offset, buffer, view)
    return buffer


def _address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def prepare(operation, views, values, wanted, context=None, forced=None):
    """The plan of a call, its struct without addresses, and the views of its results.

    `views` are the tensors that are given, destinations of results too; `values` the fields that are set; `wanted`
    names the results for which there is no destination yet: what they look like the library says. `forced` has the
    numbers of their types as far as they are given. Raises the library's exceptions.
    """
    context = context or _library.context()
    buffer = arguments(operation, views, values)
    if not wanted:
        return Plan(context, operation, _address(buffer)), buffer, {}
    for name, dtype in (forced or {}).items():
        _records.pack_tensor(name, operation.args.by_name[name].offset, buffer, View(dtype, ()))
    plan = Plan(context, operation, _address(buffer), ",".join(wanted))
    return plan, buffer, {name: _view_at(operation, name, buffer) for name in wanted}


def _view_at(operation, name, buffer):
    return View(*_records.unpack_tensor(operation.args.by_name[name].offset, buffer))


def abstract(name, shape, dtype):
    """The view of a tensor without memory, of a type by its name or the framework's own."""
    number = _records.DTYPES.get(_records.dtype_name(dtype))
    if number is None:
        _library.fail("INVALID_DTYPE", f"{name}: {dtype} given, expected one of {', '.join(_records.DTYPES)}")
    return View(number, shape)


def infer(name, tensors, values=None, results=None):
    """Shapes and element types of a call's results, without any memory.

    Parameters
    ----------
    name : str
        The operation.
    tensors : dict
        A pair (shape, name of the element type) for each tensor that is given; a list of pairs for a list of tensors.
    values : dict, optional
        The other arguments.
    results : sequence of str, optional
        Names of results; by default those of a call that asks for none.

    Returns
    -------
    dict
        A pair (shape, name of the element type) for each result, in the order of the record. The library has
        checked the call: what it cannot compute is an exception here.
    """
    operation = catalogue()[name]
    values = given_values(operation, values or {})
    views = {}
    for each, given in tensors.items():
        if operation.args.by_name[each].kind == "TENSORS":
            views[each] = [abstract(each, *member) for member in given]
        else:
            views[each] = abstract(each, *given)
    if results is None:
        results = operation.default_results(views)
    plan, _, made = prepare(operation, views, values, results)
    del plan
    return {each: (view.shape, _records.DTYPE_NAMES[view.dtype]) for each, view in made.items()}
