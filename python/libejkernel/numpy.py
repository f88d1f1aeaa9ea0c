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


def plan(function, *arguments, **keywords):
    """The plan of a call that is not made: `describe()` says what runs, `explain()` why.

    Parameters
    ----------
    function : callable or str
        An operation of this module, or its name.
    *arguments, **keywords
        Those of the call.
    """
    from . import _arrays

    return _arrays.made(function).prepared(arguments, keywords)[0]


def vjp(function, *arguments, **keywords):
    """A call, and what takes the cotangents of its results to the gradients of its inputs.

    Parameters
    ----------
    function : callable or str
        An operation of this module, or its name.
    *arguments, **keywords
        Those of the call.

    Returns
    -------
    results
        What the call returns.
    pullback : callable
        Takes a cotangent for each result in their order, None for zeros, and returns the gradients of the arrays
        that were given, as a named tuple or, of one, an array.
    """
    from . import _gradients

    return _gradients.vjp(function, *arguments, **keywords)


def __dir__():
    return sorted([*_catalogue().names(), "plan", "vjp"])
