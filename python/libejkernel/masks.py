# SPDX-License-Identifier: Apache-2.0
"""Masks as objects, and what block-sparse attention reads of them; notebooks show them as pictures."""

from __future__ import annotations

import collections
import ctypes

import numpy as np

from . import _library, _records
from ._tensors import OptInt, Tensor, Window, array, opt_bool, opt_int, tensor, window, window_value

lib = _library.lib
_P, _I, _L, _Z = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
_B = ctypes.c_bool

_library.declare(
    {
        "ejk_full_mask_create": ((_P, _P), _I),
        "ejk_causal_mask_create": ((_P, _L, _P, _P), _I),
        "ejk_local_mask_create": ((_P, Window, _L, _P, _P), _I),
        "ejk_chunked_causal_mask_create": ((_P, _L, _P, _P), _I),
        "ejk_numpy_mask_create": ((_P, _P), _I),
        "ejk_logical_and_create": ((_P, _P, _P), _I),
        "ejk_logical_or_create": ((_P, _P, _P), _I),
        "ejk_logical_not_create": ((_P, _P), _I),
        "ejk_multi_head_mask_create": ((_P, _L, _P), _I),
        "ejk_splash_mask_release": ((_P,), None),
        "ejk_splash_mask_kind_of": ((_P,), _I),
        "ejk_splash_mask_kind_name": ((_I,), ctypes.c_char_p),
        "ejk_splash_mask_shape": ((_P, _P), _I),
        "ejk_splash_mask_equal": ((_P, _P), _B),
        "ejk_splash_mask_hash": ((_P,), ctypes.c_uint64),
        "ejk_splash_mask_read": ((_P, _P, _P, _P), _I),
        "ejk_splash_mask_head": ((_P, _L), _P),
        "ejk_splash_mask_retain": ((_P,), _P),
        "ejk_splash_mask_interval": ((_P, _P, _P), _B),
        "ejk_process_mask": ((_P, _P), _I),
        "ejk_process_mask_dkv": ((_P, _P), _I),
        "ejk_splash_mask_info_close": ((_P,), None),
        "ejk_mask_draw": ((_P, _P, _I, _P, _P), _I),
    }
)

_FORMATS = {"text": 1, "svg": 2, "png": 3, "html": 4}


class _DrawingOptions(ctypes.Structure):
    _fields_ = [
        ("block_shape", _L * 2),
        ("head", _L),
        ("width", _L),
        ("max_rows", _L),
        ("max_columns", _L),
        ("colour", _I),
        ("legend", _I),
        ("order", _I),
        ("title", ctypes.c_char_p),
    ]


class _ProcessArgs(ctypes.Structure):
    _fields_ = [
        ("mask", _P),
        ("block_shape", _L * 2),
        ("is_dkv", _I),
        ("downcast_smem_data", _I),
        ("head_shards", OptInt),
        ("q_seq_shards", OptInt),
        ("shrink_grid", _I),
        ("threads", _P),
        ("max_bytes", _L),
    ]


class _SplashInfo(ctypes.Structure):
    _fields_ = [
        ("data_next", Tensor),
        ("mask_next", Tensor),
        ("block_mask", Tensor),
        ("partial_mask_blocks", Tensor),
        ("q_sequence", Tensor),
        ("is_dynamic_mask", _B),
        ("mask_function", _P),
        ("owner", _P),
    ]


class Handle:
    """What owns a reference of the library's."""

    _release = None

    def __init__(self, handle):
        self._handle = handle

    def __del__(self):
        if getattr(self, "_handle", None):
            self._release(self._handle)

    @classmethod
    def _of(cls, function, *arguments):
        out = ctypes.c_void_p()
        _library.check(function(*arguments, ctypes.byref(out)))
        made = cls.__new__(cls)
        Handle.__init__(made, out.value)
        return made


# ---- Masks as objects ------------------------------------------------------------------------------------------------


class Mask(Handle):
    """A mask [queries, keys], kept as its parameters; `&`, `|` and `~` combine, `[a:b, c:d]` reads elements."""

    _release = staticmethod(lib.ejk_splash_mask_release)

    @property
    def shape(self):
        shape = (_L * 3)()
        rank = lib.ejk_splash_mask_shape(self._handle, shape)
        return tuple(shape[:rank])

    @property
    def kind(self):
        """The class, as "causal"."""
        return lib.ejk_splash_mask_kind_name(lib.ejk_splash_mask_kind_of(self._handle)).decode()

    def __and__(self, other):
        return Mask._of(lib.ejk_logical_and_create, self._handle, other._handle)

    def __or__(self, other):
        return Mask._of(lib.ejk_logical_or_create, self._handle, other._handle)

    def __invert__(self):
        return Mask._of(lib.ejk_logical_not_create, self._handle)

    def __eq__(self, other):
        if not isinstance(other, Mask):
            return NotImplemented
        return bool(lib.ejk_splash_mask_equal(self._handle, other._handle))

    def __hash__(self):
        return lib.ejk_splash_mask_hash(self._handle)

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        shape = self.shape
        starts, stops, pick = [], [], []
        for axis, length in enumerate(shape):
            each = index[axis] if axis < len(index) else slice(None)
            if isinstance(each, slice):
                start, stop, step = each.indices(length)
                if step != 1:
                    _library.fail("INVALID_ARGUMENT", f"step of axis {axis} is {step}, expected 1")
                pick.append(slice(None))
            else:
                start = _records.integer(f"index of axis {axis}", each)
                start += length if start < 0 else 0
                if not 0 <= start < length:
                    raise IndexError(f"index {each} of axis {axis} is out of range, its length is {length}")
                stop = start + 1
                pick.append(0)
            starts.append(start)
            stops.append(max(stop, start))
        out = np.empty([b - a for a, b in zip(starts, stops)], bool)
        view, _ = tensor("out", out)
        rank = len(shape)
        begin, end = (_L * rank)(*starts), (_L * rank)(*stops)
        _library.check(lib.ejk_splash_mask_read(self._handle, begin, end, ctypes.byref(view)))
        return out[tuple(pick)]

    def __repr__(self):
        return f"<libejkernel.Mask {self.kind} {list(self.shape)}>"

    def draw(self, format="svg", block_shape=None, head=0, width=0, title=None):
        """A picture as bytes: "svg", "png", "html" (a page that zooms) or "text"."""
        if format not in _FORMATS:
            _library.fail("INVALID_ARGUMENT", f"format is {format!r}, expected one of {', '.join(_FORMATS)}")
        options = _DrawingOptions(head=head, width=width, title=title.encode() if title else None)
        if block_shape is not None:
            options.block_shape[:] = block_shape
        data, length = ctypes.c_void_p(), ctypes.c_size_t()
        status = lib.ejk_mask_draw(
            self._handle, ctypes.byref(options), _FORMATS[format], ctypes.byref(data), ctypes.byref(length)
        )
        _library.check(status)
        try:
            return ctypes.string_at(data.value, length.value)
        finally:
            lib.ejk_free(data)

    def _repr_html_(self):
        return self.draw("svg").decode()

    def _repr_png_(self):
        return self.draw("png")


def _shape(shape):
    q, kv = shape
    return (_L * 2)(q, kv)


class FullMask(Mask):
    """Every query sees every key."""

    def __init__(self, shape):
        Handle.__init__(self, 0)
        self._handle = _take(lib.ejk_full_mask_create, _shape(shape))


class CausalMask(Mask):
    """Query q sees key c where q + offset >= c."""

    def __init__(self, shape, offset=0):
        Handle.__init__(self, 0)
        self._handle = _take(lib.ejk_causal_mask_create, _shape(shape), offset, None)


class LocalMask(Mask):
    """Query q sees the keys from q + offset - left to q + offset + right; None = no limit."""

    def __init__(self, shape, window_size, offset=0):
        Handle.__init__(self, 0)
        self._handle = _take(lib.ejk_local_mask_create, _shape(shape), window(window_size), offset, None)


class ChunkedCausalMask(Mask):
    """Query q sees the keys of its own chunk up to q itself."""

    def __init__(self, shape, chunk_size):
        Handle.__init__(self, 0)
        self._handle = _take(lib.ejk_chunked_causal_mask_create, _shape(shape), chunk_size, None)


class NumpyMask(Mask):
    """The elements of a bool array, copied."""

    def __init__(self, array):
        Handle.__init__(self, 0)
        view, _kept = tensor("array", array)
        self._handle = _take(lib.ejk_numpy_mask_create, ctypes.byref(view))


class MultiHeadMask(Mask):
    """One mask per head."""

    def __init__(self, masks):
        Handle.__init__(self, 0)
        masks = list(masks)
        handles = (_P * len(masks))(*[mask._handle for mask in masks])
        self._handle = _take(lib.ejk_multi_head_mask_create, handles, len(masks))


def _take(function, *arguments):
    out = ctypes.c_void_p()
    _library.check(function(*arguments, ctypes.byref(out)))
    return out.value


# ---- What block-sparse attention reads -------------------------------------------------------------------------------

#: The documented tuple of a mask's blocks.
SplashMaskInfo = collections.namedtuple(
    "SplashMaskInfo", "data_next mask_next block_mask partial_mask_blocks q_sequence is_dynamic_mask"
)


class _Blocks:
    """Keeps the arrays of a processed mask."""

    def __init__(self, function, args, mask):
        self.info, self.mask = _SplashInfo(), mask
        _library.check(function(ctypes.byref(args), ctypes.byref(self.info)))

    def __del__(self):
        if self.info.owner:
            lib.ejk_splash_mask_info_close(ctypes.byref(self.info))


def _process(mask, block_shape, is_dkv, downcast_smem_data, head_shards, q_seq_shards, shrink_grid):
    heads = mask if len(mask.shape) == 3 else MultiHeadMask([mask])
    args = _ProcessArgs(
        mask=heads._handle,
        downcast_smem_data=opt_bool(downcast_smem_data),
        head_shards=opt_int(head_shards),
        q_seq_shards=opt_int(q_seq_shards),
        shrink_grid=opt_bool(shrink_grid),
    )
    args.block_shape[:] = block_shape
    return _Blocks(lib.ejk_process_mask_dkv if is_dkv else lib.ejk_process_mask, args, heads)


def process_mask(
    mask, block_shape, *, is_dkv=False, downcast_smem_data=True, head_shards=1, q_seq_shards=1, shrink_grid=True
):
    """A mask as the blocks that block-sparse attention reads.

    Returns
    -------
    (SplashMaskInfo, Mask or None)
        The arrays, and the mask whose predicate takes the place of partial blocks, if all heads share one.
    """
    blocks = _process(mask, block_shape, is_dkv, downcast_smem_data, head_shards, q_seq_shards, shrink_grid)
    info = blocks.info
    arrays = [array(getattr(info, name), blocks) for name in SplashMaskInfo._fields[:-1]]
    function = None
    if info.mask_function:
        function = Mask.__new__(Mask)
        Handle.__init__(function, lib.ejk_splash_mask_retain(info.mask_function))
    return SplashMaskInfo(*arrays, bool(info.is_dynamic_mask)), function


def block_arguments(mask, block_shape, prefix="fwd"):
    """A mask as arguments of a call: `function(q, k, v, **block_arguments(mask, (128, 128)))`.

    `prefix` says for which pass: "fwd", "dq" or "dkv".
    """
    is_dkv = prefix == "dkv"
    info, function = process_mask(mask, block_shape, is_dkv=is_dkv)
    size = "q" if is_dkv else "kv"
    arguments = {
        f"{prefix}_{name}": getattr(info, name)
        for name in ("data_next", "mask_next", "block_mask", "partial_mask_blocks")
        if getattr(info, name) is not None
    }
    arguments[f"{prefix}_{size}_blocksize"] = block_shape[0 if is_dkv else 1]
    if function is None:
        return arguments
    interval, chunk = Window(), _L()
    if not lib.ejk_splash_mask_interval(function._handle, ctypes.byref(interval), ctypes.byref(chunk)):
        heads = [NumpyMask(mask[i]) for i in range(mask.shape[0])] if len(mask.shape) == 3 else [NumpyMask(mask[:])]
        return block_arguments(MultiHeadMask(heads), block_shape, prefix)
    arguments["mask_function"] = "interval"
    arguments["mask_interval"] = window_value(interval)
    if chunk.value:
        arguments["mask_chunk_size"] = chunk.value
    if info.q_sequence is not None:
        arguments["q_sequence"] = info.q_sequence
    return arguments
