# SPDX-License-Identifier: Apache-2.0
"""Values of Python into the structs of the library, by the places that descriptions say."""

from __future__ import annotations

import json
import numbers
import struct

from ._library import fail

MAX_RANK = 8
MAX_INTS = 16
MAX_TENSORS = 8
TENSOR_SIZE = 152
NAME_SIZE = 48

#: Names of element types by their numbers, from EJK_DTYPE_LIST.
DTYPE_NAMES = {
    1: "float64", 2: "float32", 3: "bfloat16", 4: "float16", 5: "int64", 6: "int32", 7: "int16", 8: "int8",
    9: "uint8", 10: "bool", 11: "float8_e4m3fn", 12: "float8_e5m2", 13: "float8_e8m0fnu", 14: "uint32",
    15: "int4", 16: "uint4",
}  # fmt: skip
DTYPES = {name: number for number, name in DTYPE_NAMES.items()}


def _refuse(name, value, expected):
    fail("INVALID_ARGUMENT", f"{name} is {value!r}, expected {expected}")


def _truth(name, value):
    if value is True or value is False or value in (0, 1) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    return _refuse(name, value, "a truth value")


def integer(name, value):
    """A whole number of 64 bits, of Python or of NumPy."""
    if isinstance(value, numbers.Integral) or (hasattr(value, "__index__") and not isinstance(value, str)):
        whole = int(value)
        if -(2**63) <= whole < 2**63:
            return whole
    return _refuse(name, value, "a whole number of 64 bits")


def _number(name, value):
    if isinstance(value, (str, bytes)):
        return _refuse(name, value, "a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        return _refuse(name, value, "a number")


def _window_side(name, value):
    return (0, 0) if value is None else (integer(name, value), 1)


def _window(name, value):
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            return _refuse(name, value, "(left, right), each a whole number or None, or one number for both")
        sides = [_window_side(name, each) for each in value]
    else:
        sides = [_window_side(name, value)] * 2
    return struct.pack("<qB7xqB7x", *sides[0], *sides[1])


def _text(name, value):
    value = getattr(value, "value", value)  # a member of an enumeration
    if not isinstance(value, str):
        return _refuse(name, value, "a text")
    encoded = value.encode()
    if len(encoded) >= NAME_SIZE:
        return _refuse(name, value, f"fewer than {NAME_SIZE} bytes")
    return encoded.ljust(NAME_SIZE, b"\0")


def dtype_name(value):
    """The library's name of an element type: of a text, a NumPy, JAX or PyTorch type."""
    if isinstance(value, str):
        return {"bool_": "bool"}.get(value, value)
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    if name is None or name == "dtype":
        name = str(value).rpartition(".")[2]
    return {"bool_": "bool"}.get(name, name)


def _dtype(name, value):
    number = DTYPES.get(dtype_name(value))
    if number is None:
        return _refuse(name, value, "one of " + ", ".join(DTYPES))
    return struct.pack("<i", number)


def _integers(name, value):
    try:
        values = [integer(name, each) for each in value]
    except TypeError:
        return _refuse(name, value, "a list of whole numbers")
    if len(values) > MAX_INTS:
        return _refuse(name, value, f"at most {MAX_INTS} numbers")
    return struct.pack(f"<{MAX_INTS}qi4x", *values, *[0] * (MAX_INTS - len(values)), len(values))


_PACK = {
    "BOOL": lambda name, value: struct.pack("<?", _truth(name, value)),
    "INT": lambda name, value: struct.pack("<q", integer(name, value)),
    "FLOAT": lambda name, value: struct.pack("<d", _number(name, value)),
    "OPT_BOOL": lambda name, value: struct.pack("<i", 1 if _truth(name, value) else 2),
    "OPT_INT": lambda name, value: struct.pack("<qB7x", integer(name, value), 1),
    "OPT_FLOAT": lambda name, value: struct.pack("<dB7x", _number(name, value), 1),
    "WINDOW": _window,
    "NAME": _text,
    "DTYPE": _dtype,
    "INTS": _integers,
}


def plain(value):
    """A configuration as dicts: of a dict, JSON, a dataclass, or what has to_dict()."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            fail("MALFORMED", f"cfg is no JSON: {error}")
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return value
    return _refuse("cfg", value, "a dict, a dataclass or JSON")


def pack(record, values, buffer, base=0, prefix=""):
    """Writes values into a struct at `base` of a bytearray of zeros; those that are None are not set.

    Nested records are dicts. Tensors are left alone.
    """
    for name, value in values.items():
        field = record.by_name.get(name)
        if field is None:
            fail("UNKNOWN_NAME", f"{prefix}{name} is unknown, expected one of {', '.join(record.by_name)}")
        if value is None or field.kind in ("TENSOR", "TENSORS"):
            continue
        at = base + field.offset
        if field.kind == "RECORD":
            pack(field.record, plain(value), buffer, at, f"{prefix}{name}.")
        else:
            packed = _PACK[field.kind](prefix + name, value)
            buffer[at : at + len(packed)] = packed


def pack_tensor(name, offset, buffer, view):
    """Writes a view without its address."""
    rank = len(view.shape)
    if rank > MAX_RANK:
        fail("INVALID_SHAPE", f"{name}: rank {rank} given, expected at most {MAX_RANK}")
    rest = [0] * (MAX_RANK - rank)
    lengths = (*view.shape, *rest, *view.strides, *rest)
    struct.pack_into("<Qii16qii", buffer, offset, 0, view.dtype, rank, *lengths, *view.device)


def unpack_tensor(offset, buffer):
    """(number of its type, shape, strides, device) of a view."""
    _, dtype, rank, *rest = struct.unpack_from("<Qii16qii", buffer, offset)
    return dtype, tuple(rest[:rank]), tuple(rest[MAX_RANK : MAX_RANK + rank]), tuple(rest[-2:])


def pack_tensors(field, buffer, views):
    """Writes a list of views."""
    if len(views) > MAX_TENSORS:
        fail("INVALID_ARGUMENT", f"{field.name} has {len(views)} tensors, expected at most {MAX_TENSORS}")
    for member, view in enumerate(views):
        pack_tensor(f"{field.name}[{member}]", field.offset + member * TENSOR_SIZE, buffer, view)
    struct.pack_into("<i", buffer, field.offset + MAX_TENSORS * TENSOR_SIZE, len(views))


def contiguous(shape):
    """Row-major strides, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
