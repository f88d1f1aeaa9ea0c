# SPDX-License-Identifier: Apache-2.0
"""NumPy, JAX and PyTorch in one process: threads, memory that is freed early, children, the end of the interpreter."""

import os
import signal
import subprocess
import sys
import threading
import warnings

import libejkernel
import libejkernel.numpy as ejk
import numpy as np
import pytest

SMALL, LARGE = (1, 5, 2, 8), (1, 640, 2, 64)  # of which malloc uses the memory again, and gives it back to the system


def drawn(shape, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(shape, np.float32) for _ in range(3)]


def numpy_way():
    return lambda q, k, v: ejk.flash_attention(q, k, v, causal=True)


def jax_way():
    jax = pytest.importorskip("jax")
    import libejkernel.jax as ejx

    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    step = jax.jit(jax.grad(lambda q, k, v: (ejx.flash_attention(q, k, v, causal=True) ** 2).sum()))
    return lambda *arrays: step(*map(jax.numpy.array, arrays))


def torch_way():
    torch = pytest.importorskip("torch")
    import libejkernel.torch as ejt

    def step(q, k, v):
        q, k, v = (torch.from_numpy(each).clone() for each in (q, k, v))
        (ejt.flash_attention(q.requires_grad_(), k, v, causal=True) ** 2).sum().backward()
        return q.grad

    return step


WAYS = [numpy_way, jax_way, torch_way]


def test_threads_of_all_at_once():
    """Each computes what it does alone, while the number of threads changes."""
    works = [(way(), shape) for way in WAYS for shape in (SMALL, LARGE)]
    expected = [np.asarray(step(*drawn(shape))).tobytes() for step, shape in works]
    faults, ended = [], threading.Event()

    def work(i):
        step, shape = works[i]
        try:
            for _ in range(15):
                if np.asarray(step(*drawn(shape))).tobytes() != expected[i]:
                    faults.append(i)
        except Exception as error:
            faults.append(error)

    def change():
        while not ended.wait(0.01):
            libejkernel.set_num_threads(1 + libejkernel.get_num_threads() % 3)

    before = libejkernel.get_num_threads()
    threads = [threading.Thread(target=work, args=(i,)) for i in (*range(len(works)), *range(len(works)))]
    changing = threading.Thread(target=change)
    for each in (*threads, changing):
        each.start()
    for each in threads:
        each.join()
    ended.set()
    changing.join()
    libejkernel.set_num_threads(before)
    assert not faults


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_memory_that_is_freed_early(way, shape):
    """Nobody but the call has its arrays; their memory is others' at once where the call does not keep them."""
    step, right = way(), {}
    for seed in range(3):
        right[seed] = np.asarray(step(*drawn(shape, seed))).tobytes()
    for i in range(60):
        found = step(*drawn(shape, i % 3))
        rubbish = [np.full(shape, np.nan, np.float32) for _ in range(4)]
        assert np.asarray(found).tobytes() == right[i % 3]
        del found, rubbish


def test_jax_arrays_that_are_deleted_early():
    jax = pytest.importorskip("jax")
    import libejkernel.jax as ejx

    step = jax.jit(lambda q, k, v: ejx.flash_attention(q, k, v, causal=True))
    expected = np.asarray(step(*drawn(LARGE))).tobytes()
    for _ in range(30):
        arrays = [jax.numpy.array(each) for each in drawn(LARGE)]
        found = step(*arrays)  # which is under way
        for each in arrays:
            each.delete()
        rubbish = [jax.numpy.full(LARGE, np.nan) for _ in range(3)]
        assert np.asarray(found).tobytes() == expected
        del rubbish


def test_pullbacks_keep_what_they_need():
    expected = None
    for _ in range(20):
        _, pullback = ejk.vjp(ejk.flash_attention, *drawn(LARGE), causal=True)
        rubbish = [np.full(LARGE, np.nan, np.float32) for _ in range(4)]
        found = b"".join(each.tobytes() for each in pullback(np.ones(LARGE, np.float32)))
        expected = expected or found
        assert found == expected
        del rubbish


def test_children_of_a_process_that_has_used_all():
    """A child may call NumPy's and PyTorch's functions; JAX says itself that it does not survive.

    PyTorch's own operations wait for threads that a child does not have, unless it is told to do without.
    """
    torch = pytest.importorskip("torch")
    steps = [way() for way in WAYS]
    expected = [np.asarray(step(*drawn(LARGE))).tobytes() for step in steps]
    for i in (0, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX's
            child = os.fork()
        if child == 0:
            signal.alarm(60)  # what waits for ever fails
            torch.set_num_threads(1)
            os._exit(0 if np.asarray(steps[i](*drawn(LARGE))).tobytes() == expected[i] else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_workers_of_a_data_loader():
    """Forked after the parent has used its threads."""
    torch = pytest.importorskip("torch")
    step = torch_way()
    step(*drawn(LARGE))

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return step(*drawn(SMALL, i))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's
        loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2, timeout=60)
        found = torch.cat(list(loader))
    assert torch.equal(found, torch.stack([Rows()[i] for i in range(8)]))


END = """
import os, sys, threading
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, {tests!r})
import test_together as t
steps = [way() for way in ({ways})]
for step in steps: kept = step(*t.drawn(t.SMALL))
def forever(step):
    while True: step(*t.drawn(t.LARGE))
for step in steps[{running}:]: threading.Thread(target=forever, args=(step,), daemon=True).start()
found = [step(*t.drawn(t.LARGE)) for step in steps]
"""


@pytest.mark.parametrize("ways", [["numpy"], ["jax"], ["torch"], ["numpy", "jax", "torch"]], ids="+".join)
@pytest.mark.parametrize("running", [False, True])
def test_the_end_of_an_interpreter_is_clean(ways, running):
    """With results that nobody has waited for; also while a daemon's calls of NumPy are under way."""
    for each in ways:
        if each != "numpy":
            pytest.importorskip(each)
    if running and ways != ["numpy"]:
        pytest.skip("frameworks themselves do not survive that their threads run at the end")
    here = os.path.dirname(os.path.abspath(__file__))
    names = "".join(f"t.{each}_way, " for each in ways)
    code = END.format(tests=here, ways=names, running=0 if running else len(ways))
    for _ in range(3 if running else 1):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
