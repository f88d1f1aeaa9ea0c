# SPDX-License-Identifier: Apache-2.0
"""Kernels of operators in Python, for a PyTorch in which they cannot be registered in C (2.9).

They hand the tensors over to C as handles, as PyTorch's own compiled programs do; all else is as in C.
"""

from __future__ import annotations

import ctypes

import torch

from . import _library

_P, _I, _S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_library.declare({"ejk_torch_call": ((_S, _P, _I, _P, _P), _I)})

_MOST_RESULTS = 64
_Results = _P * _MOST_RESULTS

# Functions of their own: types of what ctypes.pythonapi has are the process's.
_address_of = ctypes.PYFUNCTYPE(_P, ctypes.py_object, _S)(("PyCapsule_GetPointer", ctypes.pythonapi))
_capsule_of = ctypes.PYFUNCTYPE(ctypes.py_object, _P, _S, _P)(("PyCapsule_New", ctypes.pythonapi))


def _results_of(tensors, text):
    handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(tensors)
    operands = (_P * len(handles))(*(_address_of(handle, None) for handle in handles))
    results, made = _Results(), _I()
    status = _library.lib.ejk_torch_call(text.encode(), operands, len(handles), results, ctypes.byref(made))
    if status:
        raise RuntimeError(f"{_library.lib.ejk_status_name(status).decode()}: {_library.last_sentence()}")
    capsules = [_capsule_of(handle, None, None) for handle in results[: made.value]]
    return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)  # its like for one keeps a reference


def returning_list(*arguments):
    """The kernel of operators that return a list of their results."""
    return _results_of([each for each in arguments[:-1] if each is not None], arguments[-1])


def of_list(tensors, text):
    """The kernel of those that take a list, too."""
    return _results_of(tensors, text)


def returning_values(*arguments):
    """The kernel of those that return them one by one."""
    results = returning_list(*arguments)
    return results[0] if len(results) == 1 else tuple(results) or None
