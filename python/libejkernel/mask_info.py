# SPDX-License-Identifier: Apache-2.0
"""MaskInfo, an attention mask in all its forms; notebooks show it as a picture."""

from __future__ import annotations

import ctypes

import numpy as np

from . import _library, _records
from ._tensors import (
    OptFloat,
    OptInt,
    Tensor,
    Window,
    array,
    opt_bool,
    opt_float,
    opt_int,
    tensor,
    window,
    window_value,
)
from .masks import Handle, Mask

lib = _library.lib
_P, _I, _L, _B = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_bool

_library.declare(
    {
        "ejk_mask_info_from_segments": ((_P, _P, _B, _P, _P), _I),
        "ejk_mask_info_from_attention_mask": ((_P, _P, _P), _I),
        "ejk_mask_info_from_splash_mask": ((_P, _L, _P, _P), _I),
        "ejk_mask_info_from_random": ((_L, _L, OptInt, OptFloat, ctypes.c_uint64, _P, _P), _I),
        "ejk_mask_info_release": ((_P,), None),
        "ejk_mask_info_get_or_compute_attention_mask": ((_P, _I, _P), _I),
        "ejk_mask_info_get_or_compute_segment_ids": ((_P, _B, _P, _P), _I),
        "ejk_mask_info_get_or_compute_positions": ((_P, _P, _P), _I),
        "ejk_mask_info_attention_mask": ((_P, _P), _I),
        "ejk_mask_info_q_positions": ((_P, _P), _I),
        "ejk_mask_info_kv_positions": ((_P, _P), _I),
        "ejk_mask_info_create_bias": ((_P, _I, _P), _I),
        "ejk_mask_info_get_qkv_masks": ((_P, _I, _P, _P, _P), _I),
        "ejk_mask_info_batch_size": ((_P,), _L),
        "ejk_mask_info_q_len": ((_P,), _L),
        "ejk_mask_info_kv_len": ((_P,), _L),
        "ejk_mask_info_heads": ((_P,), _L),
        "ejk_mask_info_is_self_attention": ((_P,), _B),
        "ejk_mask_info_text": ((_P, _P), _I),
        "ejk_mask_info_to_dtype": ((_P, _I, _P), _I),
        "ejk_mask_info_apply_causal": ((_P, _P, _P), _I),
        "ejk_mask_info_apply_sliding_window": ((_P, _P, _P), _I),
        "ejk_mask_info_apply_chunked": ((_P, _L, _P, _P), _I),
        "ejk_mask_info_apply_token_type_ids": ((_P, _P, _P), _I),
        "ejk_mask_info_apply_kv_lengths": ((_P, _P, _L, OptInt, _P), _I),
        "ejk_mask_info_attention_args": ((_P, _B, _P), _I),
        "ejk_mask_info_to_splash_mask": ((_P, _L, _L, _P), _I),
        "ejk_mask_info_visualize": ((_P, _P, _P, _P), _I),
    }
)


def _reference(view):
    return ctypes.byref(view) if view.dtype else None


class _AxisNames(ctypes.Structure):
    _fields_ = [("count", _I), ("names", (ctypes.c_char * 48) * 8)]


class _Options(ctypes.Structure):
    _fields_ = [("q_positions", Tensor), ("kv_positions", Tensor), ("axes", _AxisNames * 4)]


class _WindowOptions(ctypes.Structure):
    _fields_ = [("window", Window), ("offset", _P), ("mode", _I), ("index", _P)]


class _TokenTypes(ctypes.Structure):
    _fields_ = [
        ("q_types", Tensor),
        ("kv_types", Tensor),
        ("combine", _I),
        ("zero_policy", _I),
        ("update_segment_ids", _I),
    ]


class _CallArgs(ctypes.Structure):
    _fields_ = [
        ("attention_mask", Tensor),
        ("q_segment_ids", Tensor),
        ("kv_segment_ids", Tensor),
        ("causal", _B),
        ("causal_offset", OptInt),
        ("sliding_window", Window),
    ]


_MODES = {None: 0, "all": 0, "decode": 1, "prefill": 2}
_COMBINE = {"union": 0, "intersect": 1, "replace": 2}
_ZEROS = {"q": 0, "kv": 1, "both": 2, "none": 3}


def _choice(name, value, choices):
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices)
        _library.fail("INVALID_ARGUMENT", f"{name} is {value!r}, expected one of {known}")
    return choices[value]


def _dtype(value):
    number = _records.DTYPES.get(_records.dtype_name(value))
    if number is None:
        _library.fail("INVALID_DTYPE", f"dtype is {value!r}, expected one of {', '.join(_records.DTYPES)}")
    return number


def _integers(name, value):
    """A number, or one per batch."""
    return tensor(name, None if value is None else np.atleast_1d(np.asarray(value, np.int64)))


class MaskInfo(Handle):
    """An attention mask in all its forms: elements, segment ids, positions. Immutable; transforms give new ones.

    Forms are computed when they are read. Limits (causal, windows, chunks) are kept as numbers until the elements
    are asked for, so that a mask of long sequences takes the memory of its segment ids. Give one to a call by
    `mask_info=`.
    """

    _release = staticmethod(lib.ejk_mask_info_release)

    @staticmethod
    def _positions(q_positions, kv_positions):
        q, kept_q = tensor("q_positions", q_positions)
        kv, kept_kv = tensor("kv_positions", kv_positions)
        return _Options(q, kv), (kept_q, kept_kv)

    @classmethod
    def from_segments(cls, q_segment_ids, kv_segment_ids=None, is_attn_mask=False, q_positions=None, kv_positions=None):
        """Of segment ids [B,Q] and [B,K]: who has the same id may attend; below 0 is padding."""
        q, _q = tensor("q_segment_ids", q_segment_ids)
        kv, _kv = tensor("kv_segment_ids", kv_segment_ids)
        options, _kept = cls._positions(q_positions, kv_positions)
        return cls._of(
            lib.ejk_mask_info_from_segments, ctypes.byref(q), _reference(kv), is_attn_mask, ctypes.byref(options)
        )

    @classmethod
    def from_attention_mask(cls, attention_mask, q_positions=None, kv_positions=None):
        """Of elements [B,H,Q,K] or [B,Q,K], or of valid tokens [B,S]."""
        mask, _mask = tensor("attention_mask", attention_mask)
        options, _kept = cls._positions(q_positions, kv_positions)
        return cls._of(lib.ejk_mask_info_from_attention_mask, ctypes.byref(mask), ctypes.byref(options))

    @classmethod
    def from_random(cls, batch_size, q_len, kv_len=None, sparsity=0.5, seed=0):
        """Of random elements, each true with probability 1 - sparsity; the numbers are JAX's."""
        return cls._of(
            lib.ejk_mask_info_from_random, batch_size, q_len, opt_int(kv_len), opt_float(sparsity), seed, None
        )

    @classmethod
    def from_mask(cls, mask, batch_size=1):
        """Of a mask object; every batch has it."""
        return cls._of(lib.ejk_mask_info_from_splash_mask, mask._handle, batch_size, None)

    # Reading

    def _read(self, function, *arguments, count=1):
        views = [Tensor() for _ in range(count)]
        _library.check(function(self._handle, *arguments, *[ctypes.byref(view) for view in views]))
        made = tuple(array(view, self) for view in views)
        return made[0] if count == 1 else made

    @property
    def attention_mask(self):
        """The elements, [B,H,Q,K]."""
        return self._read(lib.ejk_mask_info_attention_mask)

    def get_or_compute_attention_mask(self, dtype=bool):
        """The elements in a type, as 0 and 1."""
        return self._read(lib.ejk_mask_info_get_or_compute_attention_mask, _dtype(dtype))

    def get_or_compute_segment_ids(self, per_head=False):
        """Segment ids of queries and keys."""
        return self._read(lib.ejk_mask_info_get_or_compute_segment_ids, per_head, count=2)

    def get_or_compute_positions(self):
        """Positions of queries and keys in their sequences."""
        return self._read(lib.ejk_mask_info_get_or_compute_positions, count=2)

    @property
    def q_segment_ids(self):
        return self.get_or_compute_segment_ids()[0]

    @property
    def kv_segment_ids(self):
        return self.get_or_compute_segment_ids()[1]

    @property
    def q_positions(self):
        """As they were given, or None."""
        return self._read(lib.ejk_mask_info_q_positions)

    @property
    def kv_positions(self):
        """As they were given, or None."""
        return self._read(lib.ejk_mask_info_kv_positions)

    def get_qkv_masks(self, dtype=bool):
        """Valid queries, valid keys, and who shares a segment."""
        return self._read(lib.ejk_mask_info_get_qkv_masks, _dtype(dtype), count=3)

    def create_bias(self, dtype="float32"):
        """0 where the mask is true, elsewhere the type's lowest number."""
        return self._read(lib.ejk_mask_info_create_bias, _dtype(dtype))

    @property
    def bias(self):
        return self.create_bias()

    batch_size = property(lambda self: lib.ejk_mask_info_batch_size(self._handle))
    q_len = property(lambda self: lib.ejk_mask_info_q_len(self._handle))
    kv_len = property(lambda self: lib.ejk_mask_info_kv_len(self._handle))
    heads = property(lambda self: lib.ejk_mask_info_heads(self._handle))
    shape = property(lambda self: (self.batch_size, self.q_len, self.kv_len))
    is_self_attention = property(lambda self: bool(lib.ejk_mask_info_is_self_attention(self._handle)))

    # Transforms

    def to_dtype(self, dtype):
        """The same, read in another element type."""
        return MaskInfo._of(lib.ejk_mask_info_to_dtype, self._handle, _dtype(dtype))

    def apply_causal(self, offset=None):
        """Only keys k <= q + offset."""
        view, _kept = _integers("offset", offset)
        return MaskInfo._of(lib.ejk_mask_info_apply_causal, self._handle, _reference(view))

    def apply_sliding_window(self, sliding_window, offset=None, mode=None, index=None):
        """Only keys from q + offset - left to q + offset + right; `mode` "decode" and "prefill" cut rows too."""
        shift, _shift = _integers("offset", offset)
        row, _row = _integers("index", index)
        options = _WindowOptions(window=window(sliding_window), mode=_choice("mode", mode, _MODES))
        options.offset = ctypes.addressof(shift) if shift.dtype else None
        options.index = ctypes.addressof(row) if row.dtype else None
        return MaskInfo._of(lib.ejk_mask_info_apply_sliding_window, self._handle, ctypes.byref(options))

    def apply_chunked(self, chunk_size, offset=None):
        """Only keys of the query's own chunk, up to the query."""
        view, _kept = _integers("offset", offset)
        return MaskInfo._of(lib.ejk_mask_info_apply_chunked, self._handle, chunk_size, _reference(view))

    def apply_token_type_ids(
        self, q_token_type_ids, kv_token_type_ids=None, combine="union", zero_policy="q", update_segment_ids=None
    ):
        """Joins the mask with "of the same type", by "union", "intersect" or "replace"."""
        q, _q = tensor("q_token_type_ids", q_token_type_ids)
        kv, _kv = tensor("kv_token_type_ids", kv_token_type_ids)
        types = _TokenTypes(q, kv, _choice("combine", combine, _COMBINE))
        types.zero_policy = _choice("zero_policy", zero_policy, _ZEROS)
        types.update_segment_ids = opt_bool(update_segment_ids)
        return MaskInfo._of(lib.ejk_mask_info_apply_token_type_ids, self._handle, ctypes.byref(types))

    def apply_kv_lengths(self, kv_lengths, q_len, sliding_window=None):
        """The last q_len queries over a cache that has kv_lengths[b] keys."""
        lengths, _kept = _integers("kv_lengths", kv_lengths)
        return MaskInfo._of(
            lib.ejk_mask_info_apply_kv_lengths, self._handle, ctypes.byref(lengths), q_len, opt_int(sliding_window)
        )

    # In calls, and to look at

    def call_arguments(self, given, operation):
        """What takes the place of `mask_info=` in a call; `given` are its arguments."""
        masks = [name for name in ("attention_mask", "q_segment_ids", "kv_segment_ids") if given[name] is not None]
        if masks:
            _library.fail("INVALID_ARGUMENT", f"{masks[0]} and mask_info are given, expected one of them")
        limits = ("causal", "causal_offset", "sliding_window", "chunk_size")
        own = any(given.get(name) not in (None, False) for name in limits)
        found = _CallArgs()
        _library.check(lib.ejk_mask_info_attention_args(self._handle, not own, ctypes.byref(found)))
        arguments = {
            name: array(getattr(found, name), self) for name in ("attention_mask", "q_segment_ids", "kv_segment_ids")
        }
        if not own:
            arguments["causal"] = bool(found.causal)
            arguments["causal_offset"] = found.causal_offset.value if found.causal_offset.set else None
            arguments["sliding_window"] = window_value(found.sliding_window)
        for name in ("q_positions", "kv_positions"):
            if name in operation.args.by_name and given.get(name) is None:
                arguments[name] = getattr(self, name)
        return {name: value for name, value in arguments.items() if name in given}

    def to_mask(self, batch=0, heads=1):
        """One batch as a mask object with a mask per head."""
        return Mask._of(lib.ejk_mask_info_to_splash_mask, self._handle, batch, heads)

    def visualize(self):
        """The documented text of blocks."""
        data, length = ctypes.c_void_p(), ctypes.c_size_t()
        status = lib.ejk_mask_info_visualize(self._handle, None, ctypes.byref(data), ctypes.byref(length))
        _library.check(status)
        return _library.take_text(data)

    def draw(self, format="svg", batch=0, **options):
        """A picture of one batch, as Mask.draw()."""
        return self.to_mask(batch, max(self.heads, 1)).draw(format, **options)

    def __repr__(self):
        return _library.text_from(lib.ejk_mask_info_text, self._handle)

    def _repr_html_(self):
        return self.draw("svg").decode()

    def _repr_png_(self):
        return self.draw("png")
