# SPDX-License-Identifier: Apache-2.0
"""The library's tensors as ctypes, to and from NumPy arrays."""

from __future__ import annotations

import ctypes

import numpy as np

from . import _dlpack, _records


class Tensor(ctypes.Structure):
    """ejk_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 8),
        ("strides", ctypes.c_int64 * 8),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
    ]


class OptInt(ctypes.Structure):
    """ejk_opt_int."""

    _fields_ = [("value", ctypes.c_int64), ("set", ctypes.c_bool)]


class OptFloat(ctypes.Structure):
    """ejk_opt_float."""

    _fields_ = [("value", ctypes.c_double), ("set", ctypes.c_bool)]


class Window(ctypes.Structure):
    """ejk_window."""

    _fields_ = [("left", OptInt), ("right", OptInt)]


def opt_int(value):
    return OptInt() if value is None else OptInt(int(value), True)


def opt_float(value):
    return OptFloat() if value is None else OptFloat(float(value), True)


def opt_bool(value):
    return 0 if value is None else 1 if value else 2


def window(value):
    left, right = value if isinstance(value, (tuple, list)) else (value, value)
    return Window(opt_int(left), opt_int(right))


def window_value(each):
    """A window as Python has it; None where it has no limit."""
    left, right = ((side.value if side.set else None) for side in (each.left, each.right))
    return None if left is None and right is None else (left, right)


def tensor(name, value):
    """A view of an array, which has to be kept; of None no tensor."""
    from . import _arrays

    if value is None:
        return Tensor(), None
    array = _arrays.as_array(name, value)
    view = _arrays.view_of(name, array)
    made = Tensor(array.ctypes.data, view.dtype, len(view.shape))
    made.shape[: len(view.shape)] = view.shape
    made.strides[: len(view.strides)] = view.strides
    return made, array


def array(view, owner):
    """A tensor as an array that keeps `owner`, which has the memory; None where there is none."""
    if not view.dtype:
        return None
    dtype = _dlpack.numpy_dtype(_records.DTYPE_NAMES[view.dtype])
    shape = tuple(view.shape[: view.rank])
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = [step * dtype.itemsize for step in view.strides[: view.rank]]
    span = sum((n - 1) * s for n, s in zip(shape, strides)) + dtype.itemsize
    memory = (ctypes.c_char * span).from_address(view.data)
    memory.owner = owner
    made = np.ndarray(shape, dtype, memory, 0, strides)
    made.flags.writeable = False
    return made
