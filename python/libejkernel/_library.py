# SPDX-License-Identifier: Apache-2.0
"""The shared library: loading it, its errors as exceptions, contexts."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
import weakref

from ._description import catalogue


class Error(Exception):
    """A call of the library failed. `status` is the status's name, the text the library's sentence."""

    status = "INTERNAL"


_BASES = {
    "INVALID_ARGUMENT": ValueError,
    "INVALID_SHAPE": ValueError,
    "INVALID_DTYPE": TypeError,
    "INVALID_LAYOUT": ValueError,
    "OVERFLOW": OverflowError,
    "UNKNOWN_NAME": ValueError,
    "UNAVAILABLE": NotImplementedError,
    "OUT_OF_MEMORY": MemoryError,
    "IO": OSError,
    "MALFORMED": ValueError,
}


def _class_of(status):
    name = "".join(word.capitalize() for word in status.lower().split("_"))
    bases = (Error, _BASES[status]) if status in _BASES else (Error,)
    text = f"A call failed with the status {status}."
    return type(name, bases, {"status": status, "__doc__": text, "__module__": "libejkernel"})


#: Exception classes by the names of statuses. Those that Python has a class for are also that.
exceptions = {status: _class_of(status) for status in [*_BASES, "WORKSPACE_TOO_SMALL", "MISMATCH", "INTERNAL"]}


def fail(status, sentence):
    """Raises what a status of that name is, with a sentence of the binding's own."""
    raise exceptions[status](sentence)


def _path():
    given = os.environ.get("EJKERNEL_LIBRARY")
    if given:
        return given
    here = os.path.dirname(os.path.abspath(__file__))
    return os.path.join(here, "lib", "libejkernel.so.0")


def _load():
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"libejkernel: {path} cannot be loaded: {error}") from None
    library.ejk_version.restype = ctypes.c_char_p
    found, expected = library.ejk_version().decode(), catalogue().version
    if found != expected:
        raise ImportError(f"libejkernel: {path} is version {found}, expected {expected}, that of this package")
    return library


lib = _load()

_P, _I, _S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_SIGNATURES = {
    "ejk_last_error": ((), _S),
    "ejk_status_name": ((_I,), _S),
    "ejk_build_flags": ((), _S),
    "ejk_free": ((_P,), None),
    "ejk_context_create": ((_P, _P), _I),
    "ejk_context_destroy": ((_P,), None),
    "ejk_context_threads": ((_P,), _P),
    "ejk_threads_count": ((_P,), _I),
    "ejk_threads_default": ((), _I),
    "ejk_context_find_kernel": ((_P, _S, _P), _I),
    "ejk_context_kernel": ((_P, _I), _P),
    "ejk_kernel_describe": ((_P, _P), _I),
    "ejk_plan_create": ((_P, _P, _P, _P), _I),
    "ejk_plan_create_for_results": ((_P, _P, _P, _S, _P), _I),
    "ejk_plan_destroy": ((_P,), None),
    "ejk_plan_execute": ((_P, _P, _P, ctypes.c_size_t), _I),
    "ejk_plan_execute_on": ((_P, _P, _P, ctypes.c_size_t, _P), _I),
    "ejk_plan_describe": ((_P, _P), _I),
    "ejk_plan_explain": ((_P, _P), _I),
}


def declare(signatures):
    """Says argument and result types of functions of the library, once."""
    for name, (arguments, result) in signatures.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, result


declare(_SIGNATURES)


def check(status):
    """Raises the exception of a status that is not OK, with the library's sentence."""
    if status != 0:
        name = lib.ejk_status_name(status).decode()
        raise exceptions.get(name, Error)(last_sentence())


def take_text(pointer):
    """A text that the library handed over, freed."""
    try:
        return ctypes.string_at(pointer.value).decode()
    finally:
        lib.ejk_free(pointer)


def last_sentence():
    """The sentence of this thread's last failure."""
    return lib.ejk_last_error().decode("utf-8", "replace")


def text_from(function, *arguments):
    """What a function writes to its last argument, a text to be freed."""
    out = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(out)))
    return take_text(out)


def json_from(function, *arguments):
    """The same of JSON, as what it says."""
    return json.loads(text_from(function, *arguments))


# ---- Contexts --------------------------------------------------------------------------------------------------------


class Context:
    """Threads, plans and kernels of the library. There is one for the process; its calls may overlap."""

    def __init__(self, threads=None):
        options = (ctypes.c_uint64 * 8)()
        if threads is not None:
            if not isinstance(threads, int) or not 1 <= threads < 2**31:
                fail("INVALID_ARGUMENT", f"threads is {threads!r}, expected a whole number of at least 1")
            options[0] = threads
        handle = ctypes.c_void_p()
        check(lib.ejk_context_create(options, ctypes.byref(handle)))
        self.handle = handle.value
        self.process = os.getpid()
        self._kernels = {}
        for add in _registered:
            check(add(self.handle))

    def __del__(self, destroy=lib.ejk_context_destroy, getpid=os.getpid):
        # A child leaves its parent's alone: another thread may have been inside it when it was forked.
        if getattr(self, "handle", None) and self.process == getpid():
            destroy(self.handle)

    @property
    def threads(self):
        return lib.ejk_threads_count(lib.ejk_context_threads(self.handle))

    def kernel(self, name):
        """The address of an operation's kernel, whose description is the one that this package has."""
        if name not in self._kernels:
            out = ctypes.c_void_p()
            check(lib.ejk_context_find_kernel(self.handle, name.encode(), ctypes.byref(out)))
            _compare(name, out.value)
            self._kernels[name] = out.value
        return self._kernels[name]

    def plan(self, name, arguments, results=""):
        """The handle of a new plan of a call; views of the results that are named are written to the arguments."""
        handle = ctypes.c_void_p()
        kernel, out = self.kernel(name), ctypes.byref(handle)
        if results:
            check(lib.ejk_plan_create_for_results(self.handle, kernel, arguments, results.encode(), out))
        else:
            check(lib.ejk_plan_create(self.handle, kernel, arguments, out))
        return handle.value


_registered = []
_lock = threading.RLock()
_context = None
_watchers = []


def describe(kernel):
    """A kernel's description: what the library says of it, as a dict."""
    return json_from(lib.ejk_kernel_describe, kernel)


def _compare(name, kernel):
    expected = catalogue()[name].entry
    if describe(kernel) != expected:
        raise ImportError(
            f"libejkernel: {_path()} describes {name} in another way than this package; expected the library"
            " that was built with it"
        )


def context():
    """The process's context, made when it is first needed."""
    global _context
    if _context is None:
        with _lock:
            if _context is None:
                _context = Context()
    return _context


def on_context_change(function):
    """Has a function called whenever another context takes the place of the last: plans have to go."""
    _watchers.append(weakref.WeakMethod(function) if hasattr(function, "__self__") else lambda: function)


def _replace(new):
    global _context
    _context = new
    for watcher in list(_watchers):
        function = watcher()
        if function is None:
            _watchers.remove(watcher)
        else:
            function()


def set_num_threads(count):
    """Sets how many threads calls use from now on, the caller's included.

    Calls of other threads that are running end as they began. The default is that of EJKERNEL_NUM_THREADS, else
    the number of physical cores.
    """
    with _lock:
        _replace(Context(count))


def renew_context():
    """Has a new context take the place of the last, so that plans are chosen anew."""
    with _lock:
        _replace(Context(context().threads))


def get_num_threads():
    """How many threads calls use, the caller's included."""
    return context().threads


def register_operations(function):
    """Adds operations of your own; answers their names.

    `function` is one of C, `ejk_status add(ejk_context *context)`, as ctypes has it: it registers kernels and
    implementations, and is called for the context that there is and for each that takes its place. The operations
    then appear in the modules of this package as the library's own do. What they consist of has to live as long as
    the process.
    """
    function.argtypes, function.restype = (_P,), _I
    with _lock:
        used = context()
        check(function(used.handle))
        _registered.append(function)
        added = []
        for index in itertools.count():
            kernel = lib.ejk_context_kernel(used.handle, index)
            if not kernel:
                return added
            entry = describe(kernel)
            if entry["op"] not in catalogue():
                catalogue().add(entry)
                added.append(entry["op"])


def _after_fork():
    global _context, _lock
    _lock = threading.RLock()
    if _context is not None:
        _replace(None)


os.register_at_fork(after_in_child=_after_fork)
