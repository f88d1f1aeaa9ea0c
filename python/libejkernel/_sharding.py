# SPDX-License-Identifier: Apache-2.0
"""How JAX may share a call out among devices: over its batch and over its heads, which are computed independently.

Which axes these are the units say: batches are B and what is as many, heads what begins with H. One of the two can be
shared out if every result has it, but for gradients of operands that do not, which are added up: such operands are the
same for all. Everything else of a call is whole on each device.
"""

from __future__ import annotations

import re
from functools import lru_cache

import jax
from jax.experimental.custom_partitioning import custom_partitioning

from . import _library, _shapes

_HEADS = re.compile(r"H[a-z]*")
_WORD = re.compile(r"[A-Za-z]+")
_NAMED, _SPEC = jax.sharding.NamedSharding, jax.sharding.PartitionSpec


def _letters(record):
    """For batch and heads what units call their lengths: N, too, where there are as many sequences as batches."""
    names = set(_WORD.findall(record.symbols))
    same = {name for name in names if f"{name}=B," in record.symbols + ","}
    return {"b": {"B"} | same, "h": {name for name in names if _HEADS.fullmatch(name)}}


def _axis_of(field, shape, letters):
    """The axis of a tensor that has one of these lengths; None without. ValueError where it cannot be told."""
    unit, found = _shapes.unit_of(field.unit), set()
    for axes in unit.shapes:
        if len(axes) == len(shape):
            found.add(next((i for i, axis in enumerate(axes) if set(axis) & letters), None))
            mixed = [axis for axis in axes if not set(axis) & letters]
            if any(letters & set(_WORD.findall(text)) for axis in mixed for text in axis):
                raise ValueError  # N+1 ends of sequences
    if len(found) != 1 or letters & set(_WORD.findall(unit.text[unit.text.rindex("]") :])):
        raise ValueError
    axis = found.pop()
    if axis is not None and shape[axis] == 1 and any("1" in each[axis] for each in unit.shapes if axis < len(each)):
        return None  # broadcast
    return axis


def _axes_of(call, names, shapes, factor):
    """(the factor's axis in each tensor, its length); None if the call cannot be shared out over it."""
    record = call.operation.args
    letters = _letters(record)[factor]
    try:
        axes = [_axis_of(record.by_name[name], shape, letters) for name, shape in zip(names, shapes)]
    except ValueError:
        return None
    lengths = [shape[axis] for shape, axis in zip(shapes, axes) if axis is not None]
    alone = {name for name, axis in zip(call.operands, axes) if axis is None}
    for name, axis in zip(call.results, axes[len(call.operands) :]):
        if axis is None and name.removeprefix("d_") not in alone - {name}:
            return None
    if not lengths or min(lengths) < 2:
        return None
    if any(length % min(lengths) for length in lengths) or (factor == "b" and len(set(lengths)) > 1):
        return None
    return axes, min(lengths)


def _fits(call, shapes, dtypes, axes, length):
    """Whether the library takes a part of the call: the rest may depend on how many heads there are."""
    parts = next(n for n in range(2, length + 1) if length % n == 0)
    local = [
        tuple(n // parts if i == axis else n for i, n in enumerate(shape)) for shape, axis in zip(shapes, axes)
    ]
    try:
        call.specs(local, dtypes)
    except _library.Error:
        return False
    return True


class Rule:
    """How a call of tensors of these shapes may be shared out; `factors` are axes and length by factor."""

    def __init__(self, call, shapes, dtypes):
        results = [shape for shape, _ in call.specs(shapes, dtypes)]
        self.shapes, self.count = [*shapes, *results], len(shapes)
        names = [*call.operands, *call.results]
        free = not call.elements and not any(n.startswith("dropout") and v for n, v in call.values.items())
        found = {each: _axes_of(call, names, self.shapes, each) for each in "bh"} if free else {}
        self.factors = {each: axes for each, axes in found.items() if axes and _fits(call, shapes, dtypes, *axes)}

    def text(self):
        """(the rule in Shardy's notation, what cannot be shared out, lengths of factors that are parts of an axis)"""
        tensors, whole, sizes = [], [], {}
        for i, shape in enumerate(self.shapes):
            words = []
            for axis, length in enumerate(shape):
                word = next((f for f, (axes, _) in self.factors.items() if axes[i] == axis), None)
                rest = length // self.factors[word][1] if word else length
                if word is None or rest > 1:
                    whole.append(f"x{len(whole)}")
                    sizes |= {whole[-1]: rest} if word else {}
                    word = f"({word} {whole[-1]})" if word else whole[-1]
                words.append(word)
            tensors.append(" ".join(words))
        return f"{', '.join(tensors[: self.count])} -> {', '.join(tensors[self.count :])}", tuple(whole), sizes

    def chosen(self, mesh, given):
        """The names of the mesh's axes for each factor, given the shardings that operands have."""
        chosen, used = {}, set()
        for factor, (axes, length) in self.factors.items():
            for sharding, axis in zip(given, axes):
                spec = getattr(sharding, "spec", ())
                part = spec[axis] if axis is not None and axis < len(spec) else None
                names = part if isinstance(part, tuple) else () if part is None else (part,)
                devices = 1
                for name in names:
                    devices *= mesh.shape[name]
                if devices > 1 and length % devices == 0 and not used & set(names):
                    chosen[factor] = names
                    used |= set(names)
                    break
        return chosen

    def shardings(self, mesh, chosen):
        """Those of operands and of results."""
        specs = []
        for i, shape in enumerate(self.shapes):
            of = {axes[i]: chosen.get(factor) for factor, (axes, _) in self.factors.items()}
            specs.append(_NAMED(mesh, _SPEC(*(of.get(axis) for axis in range(len(shape))))))
        return tuple(specs[: self.count]), tuple(specs[self.count :])

    def added_up(self, chosen, results):
        """Results of all devices, of those of one."""
        found = []
        for i, result in enumerate(results, self.count):
            names = [n for f, (axes, _) in self.factors.items() if axes[i] is None for n in chosen.get(f, ())]
            found.append(jax.lax.psum(result, tuple(names)) if names else result)
        return tuple(found)


def _is_automatic():
    """Whether XLA decides where arrays lie: there are several devices, and no mesh whose axes the program has."""
    if jax.device_count() == 1:
        return False
    kinds = getattr(jax.sharding.get_abstract_mesh(), "axis_types", ()) or ()
    return all(each == jax.sharding.AxisType.Auto for each in kinds)


@lru_cache(maxsize=4096)
def _shared_out(call, run, shapes, dtypes):
    rule = Rule(call, shapes, dtypes)
    if not rule.factors:
        return None
    made = custom_partitioning(lambda *arrays: run(call, arrays))

    def partition(mesh, operands, results):
        chosen = rule.chosen(mesh, [each.sharding for each in operands])
        inside, outside = rule.shardings(mesh, chosen)
        return mesh, lambda *arrays: rule.added_up(chosen, run(call, arrays)), outside, inside

    def infer(mesh, operands, results):
        return rule.shardings(mesh, rule.chosen(mesh, [each.sharding for each in operands]))[1]

    text, whole, sizes = rule.text()
    made.def_partition(
        partition, infer_sharding_from_operands=infer, sharding_rule=text, need_replication_factors=whole, **sizes
    )
    return made


def shared_out(call, run, arrays):
    """What runs a call on arrays that lie on several devices; None where there is nothing to share out.

    `run` is what makes the call of one device: a function of the call and its arrays.
    """
    if not _is_automatic():
        return None
    return _shared_out(call, run, tuple(a.shape for a in arrays), tuple(a.dtype.name for a in arrays))
