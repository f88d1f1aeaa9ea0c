# SPDX-License-Identifier: Apache-2.0
"""The library's profiler: times of scopes, as a table or a trace for Perfetto."""

from __future__ import annotations

import contextlib
import ctypes

from . import _library
from ._tensors import OptInt, opt_bool, opt_int

lib = _library.lib
_P, _I, _L, _S, _D = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p, ctypes.c_double

_library.declare(
    {
        "ejk_profiler_create": ((_P, _P), _I),
        "ejk_profiler_destroy": ((_P,), None),
        "ejk_profiler_begin": ((_P, _S), _I),
        "ejk_profiler_end": ((_P, _S), _I),
        "ejk_profiler_add": ((_P, _S, _S, _D, _D), _I),
        "ejk_profiler_times": ((_P, _P, _P, _P), _I),
        "ejk_profiler_to_chrome_json": ((_P, _P), _I),
        "ejk_profiler_table": ((_P, _P), _I),
        "ejk_profiler_now": ((), _D),
    }
)


class _Options(ctypes.Structure):
    _fields_ = [
        ("prefix_filter", _S),
        ("event_filter_regex", _S),
        ("min_duration_ns", OptInt),
        ("max_events", OptInt),
        ("marker_path", _S),
        ("nvtx", _I),
    ]


class _Time(ctypes.Structure):
    _fields_ = [
        ("name", _S),
        ("count", _L),
        ("latest_s", _D),
        ("mean_s", _D),
        ("std_s", _D),
        ("total_s", _D),
        ("union_s", _D),
    ]


class Profiler:
    """Records when scopes of threads began and ended.

    `with profiler.scope("step"):` around what is to be measured, then `print(profiler)`, `profiler.times()` or
    `profiler.chrome_trace()`, which opens in https://ui.perfetto.dev.

    Parameters
    ----------
    prefix : str, optional
        Only names that begin so are reported.
    min_duration_ns : int, optional
        Shorter scopes are only counted; 1000 by default.
    max_events : int, optional
        Kept for each thread; 10000 by default.
    marker_path : str, optional
        A file that gets a line when a scope begins and when it ends.
    nvtx : bool
        Whether ranges of NVTX are pushed where the process has loaded it.
    """

    def __init__(self, prefix=None, min_duration_ns=None, max_events=None, marker_path=None, nvtx=True):
        options = _Options(
            prefix_filter=prefix.encode() if prefix else None,
            min_duration_ns=opt_int(min_duration_ns),
            max_events=opt_int(max_events),
            marker_path=str(marker_path).encode() if marker_path else None,
            nvtx=opt_bool(nvtx),
        )
        handle = ctypes.c_void_p()
        _library.check(lib.ejk_profiler_create(ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value

    def __del__(self):
        if getattr(self, "_handle", None):
            lib.ejk_profiler_destroy(self._handle)

    @contextlib.contextmanager
    def scope(self, name):
        """A scope of this thread, inside those that are open."""
        _library.check(lib.ejk_profiler_begin(self._handle, name.encode()))
        try:
            yield self
        finally:
            lib.ejk_profiler_end(self._handle, None)

    def add(self, track, name, start_s, end_s):
        """An interval of a device's track, in seconds of now()."""
        _library.check(lib.ejk_profiler_add(self._handle, track.encode(), name.encode(), start_s, end_s))

    @staticmethod
    def now():
        """Seconds of the clock of all events."""
        return lib.ejk_profiler_now()

    def times(self):
        """A dict for each name: count, latest_s, mean_s, std_s, total_s, union_s."""
        out, count = ctypes.c_void_p(), _L()
        _library.check(lib.ejk_profiler_times(self._handle, None, ctypes.byref(out), ctypes.byref(count)))
        try:
            rows = (_Time * count.value).from_address(out.value) if count.value else ()
            names = [name for name, _ in _Time._fields_[1:]]
            return {row.name.decode(): {name: getattr(row, name) for name in names} for row in rows}
        finally:
            lib.ejk_free(out)

    def chrome_trace(self):
        """The JSON of Chrome's trace viewer."""
        return _library.text_from(lib.ejk_profiler_to_chrome_json, self._handle)

    def __str__(self):
        return _library.text_from(lib.ejk_profiler_table, self._handle)
