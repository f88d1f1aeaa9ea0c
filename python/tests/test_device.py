# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU, by a driver of the tests' own that counts launches and computes nothing."""

import os
import subprocess
import sys

import pytest

from libejkernel import _library

FAKES = os.path.join(os.path.dirname(os.path.realpath(_library._path())), "tests")

PROGRAM = '''
import ctypes
import numpy as np
import libejkernel
import libejkernel.numpy as ejk


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("retained", "loaded", "launches", "allocated", "live", "waits")]


class Producer:
    """Memory of the host that says it is a GPU's."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None, max_version=None):
        assert stream == 1
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = 2
        return capsule


q, k, v, out = (np.ones((1, 64, 2, 64), np.float16) for _ in range(4))
tensors, target = [Producer(x) for x in (q, k, v)], Producer(out)
assert ejk.flash_attention(*tensors, causal=True, out=target) is target
counts = Counts.in_dll(ctypes.CDLL(LIBRARY), "fake_cuda")
first, loaded = counts.launches, counts.loaded
assert first > 0
for _ in range(3):
    assert ejk.flash_attention(*tensors, causal=True, out=target) is target
assert counts.launches == 4 * first and counts.loaded == loaded
for arguments, sentence in (
    ((tensors, {}), "out: the call's tensors lie on a GPU, expected out= with memory there"),
    (((tensors[0], k, v), {"out": target}), "expected all tensors of a call in one place"),
):
    try:
        ejk.flash_attention(*arguments[0], **arguments[1])
    except libejkernel.InvalidArgument as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(sentence)
'''


@pytest.mark.skipif(not os.path.exists(os.path.join(FAKES, "libfake_cuda.so")), reason="the fake driver is not built")
def test_calls_are_enqueued_on_the_gpu(tmp_path):
    driver = os.path.join(FAKES, "libfake_cuda.so")
    environment = {
        **os.environ,
        "EJKERNEL_CUDA_LIBRARY": driver,
        "EJKERNEL_NVRTC_LIBRARY": os.path.join(FAKES, "libfake_nvrtc.so"),
        "EJKERNEL_CUDA_CACHE": str(tmp_path),
    }
    program = PROGRAM.replace("LIBRARY", repr(driver), 1)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
