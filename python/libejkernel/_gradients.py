# SPDX-License-Identifier: Apache-2.0
"""Gradients of calls on NumPy arrays, by the operations that have them."""

from __future__ import annotations

import numpy as np

from . import _device, _library
from ._arrays import made
from ._description import catalogue


def vjp(function, *arguments, **keywords):
    """libejkernel.numpy.vjp()."""
    forward = made(function)
    gradient = catalogue().gradient(forward.operation.name)
    if gradient is None:
        _library.fail("UNAVAILABLE", f"{forward.operation.name} has no gradients")
    given = dict(zip((a.name for a in forward.arguments), forward.values_of(arguments, keywords)))
    by_name = forward.operation.args.by_name
    present = {name: value for name, value in given.items() if name in by_name and value is not None}
    refusal = gradient.refusal(present, present)
    if refusal:
        _library.fail("UNAVAILABLE", refusal)
    asked = {n for n in by_name if not by_name[n].is_input and (by_name[n].is_required or given.get("return_" + n))}
    asked |= {n for n in by_name if not by_name[n].is_input and given.get(n) is not None}
    names = [field.name for field in forward.operation.outputs if field.name in asked]
    more = [] if any(map(_device.is_there, given.values())) else gradient.kept
    needed = {"return_" + name: True for name in [*gradient.required, *more] if not by_name[name].is_required}
    found = forward.function(**{**given, **needed})
    found = found._asdict() if isinstance(found, tuple) else {names[0]: found}
    backward = made(gradient.backward.name)
    shared = {name: given[name] for name in gradient.shared}
    if "mask_info" in given and gradient.backward.takes_mask_info:
        shared["mask_info"] = given["mask_info"]
    residuals = {name: found[name] for name in gradient.residuals if name in found}

    def pullback(*cotangents):
        if len(cotangents) != len(names):
            _library.fail("INVALID_ARGUMENT", f"{len(cotangents)} cotangents given, expected {len(names)}")
        said = {}
        for name, cotangent in zip(names, cotangents):
            if name in gradient.cotangents:
                field = gradient.backward.args.by_name[gradient.cotangents[name]]
                if cotangent is None and field.is_required:
                    cotangent = np.zeros_like(found[name])
                said[gradient.cotangents[name]] = cotangent
            elif cotangent is not None:
                _library.fail("UNAVAILABLE", f"{forward.operation.name} has no gradients through {name}")
        return backward.function(**{**shared, **residuals, **said})

    results = [found[name] for name in names]
    return (results[0] if len(results) == 1 else forward.result_type(names)._make(results)), pullback
