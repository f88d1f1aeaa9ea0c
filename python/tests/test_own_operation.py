# SPDX-License-Identifier: Apache-2.0
"""An operation that a user adds appears with signature, docstring and results, without a line of Python about it."""

import ctypes
import inspect
import os
import shutil
import subprocess
import sys

import libejkernel
import libejkernel.numpy as ejk
import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(HERE, "..", "..", "include")


@pytest.fixture(scope="module")
def scale_by(tmp_path_factory):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    path = str(tmp_path_factory.mktemp("own") / "own.so")
    source = os.path.join(HERE, "own_operation.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, source, "-I", INCLUDE], check=True)
    from libejkernel import _library

    ctypes.CDLL(_library._path(), ctypes.RTLD_GLOBAL)  # what the library of the user is linked with
    if "scale_by" not in libejkernel.operations():
        assert libejkernel.register_operations(ctypes.CDLL(path).add_own) == ["scale_by", "sum_of_parts"]
    return ejk.scale_by


def test_it_has_what_the_others_have(scale_by):
    assert "scale_by" in dir(ejk)
    expected = "(x, factor=0.0, total=None, places=None, *, out=None)"
    assert str(inspect.signature(scale_by)) == expected
    assert "What is scaled." in scale_by.__doc__ and "updated in place" in scale_by.__doc__
    x = np.arange(4, dtype=np.float32)
    assert scale_by(x, 2).tolist() == [0, 2, 4, 6]
    assert libejkernel.infer("scale_by", {"x": ((4,), "float32")}) == {"out": ((4,), "float32")}
    with pytest.raises(libejkernel.InvalidDtype, match="x: float64 given, expected float32"):
        scale_by(x.astype(np.float64))


def test_lists_and_states(scale_by):
    x, total = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    for factor in (2, 3):
        out = scale_by(x, factor, total, places=[1, 3])
    assert out.tolist() == [0, 3, 0, 9]
    assert total.tolist() == [1, 6, 1, 16]
    with pytest.raises(libejkernel.InvalidArgument, match="total is read-only"):
        frozen = total.copy()
        frozen.flags.writeable = False
        scale_by(x, 2, frozen)
    with pytest.raises(libejkernel.InvalidArgument, match="places is"):
        scale_by(x, 2, places=list(range(17)))


def test_lists_of_tensors(scale_by):
    draw = np.random.default_rng(0)
    parts = [draw.standard_normal((n, 4)).astype(np.float32) for n in (2, 5, 1)]
    expected = sum(part.sum(0, dtype=np.float32) for part in parts)
    for _ in range(2):
        assert np.allclose(ejk.sum_of_parts(parts), np.tile(expected, (3, 1)), atol=1e-5)
    start = np.ones(4, np.float32)
    assert np.allclose(ejk.sum_of_parts(parts[:2], start)[0], sum(p.sum(0) for p in parts[:2]) + 1, atol=1e-5)
    wide = [np.repeat(part, 2, axis=0)[::2] for part in parts]
    assert np.allclose(ejk.sum_of_parts(wide)[0], expected, atol=1e-5)
    assert "sequence of array, [n#,D] float32" in ejk.sum_of_parts.__doc__
    tensors = {"parts": [((6, 4), "float32"), ((2, 4), "float32")]}
    assert libejkernel.infer("sum_of_parts", tensors) == {"out": ((7, 4), "float32")}
    with pytest.raises(libejkernel.InvalidShape, match="parts"):
        ejk.sum_of_parts([parts[0], parts[1][:, :3]])
    with pytest.raises(libejkernel.InvalidArgument, match="9 tensors, expected at most 8"):
        ejk.sum_of_parts([parts[0]] * 9)
    with pytest.raises(libejkernel.InvalidArgument, match="expected a sequence of arrays"):
        ejk.sum_of_parts(parts[0])
    with pytest.raises(libejkernel.InvalidArgument, match=r"parts\[0\]: missing"):
        ejk.sum_of_parts([])


def test_it_stays_with_another_context(scale_by):
    threads = libejkernel.get_num_threads()
    libejkernel.set_num_threads(1)
    assert scale_by(np.ones(2, np.float32), 5).tolist() == [5, 5]
    libejkernel.set_num_threads(threads)


def test_a_library_of_another_version_is_refused(tmp_path):
    """The package reads structs by the description of its own build."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    path = str(tmp_path / "other.so")
    source = 'const char *ejk_version(void) { return "0.0.7"; }'
    subprocess.run([compiler, "-shared", "-x", "c", "-o", path, "-"], input=source, text=True, check=True)
    environment = {**os.environ, "EJKERNEL_LIBRARY": path}
    code = "import libejkernel"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "is version 0.0.7, expected" in done.stderr


def test_a_library_that_describes_an_operation_otherwise_is_refused(monkeypatch):
    from libejkernel import _library
    from libejkernel._description import catalogue

    operation = catalogue()[libejkernel.operations()[0]]
    assert _library.Context(1).kernel(operation.name)
    monkeypatch.setattr(operation, "entry", {**operation.entry, "doc": "something else"})
    with pytest.raises(ImportError, match="in another way than this package"):
        _library.Context(1).kernel(operation.name)
