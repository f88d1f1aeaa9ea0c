# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries as NumPy arrays of the same memory, by DLPack."""

from __future__ import annotations

import ctypes

import numpy as np

from ._library import fail

_CPU, _CUDA_HOST, _CUDA_MANAGED = 1, 3, 13
_READ_ONLY = 1

#: DLPack's codes: int, uint, float, bfloat, bool and the 8-bit floats.
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_FLOAT8 = {10: "float8_e4m3fn", 12: "float8_e5m2", 14: "float8_e8m0fnu"}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def numpy_dtype(name):
    """NumPy's type of a name of the library's; those of ml_dtypes where NumPy has none."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _type_of(name, tensor):
    if tensor.lanes == 1 and tensor.code in _FLOAT8:
        return numpy_dtype(_FLOAT8[tensor.code])
    if tensor.lanes == 1 and tensor.code == 6:
        return np.dtype(bool)
    if tensor.lanes == 1 and tensor.code in _CODES:
        return numpy_dtype(f"{_CODES[tensor.code]}{tensor.bits}")
    return fail("INVALID_DTYPE", f"{name}: DLPack type {tensor.code} of {tensor.bits} bits is not known")


def _open(name, producer):
    """(its tensor, may it be written, what keeps it alive)."""
    try:
        capsule = producer.__dlpack__(max_version=(1, 0))
    except TypeError:  # older than DLPack 1.0
        capsule = producer.__dlpack__()
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major > 1:
            fail("UNAVAILABLE", f"{name}: DLPack {managed.major}.{managed.minor} given, expected 1")
        return managed.tensor, not managed.flags & _READ_ONLY, capsule
    return _Tensor.from_address(_pointer(capsule, b"dltensor")), True, capsule


def to_numpy(name, producer):
    """A view of a producer's memory. The array keeps it: an unused capsule gives it back when it goes."""
    kind = producer.__dlpack_device__()[0]
    if kind not in (_CPU, _CUDA_HOST, _CUDA_MANAGED):
        fail("UNAVAILABLE", f"{name}: lies on a device of DLPack's type {int(kind)}, expected memory of the CPU")
    tensor, writable, capsule = _open(name, producer)
    dtype = _type_of(name, tensor)
    shape = tuple(tensor.shape[: tensor.rank])
    strides = None
    if tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.rank])
    if 0 in shape or not tensor.data:
        return np.empty(shape, dtype)
    steps = strides or tuple(s * dtype.itemsize for s in _row_major(shape))
    low = sum((n - 1) * s for n, s in zip(shape, steps) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, steps) if s > 0) + dtype.itemsize
    memory = (ctypes.c_char * (high - low)).from_address(tensor.data + tensor.byte_offset + low)
    memory.owner = capsule
    array = np.ndarray(shape, dtype, memory, -low, steps)
    array.flags.writeable = writable
    return array


def _row_major(shape):
    steps, step = [], 1
    for length in reversed(shape):
        steps.append(step)
        step *= length
    return reversed(steps)
