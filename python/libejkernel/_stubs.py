# SPDX-License-Identifier: Apache-2.0
"""Stubs for type checkers and editors, written when the package is built."""

from __future__ import annotations

import inspect

from ._signature import ANNOTATIONS, argument_list

_HEAD = """\
# Written from the description of the operations.
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ._calls import Plan
from .mask_info import MaskInfo

class SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

Array = np.ndarray | SupportsDLPack | Sequence[Any]
DType = Any
Config = dict[str, Any] | str
Window = int | tuple[int | None, int | None]

def plan(function: Callable[..., Any] | str, *arguments: Any, **keywords: Any) -> Plan: ...
def vjp(
    function: Callable[..., Any] | str, *arguments: Any, **keywords: Any
) -> tuple[Any, Callable[..., Any]]: ...
"""


def _annotation(argument):
    if argument.use == "return":
        return "bool"
    if argument.use == "mask":
        return "MaskInfo | None"
    if argument.use == "output":
        return "Array | DType"
    text = ANNOTATIONS[argument.field.kind]
    return text + " | None" if argument.default is None else text


def _parameter(argument):
    default = "" if argument.default is inspect.Parameter.empty else f" = {argument.default!r}"
    return f"    {argument.name}: {_annotation(argument)}{default},"


def function_stub(operation):
    """One function, a parameter a line."""
    lines, keywords = [], False
    for argument in argument_list(operation):
        if not argument.positional and not keywords:
            lines.append("    *,")
            keywords = True
        lines.append(_parameter(argument))
    results = operation.outputs or operation.updated
    result = "np.ndarray" if len(results) == 1 else "Any"
    return "\n".join([f"def {operation.name}(", *lines, f") -> {result}: ..."])


def numpy_stub(catalogue):
    """The whole of numpy.pyi."""
    return _HEAD + "\n".join(function_stub(catalogue[name]) for name in catalogue.names()) + "\n"
