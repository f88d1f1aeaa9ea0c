# SPDX-License-Identifier: Apache-2.0
"""The operations on arrays of JAX, under jit, grad, vmap, scan, remat and shard_map.

Functions are made from the library's own description of its operations: `dir(libejkernel.jax)` lists them, and each has
its signature and docstring. States that NumPy's functions update in place are results here, behind the others; donate
them to have their memory used again.

    from libejkernel.jax import attention
    out, lse = attention(q, k, v, causal=True, return_lse=True)
"""

from ._description import catalogue as _catalogue


def __getattr__(name):
    if name.startswith("_") or name not in _catalogue():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _jax

    function = globals()[name] = _jax.function_of(name)
    return function


def __dir__():
    return _catalogue().names()
