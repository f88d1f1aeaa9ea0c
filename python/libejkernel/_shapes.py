# SPDX-License-Identifier: Apache-2.0
"""Shapes and element types of tensors, read off the units of their records.

A unit is what a description says of a tensor, "[B,T,Hq,D] or [T,Hq,D] float". Symbols are bound by the shapes of
the tensors that are given, and by integer fields of the same name; what a result looks like follows from them. The
rules are those of record.h, and the answers those of ejk_record_bind_axes(), ejk_record_complete(),
ejk_field_shape() and ejk_field_dtype().
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache, lru_cache

_TOKEN = re.compile(r"ceil\(|floor\(|[A-Za-z][A-Za-z0-9_]*|\d+|[-+*/()]")
_SHAPE = re.compile(r"\[([^\]]*)\]")


class ShapeError(ValueError):
    """A shape does not fit its unit, or a length is not known."""


class _Open(Exception):
    """A length needs a symbol that is not bound, and is not linear in it."""

    def __init__(self, symbol):
        self.symbol = symbol


class _Never(Exception):
    """No length under these symbols."""


class _Linear:
    """add + factor * symbol."""

    __slots__ = ("add", "factor", "symbol")

    def __init__(self, add, factor=Fraction(0), symbol=None):
        self.add, self.factor = add, factor
        self.symbol = symbol if factor else None


def _combine(x, y, sign):
    if x.symbol and y.symbol and x.symbol != y.symbol:
        raise _Open(x.symbol)
    return _Linear(x.add + sign * y.add, x.factor + sign * y.factor, x.symbol or y.symbol)


def _product(x, y):
    if x.symbol and y.symbol:
        raise _Open(x.symbol)
    if y.symbol:
        x, y = y, x
    return _Linear(x.add * y.add, x.factor * y.add, x.symbol)


def _quotient(x, y):
    if y.symbol:
        raise _Open(y.symbol)
    if y.add == 0:
        raise _Never
    return _Linear(x.add / y.add, x.factor / y.add, x.symbol)


class Length:
    """One length of a unit: a symbol, a number or an expression of them."""

    def __init__(self, text):
        self.text = text
        self._tokens = _TOKEN.findall(text)
        self.plain = len(self._tokens) == 1
        self.symbols = tuple(dict.fromkeys(t for t in self._tokens if t[0].isalpha() and not t.endswith("(")))

    def _evaluate(self, axes):
        tokens, at = self._tokens, 0

        def factor():
            nonlocal at
            token = tokens[at]
            at += 1
            if token.isdigit():
                return _Linear(Fraction(int(token)))
            if token in ("(", "ceil(", "floor("):
                inner = total()
                at += 1
                if token == "(":
                    return inner
                if inner.symbol:
                    raise _Open(inner.symbol)
                whole = -(-inner.add // 1) if token == "ceil(" else inner.add // 1
                return _Linear(Fraction(whole))
            if token in axes:
                return _Linear(Fraction(axes[token]))
            return _Linear(Fraction(0), Fraction(1), token)

        def term():
            nonlocal at
            value = factor()
            while at < len(tokens) and tokens[at] in "*/":
                operator = _product if tokens[at] == "*" else _quotient
                at += 1
                value = operator(value, factor())
            return value

        def total():
            nonlocal at
            value = term()
            while at < len(tokens) and tokens[at] in "+-":
                sign = 1 if tokens[at] == "+" else -1
                at += 1
                value = _combine(value, term(), sign)
            return value

        return total()

    def value(self, axes):
        """The length as an int; None where it is not known; _Never where there is none."""
        try:
            value = self._evaluate(axes)
        except _Open:
            return None
        if value.symbol:
            return None
        if value.add.denominator != 1 or value.add < 0:
            raise _Never
        return int(value.add)

    def solve(self, length, axes):
        """(symbol, its length) that makes this `length`, or None; _Open where it is not linear."""
        value = self._evaluate(axes)
        if not value.symbol:
            return None
        solution = (length - value.add) / value.factor
        if solution.denominator != 1 or solution < 0:
            return None
        return value.symbol, int(solution)


class Unit:
    """What a unit says: shapes, each a tuple of axes, each a tuple of lengths; and the element type's word."""

    def __init__(self, text):
        shapes, at = [], 0
        for match in _SHAPE.finditer(text):
            if text[at : match.start()] not in ("", " or "):
                break
            axes = match.group(1)
            shapes.append(
                tuple(tuple(Length(length) for length in axis.split("|")) for axis in (axes.split(",") if axes else ()))
            )
            at = match.end()
        self.text = text
        self.shapes = tuple(shapes)
        self.shapes_text = text[:at]
        self.element = text[at:].split()[0] if text[at:].strip() else ""

    @property
    def symbols(self):
        """The symbols of its shapes."""
        return {s for shape in self.shapes for axis in shape for length in axis for s in length.symbols}


unit_of = lru_cache(maxsize=None)(Unit)


def _bind_axis(axis, length, axes, strict):
    """Binds what `length` says; False where other tensors may tell."""
    opened = False
    for i, alternative in enumerate(axis):
        try:
            value = alternative.value(axes)
        except _Never:
            continue
        if value == length:
            return True
        if value is None:
            try:
                alternative.solve(length, axes)
                opened |= i > 0 and not alternative.plain
            except _Open:
                opened = True
    try:
        solution = axis[0].solve(length, axes)
    except (_Open, _Never):
        solution = None
    if solution:
        axes[solution[0]] = solution[1]
        return True
    if opened and not strict:
        return False
    raise ShapeError


def _bind_tensor(name, unit, shape, axes, strict):
    whole = True
    for candidate in unit.shapes:
        if len(candidate) != len(shape):
            continue
        attempt, whole = dict(axes), True
        try:
            for axis, length in zip(candidate, shape):
                whole &= _bind_axis(axis, length, attempt, strict)
        except ShapeError:
            continue
        axes.clear()
        axes.update(attempt)
        return whole
    raise ShapeError(
        f"{name}: shape {list(shape)} given, expected {unit.shapes_text}"
        + (" with " + ", ".join(f"{k}={v}" for k, v in axes.items()) if axes else "")
    )


def bind_axes(record, shapes, integers):
    """Lengths of the symbols of a record, by the shapes of the tensors that are there and by integer fields.

    `record` is a description of arguments, `shapes` has a shape for each tensor that is given, `integers` the
    integer fields that are set. Raises ShapeError.
    """
    symbols = record.unit_symbols
    axes = {name: value for name, value in integers.items() if name in symbols}
    for strict in (False, True):
        whole = True
        for field in record.tensors:
            if field.name in shapes:
                unit = unit_of(field.unit)
                whole &= _bind_tensor(field.name, unit, shapes[field.name], axes, strict)
        if whole:
            break
    return axes


@cache
def _defaults(symbols):
    items = []
    for item in filter(None, symbols.split(",")):
        name, _, rest = item.partition("=")
        length, _, without = rest.partition("!")
        if length:
            items.append((name, Length(length), without))
    return items


def complete(record, axes):
    """Gives symbols that are not bound the lengths that the record says they have then.

    One with "B=1!N" has none where N is bound: shapes are those without it.
    """
    for name, length, without in _defaults(record.symbols):
        if name in axes or without in axes:
            continue
        try:
            value = length.value(axes)
        except _Never:
            continue
        if value is not None:
            axes[name] = value
    return axes


def field_shape(field, axes):
    """The first shape of a tensor field whose symbols are all bound, by the first of `a|b`. Raises ShapeError."""
    unit = unit_of(field.unit)
    for shape in unit.shapes:
        lengths = []
        for axis in shape:
            try:
                value = axis[0].value(axes)
            except _Never:
                break
            if value is None:
                break
            lengths.append(value)
        else:
            return tuple(lengths)
    raise ShapeError(f"{field.name}: the shape {unit.shapes_text} needs a symbol that no tensor binds")


_GROUPS = {"int": "int32", "index": "int32", "bool": "bool", "float8": "float8_e4m3fn"}


def field_dtype(record, field, dtypes, number):
    """The name of the element type that a unit asks for; `number` for any float.

    `dtypes` has the names of the types of the tensors that are given.
    """
    for _ in range(len(record.fields) + 1):
        element = unit_of(field.unit).element
        if element == "float":
            return number
        other = record.by_name.get(element)
        if other is None:
            return _GROUPS.get(element, element)
        if other.name in dtypes:
            return dtypes[other.name]
        field = other
    raise ShapeError(f"{field.name}: its unit names no element type")


def is_any_float(record, field, dtypes):
    """True if the unit leaves open which floating-point type a result has."""
    return field_dtype(record, field, dtypes, None) is None


def gradient_of(record, field):
    """The input whose gradient a result is, query of d_query; None if it is none."""
    if field.is_input or not field.name.startswith("d_"):
        return None
    other = record.by_name.get(field.name[2:])
    return other if other is not None and other.kind == "TENSOR" and other.is_input else None


FLOATS = ("float64", "float32", "bfloat16", "float16")


def first_float(record, dtypes):
    """The type of the first tensor that has one of FLOATS, else float32."""
    given = (dtypes.get(field.name) for field in record.tensors)
    return next((dtype for dtype in given if dtype in FLOATS), "float32")


def result_specs(record, shapes, dtypes, integers, wanted, number):
    """(shape, dtype's name) of each result in `wanted`, names of output fields, as a dict.

    `shapes` and `dtypes` are those of the tensors that are given, by name; `number` is the type of results that may
    be any float. A gradient has the shape of what it is the gradient of. Raises ShapeError.
    """
    axes = complete(record, bind_axes(record, shapes, integers))
    specs = {}
    for name in wanted:
        field = record.by_name[name]
        of = gradient_of(record, field)
        given = of is not None and of.name in shapes
        shape = tuple(shapes[of.name]) if given else field_shape(field, axes)
        specs[name] = (shape, field_dtype(record, field, dtypes, number))
    return specs
