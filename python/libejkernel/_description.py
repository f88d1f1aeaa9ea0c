# SPDX-License-Identifier: Apache-2.0
"""The operations, as the library describes them: what everything in this package is made from."""

from __future__ import annotations

import json
import os
import re

from . import _shapes

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*$")
_NOTHING = {"none", "unset", "unlimited"}


class Field:
    """A field of a record."""

    def __init__(self, entry):
        self.name = entry["name"]
        self.kind = entry["kind"]
        self.role = entry["role"]
        self.offset = entry["offset"]
        self.size = entry["size"]
        self.fallback = entry["default"]
        self.unit = entry["unit"]
        self.doc = entry["doc"]
        self.record = Record(entry["record"]) if "record" in entry else None

    @property
    def is_required(self):
        return self.role.startswith("required")

    @property
    def is_input(self):
        return not self.role.endswith("output")

    @property
    def is_output(self):
        return self.role.endswith(("output", "inout"))

    @property
    def is_updated(self):
        return self.role.endswith("inout")

    @property
    def default(self):
        """What Python shows for a field that is not set. Given explicitly, it means the same."""
        if self.kind == "BOOL":
            return False
        if self.kind in ("INT", "FLOAT") and not self.fallback:
            return 0
        text = self.fallback
        if self.kind == "OPT_BOOL" and text in ("true", "false"):
            return text == "true"
        if self.kind in ("INT", "OPT_INT") and re.fullmatch(r"-?\d+", text):
            return int(text)
        if self.kind in ("FLOAT", "OPT_FLOAT") and re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", text):
            return float(text)
        if self.kind in ("NAME", "DTYPE") and _WORD.match(text) and text not in _NOTHING:
            return text
        return None


class Record:
    """A struct: its fields, with their places."""

    def __init__(self, entry):
        self.name = entry["name"]
        self.size = entry["size"]
        self.symbols = entry["symbols"]
        self.orders = entry["orders"]
        self.fields = [Field(each) for each in entry["fields"]]
        self.by_name = {field.name: field for field in self.fields}
        self.tensors = [field for field in self.fields if field.kind in ("TENSOR", "TENSORS")]


_MASK_FIELDS = {"attention_mask", "q_segment_ids", "kv_segment_ids", "causal", "causal_offset"}


class Operation:
    """An operation: its arguments, and what they are to each other."""

    def __init__(self, entry):
        self.entry = entry
        self.name = entry["op"]
        self.version = entry["version"]
        self.doc = entry["doc"]
        self.forward = entry["forward"]
        self.args = Record(entry["args"])
        fields = self.args.fields
        self.config_field = entry["config_field"]
        self.inputs = [f for f in fields if f.is_input]
        self.outputs = [f for f in fields if not f.is_input]
        self.updated = [f for f in fields if f.is_updated]
        self.takes_mask_info = _MASK_FIELDS <= set(self.args.by_name)

    def default_results(self, given):
        """Names of the results of a call that asks for none, `given` the names of its tensors.

        Those that are required; of gradients, where none is, those of all inputs that are given.
        """
        required = [f.name for f in self.outputs if f.is_required]
        if required:
            return required
        of = {f.name: _shapes.gradient_of(self.args, f) for f in self.outputs}
        return [name for name, field in of.items() if field is not None and field.name in given]


class Gradient:
    """How an operation and the one that has its gradients belong together.

    By names: what the gradient shares with the forward call are its inputs, what the forward call wrote (`residuals`,
    of them `required`, and `kept` what gradients on a CPU need not compute again then), and for each result y the
    cotangent d_y; for each input x it has a result d_x.
    """

    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward
        inputs = {field.name: field for field in backward.inputs}
        results = [field.name for field in forward.outputs]
        self.shared = [field.name for field in forward.inputs if field.name in inputs]
        self.residuals = [name for name in results if name in inputs]
        self.required = [name for name in self.residuals if inputs[name].is_required]
        self.kept = [name for name in self.residuals if not inputs[name].is_required]
        self.cotangents = {name: "d_" + name for name in results if "d_" + name in inputs}
        written = {field.name for field in backward.outputs}
        self.gradients = {name: "d_" + name for name in self.shared if "d_" + name in written}
        self._unknown = [f for f in forward.args.fields if f.name not in backward.args.by_name and f.is_input]

    def lost(self, tensors, values):
        """Names of what a call is given, and its gradients would have to know and do not: activations, states.

        `tensors` are the names of those that are given, `values` the other arguments. Element types of results, flags
        of what is returned and numbers, which only say more of what a name asks for, are nothing to gradients.
        """
        found = []
        for field in self._unknown:
            value = values.get(field.name)
            if field.kind in ("TENSOR", "TENSORS"):
                is_lost = field.name in tensors
            else:
                is_lost = field.kind in ("NAME", "BOOL", "OPT_BOOL") and not field.name.startswith("return_")
                is_lost = is_lost and value not in (None, False, field.fallback)
            if is_lost:
                found.append(field.name)
        return found

    def refusal(self, tensors, values):
        """Why a call has no gradients; "" if it has."""
        lost = self.lost(tensors, values)
        updated = [name for name in lost if self.forward.args.by_name[name].is_updated]
        if updated:
            return f"{self.forward.name} has no gradients where it updates {', '.join(updated)}"
        return f"{self.forward.name} has no gradients where it is given {', '.join(lost)}" if lost else ""


class Catalogue:
    """Operations by name, each made when it is asked for.

    `path` is what the library said of its operations when the package was built.
    """

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            loaded = json.load(file)
        self.version = loaded["version"]
        self._entries = {entry["op"]: entry for entry in loaded["operations"]}
        self._made = {}

    def names(self):
        return sorted(self._entries)

    def __contains__(self, name):
        return name in self._entries

    def add(self, entry):
        self._entries[entry["op"]] = entry
        self._made.pop(entry["op"], None)

    def __getitem__(self, name):
        if name not in self._made:
            self._made[name] = Operation(self._entries[name])
        return self._made[name]

    def gradient_of(self, name):
        """The operation whose results are the gradients of another; None if there is none."""
        for each, entry in self._entries.items():
            if entry["forward"] == name:
                return self[each]
        return None

    def gradient(self, name):
        """The Gradient of an operation; None if it has none."""
        backward = self.gradient_of(name)
        return Gradient(self[name], backward) if backward is not None else None


_catalogue = None


def catalogue():
    """The operations that there are."""
    global _catalogue
    if _catalogue is None:
        here = os.path.dirname(__file__)
        _catalogue = Catalogue(os.path.join(here, "_description.json"))
    return _catalogue
