# SPDX-License-Identifier: Apache-2.0
"""Stubs for type checkers and editors, written when the package is built."""

from __future__ import annotations

import inspect

from ._signature import ANNOTATIONS, argument_list

_NUMPY = """\
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
"""

_CALLABLE = """
def plan(function: Callable[..., Any] | str, *arguments: Any, **keywords: Any) -> Plan: ...
def vjp(
    function: Callable[..., Any] | str, *arguments: Any, **keywords: Any
) -> tuple[Any, Callable[..., Any]]: ...
"""

_FRAMEWORK = """\
# Written from the description of the operations.
from collections.abc import Sequence
from typing import Any

import {module}
from .mask_info import MaskInfo

Array = {array} | Sequence[Any]
"""

_TYPES = """\
DType = Any
Config = dict[str, Any] | str
Window = int | tuple[int | None, int | None]
"""

#: Of each module: what its stub begins with, the type of a result, whether results may be given destinations, and
#: whether states are results.
_MODULES = {
    "numpy": (_NUMPY + _TYPES + _CALLABLE, "np.ndarray", True, False),
    "jax": (_FRAMEWORK.format(module="jax", array="jax.typing.ArrayLike") + _TYPES, "jax.Array", False, True),
    "torch": (_FRAMEWORK.format(module="torch", array="torch.Tensor") + _TYPES, "torch.Tensor", False, False),
}


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


def _function(operation, module):
    """One function, a parameter a line."""
    _, result, destinations, states = _MODULES[module]
    lines, keywords = [], False
    for argument in argument_list(operation, destinations):
        if not argument.positional and not keywords:
            lines.append("    *,")
            keywords = True
        lines.append(_parameter(argument))
    results = operation.outputs + operation.updated if states else operation.outputs or operation.updated
    return "\n".join([f"def {operation.name}(", *lines, f") -> {result if len(results) == 1 else 'Any'}: ..."])


def stubs(catalogue):
    """The texts of all stubs by their files' names."""
    return {
        f"{module}.pyi": head + "\n".join(_function(catalogue[name], module) for name in catalogue.names()) + "\n"
        for module, (head, *_) in _MODULES.items()
    }
