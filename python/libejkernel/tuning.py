# SPDX-License-Identifier: Apache-2.0
"""Finding the fastest configuration of a call by measurement, and where such configurations are kept."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import shutil
import sys
import time

from . import _library
from ._tensors import OptFloat, OptInt, opt_float, opt_int

lib = _library.lib
_P, _I, _L, _S, _D = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p, ctypes.c_double

_library.declare(
    {
        "ejk_config_selector_chain_create": ((_P, _P), _I),
        "ejk_config_selector_chain_destroy": ((_P,), None),
        "ejk_executor_create": ((_P, _P, _P), _I),
        "ejk_executor_destroy": ((_P,), None),
        "ejk_executor_compile": ((_P, _P, _P, _P, _P), _I),
        "ejk_tuner_create": ((_P, _P), _I),
        "ejk_tuner_destroy": ((_P,), None),
        "ejk_executor_autotune": ((_P, _P, _P, _P, _P, _P), _I),
        "ejk_tune_report_is_settled": ((_P,), ctypes.c_bool),
        "ejk_tune_verdict_name": ((_I,), _S),
        "ejk_tune_phase_name": ((_I,), _S),
        "ejk_record_to_json": ((_P, _P, _I, _P), _I),
        "ejk_persistent_cache_open": ((_P, _P), _I),
        "ejk_persistent_cache_close": ((_P,), None),
        "ejk_persistent_cache_clear": ((_P,), _I),
        "ejk_persistent_cache_size": ((_P, _P), _I),
        "ejk_persistent_cache_path": ((_P,), _S),
        "ejk_persistent_cache_export_json": ((_P, _P, _P), _I),
        "ejk_persistent_cache_import_json": ((_P, _S, _P), _I),
    }
)

_SET_ONLY = 1


class _PersistentOptions(ctypes.Structure):
    _fields_ = [("path", _S), ("busy_ms", _I), ("on_event", _P), ("on_event_user", _P)]


class _ChainOptions(ctypes.Structure):
    _fields_ = [
        ("cache", _P),
        ("persistent", _P),
        ("policy", _I * 15),  # ejk_autotune_policy: all unset
        ("tuner", _P),
        ("persist_autotune", _I),
        ("forbid_reautotune", _I),
        ("remember_override", ctypes.c_bool),
        ("on_event", _P),
        ("on_event_user", _P),
    ]


class _ExecutorOptions(ctypes.Structure):
    _fields_ = [
        ("selector", _P),
        ("chooser", _P),
        ("stamp", _I),
        ("stamp_prefix", _S),
        ("profiler", _P),
        ("recording", _P),
    ]


class _Progress(ctypes.Structure):
    _fields_ = [
        ("phase", _I),
        ("candidates", _I),
        ("tried", _I),
        ("survivors", _I),
        ("round", _I),
        ("best", _I),
        ("best_median_s", _D),
        ("default_median_s", _D),
        ("elapsed_s", _D),
        ("budget_s", _D),
    ]


_ProgressFn = ctypes.CFUNCTYPE(None, _P, ctypes.POINTER(_Progress))


class _TunerOptions(ctypes.Structure):
    _fields_ = [
        ("warmup", OptInt),
        ("iters", _I),
        ("max_rounds", _I),
        ("max_candidates", _I),
        ("time_s", _D),
        ("memory_bytes", _L),
        ("sample_s", OptFloat),
        ("seed", ctypes.c_uint64),
        ("cancel", ctypes.POINTER(ctypes.c_int)),
        ("progress", _ProgressFn),
        ("progress_user", _P),
        ("clock", _P * 2),
    ]


class _AutotuneOptions(ctypes.Structure):
    _fields_ = [
        ("configs", _P),
        ("config_count", _I),
        ("tuner", _TunerOptions),
        ("tolerance", _D),
        ("direction", _I),
    ]


class _ConfigTuner(ctypes.Structure):
    _fields_ = [("self", _P), ("tune", _P)]


_library.declare({"ejk_tuner_config_tuner": ((_P,), _ConfigTuner)})


class _Candidate(ctypes.Structure):
    _fields_ = [
        ("verdict", _I),
        ("status", _I),
        ("sentence", _S),
        ("description", _S),
        ("difference", _D),
        ("first_s", _D),
        ("median_s", _D),
        ("spread_s", _D),
        ("samples", _I),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        ("candidates", ctypes.POINTER(_Candidate)),
        ("count", _I),
        ("default_index", _I),
        ("chosen", _I),
        ("ratio", _D),
        ("noise", _D),
        ("pairs", _I),
        ("rounds", _I),
        ("elapsed_s", _D),
        ("budget_s", _D),
        ("seed", ctypes.c_uint64),
        ("cancelled", ctypes.c_bool),
        ("out_of_time", ctypes.c_bool),
        ("backward", _P),
    ]


class _TunedCall(ctypes.Structure):
    _fields_ = [("key", _P), ("problem", _S), ("config", _P), ("report", ctypes.POINTER(_Report))]


_ToldFn = ctypes.CFUNCTYPE(None, _P, ctypes.POINTER(_TunedCall))


@dataclasses.dataclass
class TuneReport:
    """What tuning found."""

    config: dict
    """The configuration to use, for `cfg=`."""
    stored: bool
    """Whether it is in the cache, where later calls and programs find it."""
    ratio: float
    """Its time over that of the default, NaN where they were not compared."""
    noise: float
    """Of that ratio."""
    elapsed_s: float
    problem: str
    """The call as `ejk bench` reads it."""
    candidates: list
    """A dict for each: verdict, config, median_s, spread_s, why."""


class Bar:
    """A progress bar on a terminal or in a notebook; quiet elsewhere."""

    def __init__(self, stream=None):
        self._stream = stream or sys.stderr
        self._live = hasattr(self._stream, "isatty") and self._stream.isatty() or "ipykernel" in sys.modules
        self._last = 0.0
        self._drawn = False

    def __call__(self, progress):
        now = time.monotonic()
        if not self._live or now - self._last < 0.1:
            return
        self._last, self._drawn = now, True
        room = shutil.get_terminal_size().columns - 1
        text = f"{progress['phase']}: {progress['tried']}/{progress['candidates']} tried"
        if progress["best_median_s"] > 0:
            text += f", best {progress['best_median_s'] * 1e3:.3g} ms"
        text += f", {progress['elapsed_s']:.1f}/{progress['budget_s']:.1f} s"
        width = max(min(room - len(text) - 3, 40), 0)
        full = int(width * min(progress["elapsed_s"] / progress["budget_s"], 1))
        print(f"\r[{'#' * full}{'.' * (width - full)}] {text[:room]}", end="", file=self._stream, flush=True)

    def close(self):
        if self._drawn:
            print("\r" + " " * (shutil.get_terminal_size().columns - 1), end="\r", file=self._stream, flush=True)


class PersistentCache:
    """Configurations on disk: the file that all programs with this library share, or another.

    Parameters
    ----------
    path : str, optional
        A ".db" file or a folder. By default EJKERNEL_CACHE_DIR, else that of the user's caches.
    """

    def __init__(self, path=None):
        options = _PersistentOptions(path=None if path is None else str(path).encode())
        handle = ctypes.c_void_p()
        _library.check(lib.ejk_persistent_cache_open(ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value

    def __del__(self):
        if getattr(self, "_handle", None):
            lib.ejk_persistent_cache_close(self._handle)

    @property
    def path(self):
        """The file."""
        return lib.ejk_persistent_cache_path(self._handle).decode()

    def __len__(self):
        count = _L()
        _library.check(lib.ejk_persistent_cache_size(self._handle, ctypes.byref(count)))
        return count.value

    def clear(self):
        """Takes everything out."""
        _library.check(lib.ejk_persistent_cache_clear(self._handle))

    def export_json(self):
        """All entries as text, for another machine or an application's own cache."""
        return _library.text_from(lib.ejk_persistent_cache_export_json, self._handle, None)

    def import_json(self, text):
        """Adds the entries of such a text; answers how many were added, replaced, kept and rejected."""
        counts = (_L * 4)()
        _library.check(lib.ejk_persistent_cache_import_json(self._handle, text.encode(), counts))
        return dict(zip(("added", "replaced", "kept", "rejected"), counts))


class _Choice:
    """An executor of the library's with the chain that chooses for it: what makes plans."""

    def __init__(self, persistent, tuner=None):
        self._persistent, self._context = persistent, _library.context()
        self.process = self._context.process
        self._tuner, self._chain, self.handle = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        options = _ChainOptions(persistent=None if persistent is None else persistent._handle)
        if tuner is not None:
            _library.check(lib.ejk_tuner_create(ctypes.byref(tuner), ctypes.byref(self._tuner)))
            measures = lib.ejk_tuner_config_tuner(self._tuner)  # copied
            options.tuner = ctypes.addressof(measures)
            options.policy[0] = 1  # allow_autotune
        _library.check(lib.ejk_config_selector_chain_create(ctypes.byref(options), ctypes.byref(self._chain)))
        options = _ExecutorOptions(selector=self._chain)
        status = lib.ejk_executor_create(self._context.handle, ctypes.byref(options), ctypes.byref(self.handle))
        _library.check(status)

    def __del__(self, getpid=_library.os.getpid):
        # A child leaves its parent's alone, as it does with contexts.
        if getattr(self, "process", None) == getpid():
            lib.ejk_executor_destroy(self.handle)
            lib.ejk_config_selector_chain_destroy(self._chain)
            lib.ejk_tuner_destroy(self._tuner)

    def plan(self, name, arguments, results=""):
        """The handle of a new plan of a call, as Context.plan()."""
        if self.process != _library.os.getpid():
            _library.fail("UNAVAILABLE", "the executor was made before fork(), expected one of this process")
        if results:  # their views are the context's to find
            lib.ejk_plan_destroy(self._context.plan(name, arguments, results))
        handle, kernel = ctypes.c_void_p(), self._context.kernel(name)
        _library.check(lib.ejk_executor_compile(self.handle, kernel, arguments, None, ctypes.byref(handle)))
        return handle.value


class Executor:
    """Makes calls with a choice of configurations of its own, and may measure what it does not know.

    `executor(function, *arguments, **keywords)` is the call `function(*arguments, **keywords)` of libejkernel.numpy; an
    explicit `cfg` comes first, then what the executor remembers, what its cache on disk has, what it measures, and the
    operation's own rule. It has the threads that were set when it was made.

    Parameters
    ----------
    persistent : PersistentCache or path, optional
        A cache on disk, read, and written by what is measured.
    autotune : bool
        Whether a call for which nothing is known is measured first.
    warmup, iters : int
        Runs of a candidate before the first that is timed, and rounds at least.
    budget : float
        Seconds for measuring a call.
    """

    def __init__(self, persistent=None, autotune=False, warmup=2, iters=5, budget=10.0):
        if persistent is not None and not isinstance(persistent, PersistentCache):
            persistent = PersistentCache(persistent)
        tuner = _TunerOptions(warmup=opt_int(warmup), iters=iters, time_s=budget) if autotune else None
        self._choice = _Choice(persistent, tuner)
        self._functions = {}

    def _made(self, function):
        from . import _arrays

        operation = _arrays.made(function).operation
        if operation.name not in self._functions:
            self._functions[operation.name] = _arrays._Function(operation, self._choice)
        return self._functions[operation.name]

    def __call__(self, function, *arguments, **keywords):
        return self._made(function).function(*arguments, **keywords)

    def plan(self, function, *arguments, **keywords):
        """The plan of such a call, as libejkernel.numpy.plan()."""
        return self._made(function).prepared(arguments, keywords)[0]


def _report_of(call, record, stored):
    report = call.report.contents
    candidates = []
    for i in range(report.count):
        each = report.candidates[i]
        config = each.description.decode()
        candidates.append(
            {
                "verdict": lib.ejk_tune_verdict_name(each.verdict).decode(),
                "config": json.loads(config) if config.startswith("{") else config,
                "median_s": each.median_s,
                "spread_s": each.spread_s,
                "why": each.sentence.decode(),
            }
        )
    return TuneReport(
        config=_library.json_from(lib.ejk_record_to_json, record, call.config, _SET_ONLY),
        stored=stored and lib.ejk_tune_report_is_settled(call.report),
        ratio=report.ratio,
        noise=report.noise,
        elapsed_s=report.elapsed_s,
        problem=(call.problem or b"").decode(),
        candidates=candidates,
    )


def tune(function, *arguments, budget=10.0, store=True, cache=None, seed=0, progress=None, **keywords):
    """Finds the fastest configuration of a call, and keeps it where later calls find it.

    Every candidate's result is compared with the default's, and the default stays unless another is faster by more
    than the noise. Ctrl-C ends the search with what was found.

    Parameters
    ----------
    function : callable or str
        An operation of libejkernel.numpy, or its name.
    *arguments, **keywords
        Those of the call; results are not written.
    budget : float
        Seconds for everything.
    store : bool
        Whether the choice is kept on disk.
    cache : PersistentCache or path, optional
        Where; by default the cache that all programs share.
    seed : int
        Of the order of measurements.
    progress : callable or bool, optional
        Called with a dict; by default a bar, where there is a terminal; False for none.

    Returns
    -------
    TuneReport
    """
    from . import _arrays

    _, memory, kept = _arrays.made(function).prepared(arguments, keywords)
    if store and not isinstance(cache, PersistentCache):
        cache = PersistentCache(cache)
    context = _library.context()
    kernel = context.kernel(_arrays.made(function).operation.name)
    record = ctypes.c_void_p.from_address(kernel + 32).value  # ejk_kernel.config
    bar = Bar() if progress is None or progress is True else progress or (lambda state: None)
    cancel, reports = ctypes.c_int(0), []

    def show(_user, state):
        each = state.contents
        try:
            values = {name: getattr(each, name) for name, _ in _Progress._fields_}
            bar({**values, "phase": lib.ejk_tune_phase_name(each.phase).decode()})
        except KeyboardInterrupt:
            cancel.value += 1

    def told(_user, call):
        reports.append(_report_of(call.contents, record, store))

    options = _AutotuneOptions()
    options.tuner.time_s, options.tuner.seed = budget, seed
    options.tuner.sample_s = opt_float(None)
    options.tuner.cancel = ctypes.pointer(cancel)
    options.tuner.progress = show_fn = _ProgressFn(show)
    told_fn = _ToldFn(told)
    executor = _Choice(cache if store else None)
    try:
        status = lib.ejk_executor_autotune(
            executor.handle, kernel, memory.address, ctypes.byref(options), told_fn, None
        )
        _library.check(status)
    finally:
        if isinstance(bar, Bar):
            bar.close()
        del kept, show_fn
    _library.renew_context()  # its plans were chosen before
    return reports[0]
