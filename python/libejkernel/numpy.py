# SPDX-License-Identifier: Apache-2.0
"""The operations on NumPy arrays, and on whatever gives its memory by DLPack.

Functions are made from the library's own description of its operations: `dir(libejkernel.numpy)` lists them, and
each has its signature and docstring. Nothing is copied; the GIL is released while the library computes.

    import libejkernel.numpy as ejk
    out, lse = ejk.attention(q, k, v, causal=True, return_lse=True)
"""

from ._description import catalogue as _catalogue


def __getattr__(name):
    if name.startswith("_") or name not in _catalogue():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _arrays

    function = globals()[name] = _arrays.function_of(name)
    return function


def __dir__():
    return _catalogue().names()
