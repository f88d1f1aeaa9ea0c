# SPDX-License-Identifier: Apache-2.0
"""What units say of tensors: their shapes as texts, and their element types.

A unit is what a description says of a tensor, "[B,T,H,D] or [T,H,D] float". What results look like under given
tensors the library says (ejk_plan_create_for_results()); read here is what bindings have to know before that.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SHAPE = re.compile(r"\[([^\]]*)\]")


class Unit:
    """What a unit says: shapes, each a tuple of axes, each a tuple of lengths as texts; and the element type's word."""

    def __init__(self, text):
        shapes, at = [], 0
        for match in _SHAPE.finditer(text):
            if text[at : match.start()] not in ("", " or "):
                break
            axes = match.group(1)
            shapes.append(tuple(tuple(axis.split("|")) for axis in (axes.split(",") if axes else ())))
            at = match.end()
        self.text = text
        self.shapes = tuple(shapes)
        self.element = text[at:].split()[0] if text[at:].strip() else ""


unit_of = lru_cache(maxsize=None)(Unit)


def is_any_float(record, field):
    """True if the unit leaves open which floating-point type a tensor has."""
    for _ in range(len(record.fields) + 1):
        element = unit_of(field.unit).element
        if element in ("float", "element"):
            return True
        field = record.by_name.get(element)
        if field is None:
            return False
    return False


def gradient_of(record, field):
    """The input whose gradient a result is, x of d_x; None if it is none."""
    if field.is_input or not field.name.startswith("d_"):
        return None
    other = record.by_name.get(field.name[2:])
    return other if other is not None and other.kind == "TENSOR" and other.is_input else None
