# SPDX-License-Identifier: Apache-2.0
"""Calls put together: structs of arguments, results that follow, plans. What all bindings share."""

from __future__ import annotations

import ctypes

from . import _library, _records, _shapes
from ._description import catalogue


class View:
    """What a call has to know of a tensor, but for its address: strides count elements."""

    __slots__ = ("device", "dtype", "shape", "strides")

    def __init__(self, dtype, shape, strides=None, device=(0, 0)):
        self.dtype, self.shape, self.device = dtype, tuple(shape), device
        self.strides = _records.contiguous(shape) if strides is None else tuple(strides)


class Plan:
    """A call's plan: what `execute` runs. It keeps its context."""

    def __init__(self, context, operation, arguments):
        handle = ctypes.c_void_p()
        kernel = context.kernel(operation.name)
        status = _library.lib.ejk_plan_create(context.handle, kernel, arguments, ctypes.byref(handle))
        _library.check(status)
        self.handle, self.context = handle.value, context

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
    """The struct of a call, as a bytearray: `views` by the names of tensors, `values` of the other fields."""
    buffer = bytearray(operation.args.size)
    _records.pack(operation.args, values, buffer)
    for name, view in views.items():
        field = operation.args.by_name[name]
        _records.pack_tensor(field, buffer, view.dtype, view.shape, view.strides, view.device)
    return buffer


def _address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _result_views(operation, views, values, wanted, number):
    record = operation.args
    shapes = {name: view.shape for name, view in views.items()}
    names = {name: _records.DTYPE_NAMES[view.dtype] for name, view in views.items()}
    integers = _records.set_integers(record, values)
    specs = _shapes.result_specs(record, shapes, names, integers, wanted, number)
    device = next(iter(views.values())).device if views else (0, 0)
    return {name: View(_records.DTYPES[dtype], shape, device=device) for name, (shape, dtype) in specs.items()}


def _numbers(operation, views, values):
    """Types that results that may be any float can have, in the order in which they are tried."""
    record = operation.args
    names = {name: _records.DTYPE_NAMES[view.dtype] for name, view in views.items()}
    asked = [_records.dtype_name(values[f.name]) for f in record.fields if f.kind == "DTYPE" and f.name in values]
    return dict.fromkeys([*asked, _shapes.first_float(record, names), "float32"])


def _report_shape(operation, views, values, context, error):
    """Raises what the library says of tensors that no shape follows from, else what was found here."""
    buffer = arguments(operation, views, values)
    try:
        Plan(context, operation, _address(buffer))
    except _library.Error as fault:
        if "missing" not in str(fault):
            raise
    _library.fail("INVALID_SHAPE", str(error))


def prepare(operation, views, values, wanted, context=None, forced=None):
    """The plan of a call, its struct without addresses, and the views of its results.

    `views` are the tensors that are given, destinations of results too; `values` the fields that are set; `wanted`
    names the results for which there is no destination yet: their shapes and element types follow from the units. A
    result that may be any float has the type that the call asks for by a field, else that of the first tensor, or
    float32 where the library takes nothing else; `forced` has the numbers of types that are given. Raises the library's
    exceptions.
    """
    context = context or _library.context()
    first = None
    for number in _numbers(operation, views, values):
        try:
            results = _result_views(operation, views, values, wanted, number)
        except _shapes.ShapeError as error:
            _report_shape(operation, views, values, context, error)
        for name, dtype in (forced or {}).items():
            results[name].dtype = dtype
        buffer = arguments(operation, {**views, **results}, values)
        try:
            return Plan(context, operation, _address(buffer)), buffer, results
        except _library.exceptions["INVALID_DTYPE"] as error:
            first = first or error
    raise first


def infer(name, tensors, values=None, results=None):
    """Shapes and element types of a call's results, without any memory.

    Parameters
    ----------
    name : str
        The operation.
    tensors : dict
        A pair (shape, name of the element type) for each tensor that is given.
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
    for each, (shape, dtype) in tensors.items():
        number = _records.DTYPES.get(_records.dtype_name(dtype))
        if number is None:
            _library.fail("INVALID_DTYPE", f"{each}: {dtype} given, expected one of {', '.join(_records.DTYPES)}")
        views[each] = View(number, shape)
    if results is None:
        results = operation.default_results(views)
    plan, _, made = prepare(operation, views, values, results)
    del plan
    return {each: (view.shape, _records.DTYPE_NAMES[view.dtype]) for each, view in made.items()}
