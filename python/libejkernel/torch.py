# SPDX-License-Identifier: Apache-2.0
"""The operations on tensors of PyTorch: autograd, torch.compile, torch.export, torch.func, autocast.

Functions are made from the library's own description of its operations: `dir(libejkernel.torch)` lists them, and each
has its signature and docstring. The operators behind them are `torch.ops.libejkernel.*`.

    from libejkernel.torch import attention
    out, lse = attention(q, k, v, causal=True, return_lse=True)
"""

from . import _torch
from ._description import catalogue as _catalogue

_torch.start()  # so that programs that were exported find the operators


def __getattr__(name):
    if name.startswith("_") or name not in _catalogue():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = globals()[name] = _torch.function_of(name)
    return function


def __dir__():
    return _catalogue().names()
