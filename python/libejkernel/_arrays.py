# SPDX-License-Identifier: Apache-2.0
"""Functions on NumPy arrays, made from the description of their operations.

A call looks its plan up by shapes, strides and types of its arrays and by its other arguments, writes addresses into a
struct that is kept with the plan, and executes it: some 2 µs beside the library's own time, which is why each function
is a text of its own, compiled when it is first asked for. What is not found, or is not an array of NumPy, takes the
slow way: it is brought into that form, a plan is made, and the next such call is fast.
"""

from __future__ import annotations

import ctypes
import json
import textwrap

import numpy as np

from . import _calls, _device, _dlpack, _library, _records, _signature
from ._description import catalogue

_IMMUTABLE = ("jax", "jaxlib")  # their arrays never change, though DLPack does not say so
_MOST_PLANS = 256  # of a function; what is beyond is rare, and made again

_at = ctypes.c_size_t.from_address
_header = object.__basicsize__


def _address_is_first():
    """True if an array's address is what follows its object's header, as in NumPy's C ABI."""
    probe = np.zeros(3)
    return _at(id(probe) + _header).value == probe.ctypes.data


_ADDRESS = f"_at(id({{0}}) + {_header}).value" if _address_is_first() else "{0}.ctypes.data"


_address_of = eval("lambda array: " + _ADDRESS.format("array"))


class _NotFast(Exception):
    """An argument has to be looked at more closely."""


def _view_key(array):
    if array.__class__ is not np.ndarray:
        raise _NotFast
    return array.shape, array.strides, array.dtype


def _list_key(arrays):
    return tuple(map(_view_key, arrays))


def _write_list(slots, first, arrays):
    """The addresses of a list of tensors."""
    for member, array in enumerate(arrays):
        slots[first + member * (_records.TENSOR_SIZE // 8)] = _address_of(array)


def _target_key(array):
    if array.__class__ is not np.ndarray or not array.flags.writeable:
        raise _NotFast
    return array.shape, array.strides, array.dtype


class _Memory:
    """A call's struct, to write addresses into."""

    __slots__ = ("address", "buffer", "slots")

    def __init__(self, template):
        self.buffer = bytearray(template)
        self.slots = (ctypes.c_size_t * (len(template) // 8)).from_buffer(self.buffer)
        self.address = ctypes.addressof(self.slots)


class _Prepared:
    """A plan with all that a call of its kind needs."""

    __slots__ = ("free", "handle", "made", "one", "optional", "order", "plan", "rest", "result", "template")

    def __init__(self, plan, template, optional, made, order, result):
        self.plan, self.handle, self.template = plan, plan.handle, bytes(template)
        self.free = []  # structs not in use; calls that overlap have one each
        self.rest = None  # of its key: what is not of required arrays
        self.optional = optional  # whether more than the required arrays is given
        self.made = made  # (slot, shape, type) of the results to be allocated
        self.order = order  # of results: places in `made`, or -1 - i of destination i; None = as made
        self.result = result  # a named tuple; None where there is one result
        self.one = made[0] if order is None and result is None else None

    def memory(self):
        return _Memory(self.template)


def _several(call, memory, given):
    """The end of a call that has not just one new result."""
    slots, made = memory.slots, []
    for slot, shape, dtype in call.made:
        new = _empty(shape, dtype)
        slots[slot] = _address_of(new)
        made.append(new)
    status = _execute(call.handle, memory.address, None, 0)
    call.free.append(memory)
    if status:
        _library.check(status)
    if call.order is not None:
        made = [made[i] if i >= 0 else given[-1 - i] for i in call.order]
    return made[0] if call.result is None else _new_tuple(call.result, made)  # which its own __new__ calls, in Python


_execute, _empty, _new_tuple = _library.lib.ejk_plan_execute, np.empty, tuple.__new__

_MAIN = """
def {name}({parameters}):
    if {arrays}:
        try:
            _first = ({first},)
            _rest = ({rest},)
            _call = _recent.get(_first)
            if _call is None or _call.rest != _rest:
                _call = _recent[_first] = _plans[_first, _rest]
        except (KeyError, TypeError, ValueError, _NotFast):
            pass
        else:
{body}
    return _slow({names})

def _key({names}):
    return ({first},), ({rest},)

def _run(_call, {names}):
{short_body}
"""

_BODY = """
try:
    _memory = _call.free.pop()
except IndexError:
    _memory = _call.memory()
_slots = _memory.slots
{required}
if _call.optional:
{optional}
_one = _call.one
if _one is None:
    return _several(_call, _memory, ({outputs}))
_slot, _shape, _dtype = _one
_new = _empty(_shape, _dtype)
_slots[_slot] = {new}
_status = _execute(_call.handle, _memory.address, None, 0)
_call.free.append(_memory)
if _status:
    _check(_status)
return _new
"""


def _is_array(argument):
    return argument.use in ("input", "output") and argument.field.kind == "TENSOR"


def _is_list(argument):
    return argument.use == "input" and argument.field.kind == "TENSORS"


def _is_needed(argument):
    return _is_array(argument) and argument.use == "input" and argument.field.is_required


def _rest_key(argument):
    name = argument.name
    if _is_list(argument):
        return f"{name} if {name} is None else _list_key({name})"
    if not _is_array(argument):
        return name
    view = "_target_key" if argument.field.is_output else "_view_key"
    return f"{name} if {name} is None else {view}({name})"


def _first_key(argument):
    name = argument.name
    if argument.field.is_updated:
        return f"_target_key({name})"
    return f"{name}.shape, {name}.strides, {name}.dtype"


def _slot(argument):
    if _is_list(argument):
        return f"_write_list(_slots, {argument.field.offset // 8}, {argument.name})"
    return f"_slots[{argument.field.offset // 8}] = {_ADDRESS.format(argument.name)}"


def _source(operation, arguments):
    needed = [a for a in arguments if _is_needed(a)]
    optional = [a for a in arguments if _is_list(a) or _is_array(a) and not _is_needed(a)]
    outputs = [a.name for a in arguments if a.use == "output"] + [f.name for f in operation.updated]
    body = _BODY.format(
        required="\n".join(_slot(a) for a in needed),
        optional="\n".join(f"    if {a.name} is not None:\n        {_slot(a)}" for a in optional) or "    pass",
        outputs="".join(name + ", " for name in outputs),
        new=_ADDRESS.format("_new"),
    )
    return _MAIN.format(
        name=operation.name,
        parameters=_signature.parameter_text(arguments),
        arrays=" and ".join(f"{a.name}.__class__ is _ndarray" for a in needed) or "True",
        first=", ".join(_first_key(a) for a in needed) or "None",
        rest=", ".join(_rest_key(a) for a in arguments if not _is_needed(a)) or "None",
        names=", ".join(a.name for a in arguments),
        body=textwrap.indent(body, " " * 12),
        short_body=textwrap.indent(body, " " * 4),
    )


# ---- The slow way ----------------------------------------------------------------------------------------------------


def as_array(name, value, writable=False):
    """A NumPy array of the same memory, if there is one; of Python's numbers a new one."""
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    if _device.is_on_gpu(value):
        return _device.DeviceTensor(name, value)
    if hasattr(value, "__dlpack__"):
        return _dlpack.to_numpy(name, value, writable)
    if hasattr(value, "__array__") or isinstance(value, (list, tuple, int, float)):
        return np.asarray(value)
    return _library.fail("INVALID_ARGUMENT", f"{name} is {value!r}, expected an array")


def _number_of(name, dtype):
    number = _records.DTYPES.get(dtype.name)
    if number is None or not dtype.isnative:
        _library.fail("INVALID_DTYPE", f"{name}: {dtype} given, expected one of {', '.join(_records.DTYPES)}")
    if dtype.name in ("int4", "uint4"):
        _library.fail(
            "INVALID_DTYPE", f"{name}: {dtype} has a byte for each number here, expected two numbers to a byte"
        )
    return number


def view_of(name, array):
    """The library's view of an array."""
    size = array.dtype.itemsize
    if array.size == 0:  # of which NumPy says strides of 0
        return _calls.View(_number_of(name, array.dtype), array.shape)
    if any(step % size for step in array.strides):
        _library.fail(
            "INVALID_LAYOUT", f"{name}: strides {array.strides} are no multiples of {size} bytes, the element"
        )
    return _calls.View(_number_of(name, array.dtype), array.shape, [step // size for step in array.strides])


def _views_of(name, value):
    """The view of an array, or those of a list."""
    if isinstance(value, tuple):
        return [_views_of(f"{name}[{member}]", array) for member, array in enumerate(value)]
    return value.view if isinstance(value, _device.DeviceTensor) else view_of(name, value)


def _members(name, value):
    """A list of tensors; None where it is empty, which means the same."""
    if isinstance(value, (np.ndarray, str)) or not hasattr(value, "__iter__"):
        _library.fail("INVALID_ARGUMENT", f"{name} is {value!r}, expected a sequence of arrays")
    return tuple(as_array(f"{name}[{member}]", each) for member, each in enumerate(value)) or None


def _frozen(value):
    """A value that can be a key."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, np.generic):
        return value.item()
    return value


class _Function:
    """An operation's function: its text, and the slow way."""

    def __init__(self, operation, context=None):
        """`context` makes the plans, by default the process's."""
        self.operation, self.context = operation, context
        self.arguments = _signature.argument_list(operation)
        self.plans, self.recent = {}, {}
        names = {
            "_at": _at, "_ndarray": np.ndarray, "_empty": _empty, "_plans": self.plans, "_recent": self.recent,
            "_NotFast": _NotFast, "_view_key": _view_key, "_target_key": _target_key, "_check": _library.check,
            "_slow": self.slow, "_execute": _execute, "_several": _several,
            "_list_key": _list_key, "_write_list": _write_list,
        }  # fmt: skip
        exec(compile(_source(operation, self.arguments), f"<{operation.name}>", "exec"), names)
        self.function = function = names[operation.name]
        self.key, self.run = names["_key"], names["_run"]
        function.__module__ = "libejkernel.numpy"
        function.__qualname__ = operation.name
        function.__doc__ = _signature.docstring(operation, catalogue().gradient_of(operation.name))
        function.__signature__ = _signature.signature(operation)
        _library.on_context_change(self.forget)

    def forget(self):
        """Drops all plans."""
        self.plans.clear()
        self.recent.clear()

    def slow(self, *values):
        values, originals = self._normal(list(values))
        try:
            key = self.key(*values)
            call = self.plans.get(key)
        except (TypeError, AttributeError, _NotFast):
            key = call = None
        on_device = _device.key_of(values)
        if on_device is not None:
            return self._on_device(on_device, values, originals)
        if call is None:
            call = self._prepare(values)
            if key is not None:
                if len(self.plans) >= _MOST_PLANS:
                    self.forget()
                call.rest = key[1]
                self.plans[key] = call
        values = [None if v.__class__ is np.dtype else v for v in values]
        result = self.run(call, *values)
        if not originals:
            return result
        if call.result is None:
            return originals.get(id(result), result)
        return call.result._make(originals.get(id(each), each) for each in result)

    def _on_device(self, key, values, originals):
        """A call with tensors on a GPU: plans are kept, too, and results have destinations."""
        call = self.plans.get(key)
        if call is None:
            call = self._prepare(values)
            if len(self.plans) >= _MOST_PLANS:
                self.forget()
            self.plans[key] = call
        given = _device.run(call, self.arguments, values)
        results = [originals[id(given[name])] for name in call.made]
        return results[0] if call.result is None else call.result._make(results)

    def _normal(self, values):
        """Arrays for tensors, hashable values for others; and by the ids of arrays what they were made of."""
        originals = {}
        given = {argument.name: value for argument, value in zip(self.arguments, values)}
        info = given.get("mask_info") if self.operation.takes_mask_info else None
        extra = info.call_arguments(given, self.operation) if info is not None else {}
        for i, argument in enumerate(self.arguments):
            value = extra.get(argument.name, values[i])
            field = argument.field
            if argument.use == "mask":
                value = None
            elif value is None or argument.use == "return":
                pass
            elif field.kind == "TENSOR":
                value = self._tensor(argument, value, originals)
            elif field.kind == "TENSORS":
                value = _members(argument.name, value)
            elif field.kind == "RECORD":
                value = json.dumps(_records.plain(value), sort_keys=True, default=_plain_deep)
            elif field.kind == "DTYPE":
                value = _records.dtype_name(value)
            else:
                value = _frozen(value)
            values[i] = value
        return values, originals

    def _tensor(self, argument, value, originals):
        name, field = argument.name, argument.field
        if argument.use == "output" and (isinstance(value, (str, np.dtype)) or isinstance(value, type)):
            return _dlpack.numpy_dtype(_records.dtype_name(value))
        array = as_array(name, value, field.is_output)
        if field.is_output:
            if not isinstance(value, np.ndarray) and not hasattr(value, "__dlpack__"):
                _library.fail("INVALID_ARGUMENT", f"{name} is {value!r}, expected an array to write to")
            if isinstance(array, _device.DeviceTensor):
                originals[id(array)] = value
                return array
            if not array.flags.writeable or type(value).__module__.partition(".")[0] in _IMMUTABLE:
                _library.fail("INVALID_ARGUMENT", f"{name} is read-only, expected an array to write to")
            originals[id(array)] = value
        return array

    def _wanted(self, given, arrays):
        """Names of the results: required, asked for, or with a destination."""
        asked = set()
        for field in self.operation.outputs:
            name = field.name
            flag = given.get("return_" + name)
            if field.is_required or flag or (name in given and given[name] is not None):
                asked.add(name)
        asked = asked or set(self.operation.default_results(arrays))
        named = [field.name for field in self.operation.outputs if field.name in asked]
        return named or [field.name for field in self.operation.updated if field.name in arrays]

    def _prepare(self, values):
        operation = self.operation
        given = dict(zip((argument.name for argument in self.arguments), values))
        arrays, others, types = {}, {}, {}
        for argument, value in zip(self.arguments, values):
            if argument.use not in ("input", "output") or value is None:
                continue
            name = argument.field.name
            if argument.use == "output" and isinstance(value, np.dtype):
                types[name] = value
            elif argument.field.kind in ("TENSOR", "TENSORS"):
                arrays[name] = value
            else:
                others[name] = value
        results = self._wanted(given, arrays)
        views = {name: _views_of(name, array) for name, array in arrays.items()}
        others = _calls.given_values(operation, others)
        make = [name for name in results if name not in arrays]
        if any(map(_device.is_there, arrays.values())):
            return self._prepare_on_device(views, others, results, make)
        forced = {name: _number_of(name, dtype) for name, dtype in types.items()}
        plan, template, made = _calls.prepare(operation, views, others, make, self.context, forced)
        by_name = operation.args.by_name
        needed = sum(map(_is_needed, self.arguments))
        return _Prepared(
            plan,
            template,
            len(arrays) > needed,
            [
                (by_name[n].offset // 8, v.shape, _dlpack.numpy_dtype(_records.DTYPE_NAMES[v.dtype]))
                for n, v in made.items()
            ],
            self._order(results, make),
            self.result_type(results),
        )

    def _prepare_on_device(self, views, others, results, make):
        if make:
            sentence = f"{make[0]}: the call's tensors lie on a GPU, expected {make[0]}= with memory there"
            _library.fail("INVALID_ARGUMENT", sentence)
        plan, template, _ = _calls.prepare(self.operation, views, others, [], self.context)
        return _Prepared(plan, template, True, results, results, self.result_type(results))

    def _order(self, results, make):
        destinations = [argument.field.name for argument in self.arguments if argument.use == "output"]
        destinations += [field.name for field in self.operation.updated]
        if results == make:
            return None
        return [make.index(name) if name in make else -1 - destinations.index(name) for name in results]

    def result_type(self, results):
        """The named tuple of several results; None of one."""
        if len(results) == 1:
            return None
        return _signature.result_type(self.operation.name, tuple(results), "libejkernel.numpy")

    # What others ask of a call

    def values_of(self, arguments, keywords):
        """The values of all parameters, as a call would have them."""
        bound = self.function.__signature__.bind(*arguments, **keywords)
        bound.apply_defaults()
        return list(bound.arguments.values())

    def prepared(self, arguments, keywords):
        """(plan, struct with the addresses of what is given, arrays to be kept) of a call that is not made."""
        values, _ = self._normal(self.values_of(arguments, keywords))
        call = self._prepare(values)
        memory = call.memory()
        for argument, value in zip(self.arguments, values):
            if argument.use in ("input", "output") and isinstance(value, np.ndarray):
                memory.slots[argument.field.offset // 8] = value.ctypes.data
            elif _is_list(argument) and value is not None:
                _write_list(memory.slots, argument.field.offset // 8, value)
        return call.plan, memory, values


def _plain_deep(value):
    """What is inside a configuration, for JSON."""
    return value.item() if isinstance(value, np.generic) else _records.plain(value)


_functions = {}


def made(function):
    """What is behind a function of libejkernel.numpy, by it or by its name."""
    name = function if isinstance(function, str) else getattr(function, "__name__", None)
    if name not in catalogue():
        _library.fail("UNKNOWN_NAME", f"{function!r} is no operation, expected one of {', '.join(catalogue().names())}")
    if name not in _functions:
        _functions.setdefault(name, _Function(catalogue()[name]))
    return _functions[name]


def function_of(name):
    """The function of an operation on NumPy arrays."""
    return made(name).function
