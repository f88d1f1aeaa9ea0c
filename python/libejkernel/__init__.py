# SPDX-License-Identifier: Apache-2.0
"""libejkernel: attention and sequence kernels for CPUs and NVIDIA GPUs, from Python.

`libejkernel.numpy` has the operations on NumPy arrays. Everything there is made from the library's description of
its operations.
"""

import importlib as _importlib

from ._calls import infer
from ._description import catalogue as _catalogue
from ._library import Error, exceptions, get_num_threads, register_operations, set_num_threads

__version__ = _catalogue().version
_exception_names = [each.__name__ for each in exceptions.values()]
globals().update((each.__name__, each) for each in exceptions.values())

#: Names that are imported when they are first asked for, with their modules.
_LATER = {
    "CausalMask": "masks",
    "ChunkedCausalMask": "masks",
    "FullMask": "masks",
    "LocalMask": "masks",
    "Mask": "masks",
    "MaskInfo": "mask_info",
    "MultiHeadMask": "masks",
    "NumpyMask": "masks",
    "PersistentCache": "tuning",
    "Profiler": "profiling",
    "SplashMaskInfo": "masks",
    "block_arguments": "masks",
    "extract_labels_from_hlo_text": "labels",
    "find_labels_in_lowered": "labels",
    "label": "labels",
    "process_mask": "masks",
    "tune": "tuning",
}

__all__ = [
    "Error",
    "exceptions",
    "get_num_threads",
    "infer",
    "operations",
    "register_operations",
    "set_num_threads",
    *_exception_names,
    *_LATER,
]


def operations():
    """Names of all operations."""
    return _catalogue().names()


def __getattr__(name):
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_importlib.import_module("." + _LATER[name], __name__), name)
    return value


def __dir__():
    return sorted([*__all__, "__version__"])
