# SPDX-License-Identifier: Apache-2.0
"""Labels of calls in lowered programs."""

from __future__ import annotations

import ctypes

from . import _library

lib = _library.lib
_P, _I, _L = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class _Match(ctypes.Structure):
    _fields_ = [
        ("text", ctypes.c_char_p),
        ("offset", ctypes.c_size_t),
        ("length", ctypes.c_size_t),
        ("json", ctypes.c_bool),
        ("prefix_length", ctypes.c_size_t),
    ]


_library.declare(
    {
        "ejk_extract_labels_from_hlo_text": ((ctypes.c_char_p, ctypes.c_size_t, _P), _I),
        "ejk_labels_count": ((_P,), _L),
        "ejk_labels_get": ((_P, _L), ctypes.POINTER(_Match)),
        "ejk_labels_free": ((_P,), None),
        "ejk_label_ex": ((ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, _P), _I),
    }
)


def extract_labels_from_hlo_text(text):
    """The labels in a program's text, HLO or StableHLO, in its order."""
    data, handle = text.encode(), ctypes.c_void_p()
    _library.check(lib.ejk_extract_labels_from_hlo_text(data, len(data), ctypes.byref(handle)))
    try:
        return [lib.ejk_labels_get(handle, i).contents.text.decode() for i in range(lib.ejk_labels_count(handle))]
    finally:
        lib.ejk_labels_free(handle)


def find_labels_in_lowered(lowered):
    """The same of what `jax.jit(f).lower(...)` returns, or of anything with `as_text()`."""
    return extract_labels_from_hlo_text(lowered if isinstance(lowered, str) else lowered.as_text())


def label(op_id, call_hash, prefix=None):
    """The text of a label."""
    encoded = prefix.encode() if prefix else None
    return _library.text_from(lib.ejk_label_ex, op_id.encode(), call_hash.encode(), encoded)
