# SPDX-License-Identifier: Apache-2.0
"""Signatures and docstrings of functions, from the description of an operation."""

from __future__ import annotations

import collections
import inspect
import keyword
import textwrap
from functools import lru_cache

_TYPES = {
    "TENSOR": "array",
    "TENSORS": "sequence of array",
    "BOOL": "bool",
    "OPT_BOOL": "bool",
    "INT": "int",
    "OPT_INT": "int",
    "FLOAT": "float",
    "OPT_FLOAT": "float",
    "WINDOW": "int or (int or None, int or None)",
    "NAME": "str",
    "DTYPE": "dtype",
    "INTS": "sequence of int",
    "RECORD": "dict",
}

#: The same as annotations of stubs.
ANNOTATIONS = {
    "TENSOR": "Array",
    "TENSORS": "Sequence[Array]",
    "BOOL": "bool",
    "OPT_BOOL": "bool",
    "INT": "int",
    "OPT_INT": "int",
    "FLOAT": "float",
    "OPT_FLOAT": "float",
    "WINDOW": "Window",
    "NAME": "str",
    "DTYPE": "DType",
    "INTS": "Sequence[int]",
    "RECORD": "Config",
}


class Argument:
    """A parameter of a function: of a field, or of the binding's own.

    `use` is "input", "output" (where a result goes), "return" (whether an optional result is wanted) or "mask".
    """

    def __init__(self, name, use, field, default, positional):
        self.name, self.use, self.field, self.default = name, use, field, default
        self.positional = positional

    @property
    def parameter(self):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if self.positional else inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, kind, default=self.default)


def argument_list(operation, destinations=True):
    """The parameters of an operation's function, in order.

    Inputs have the order of the record, which is the documented one; what has to be given behind what may be left
    out is for keywords only. Then, by keywords, whether optional results are wanted and where results go.
    """
    positional, keywords, optional = [], [], False
    for field in operation.inputs:
        needed = field.is_required
        default = inspect.Parameter.empty if needed else field.default
        optional |= not needed
        into = keywords if (needed and optional) or field.kind == "RECORD" else positional
        into.append(Argument(field.name, "input", field, default, into is positional))
    taken = {argument.name for argument in positional + keywords}
    if operation.takes_mask_info:
        keywords.append(Argument("mask_info", "mask", None, None, False))
    for field in operation.outputs:
        name = "return_" + field.name
        if not field.is_required and name not in taken:
            keywords.append(Argument(name, "return", field, False, False))
    if destinations:
        keywords += [Argument(field.name, "output", field, None, False) for field in operation.outputs]
    for argument in positional + keywords:
        if keyword.iskeyword(argument.name):
            argument.name += "_"
    return positional + keywords


def parameter_text(arguments):
    """The parameters of a function as they stand in its text."""
    parameters, keywords = [], False
    for argument in arguments:
        if not argument.positional and not keywords:
            parameters.append("*")
            keywords = True
        needed = argument.default is inspect.Parameter.empty
        parameters.append(argument.name if needed else f"{argument.name}={argument.default!r}")
    return ", ".join(parameters)


@lru_cache(maxsize=None)
def result_type(operation, names, module):
    """The named tuple of several results of an operation's function."""
    title = "".join(word.capitalize() for word in operation.split("_"))
    return collections.namedtuple(title + "Results", names, module=module)


def signature(operation, destinations=True):
    """The inspect.Signature of it."""
    return inspect.Signature([a.parameter for a in argument_list(operation, destinations)])


def _entry(argument):
    field = argument.field
    optional = argument.default is not inspect.Parameter.empty
    if argument.use == "mask":
        return "mask_info : MaskInfo, optional", "what is hidden, in place of masks and segment ids"
    if argument.use == "return":
        return f"{argument.name} : bool, default False", f"whether {field.name} is a result: {field.doc}"
    if argument.use == "output":
        return f"{argument.name} : array, optional", f"where {field.name} is written, {field.unit}; or its dtype"
    text = f"{argument.name} : {_TYPES[field.kind]}"
    if field.kind in ("TENSOR", "TENSORS"):
        text += f", {field.unit}"
    if optional:
        text += f", default {argument.default!r}" if argument.default is not None else ", optional"
    doc = field.doc
    if optional and argument.default is None and field.fallback and field.kind not in ("RECORD", "TENSOR", "TENSORS"):
        doc += f"; by default {field.fallback}"
    if field.unit and field.kind not in ("TENSOR", "TENSORS", "NAME"):
        doc += f" ({field.unit})"
    if field.is_updated:
        doc += "; updated in place"
    return text, doc


def _wrapped(text, indent):
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent)


def docstring(operation, gradient=None, destinations=True):
    """A docstring in the style of numpydoc; `gradient` is the operation that has its gradients."""
    text = operation.doc[:1].upper() + operation.doc[1:] + "."
    lines = [text, "", "Parameters", "----------"]
    for argument in argument_list(operation, destinations):
        head, doc = _entry(argument)
        lines += [head, _wrapped(doc[:1].upper() + doc[1:] + ".", "    ")]
    lines += ["", "Returns", "-------"]
    for field in operation.outputs or operation.updated:
        note = "" if field.is_required or field.is_input else " Only where it is asked for."
        lines += [f"{field.name} : array, {field.unit}"]
        lines += [_wrapped(field.doc[:1].upper() + field.doc[1:] + "." + note, "    ")]
    if operation.forward:
        lines += ["", "See Also", "--------", f"{operation.forward} : What these are the gradients of."]
    elif gradient is not None:
        lines += ["", "See Also", "--------", f"{gradient.name} : The gradients."]
    return "\n".join(lines) + "\n"
