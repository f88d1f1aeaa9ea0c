# SPDX-License-Identifier: Apache-2.0
"""Calls on arrays: what may be given, what is refused and how, threads, processes and memory."""

import gc
import os
import signal
import subprocess
import sys
import threading

import libejkernel
import libejkernel.numpy as ejk
import ml_dtypes
import numpy as np
import pytest
from libejkernel import _dlpack
from watch import left_behind, resident


def qkv(dtype=np.float32, t=5, heads=2, size=8, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.standard_normal((1, t, heads, size)).astype(dtype) for _ in range(3)]


def plain(q, k, v, causal=False):
    """Attention as it reads, in double precision."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    z = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    if causal:
        z[..., ~np.tri(*z.shape[-2:], z.shape[-1] - z.shape[-2], dtype=bool)] = -np.inf
    p = np.exp(z - z.max(-1, keepdims=True))
    return np.einsum("bhts,bshd->bthd", p / p.sum(-1, keepdims=True), v)


class Producer:
    """An array of some other library, which knows DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldProducer(Producer):
    """The same of before DLPack 1.0."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_types(dtype):
    q, k, v = qkv(dtype)
    try:
        out = ejk.flash_attention(q, k, v, causal=True)
    except libejkernel.Unavailable:
        assert dtype is np.float64
        return
    assert out.dtype == dtype
    error = np.abs(out.astype(np.float64) - plain(q, k, v, causal=True)).max()
    assert error < {np.float32: 1e-5, np.float64: 1e-12}.get(dtype, 2e-2)


def test_results_are_the_documented_ones():
    q, k, v = qkv()
    out = ejk.flash_attention(q, k, v)
    both = ejk.flash_attention(q, k, v, return_lse=True)
    again, lse = both
    assert isinstance(out, np.ndarray) and both._fields == ("out", "lse")
    assert out.tobytes() == again.tobytes() and lse.shape == (1, 2, 5)
    gradients = ejk.flash_attention_vjp(q, k, v, out=out, lse=lse, d_out=np.ones_like(out))
    assert gradients._fields == ("d_query", "d_key", "d_value")
    only = ejk.flash_attention_vjp(q, k, v, out=out, lse=lse, d_out=np.ones_like(out), return_d_key=True)
    assert only.tobytes() == gradients.d_key.tobytes()


def test_results_that_follow_backwards():
    """What a product has of columns is said by its right side, halved where an activation is gated."""
    draw = np.random.default_rng(0)
    lhs, rhs = draw.standard_normal((3, 4), np.float32), draw.standard_normal((4, 6), np.float32)
    assert np.allclose(ejk.matmul(lhs, rhs), lhs @ rhs, atol=1e-5)
    assert ejk.matmul(lhs, rhs, activation="swiglu").shape == (3, 3)
    assert libejkernel.infer(
        "matmul", {"lhs": ((3, 4), "bfloat16"), "rhs": ((4, 6), "bfloat16")}, {"preferred_element_type": "float32"}
    ) == {"out": ((3, 6), "float32")}
    assert ejk.matmul(lhs.T.copy(), rhs[:3], platform="reference").shape == (4, 6)
    with pytest.raises(libejkernel.InvalidShape, match="rhs"):
        ejk.matmul(lhs, rhs[:3])


def test_destination_and_its_type():
    q, k, v = qkv(np.float16)
    out = np.empty_like(q)
    assert ejk.flash_attention(q, k, v, out=out) is out
    assert ejk.flash_attention(q, k, v, out=np.float16).tobytes() == out.tobytes()
    sums = ejk.flash_attention(q, k, v, normalize_output=False, return_row_max=True, return_row_sum=True)
    assert sums.out.dtype == np.float32


def test_producers_of_dlpack_are_not_copied():
    q, k, v = qkv()
    expected = ejk.flash_attention(q, k, v)
    for kind in (Producer, OldProducer):
        out = kind(np.empty_like(q))
        assert ejk.flash_attention(kind(q), kind(k), kind(v), out=out) is out
        assert out.array.tobytes() == expected.tobytes()
    view = q[:, ::-1, :, 2:6]
    for take in (_dlpack.to_numpy, _dlpack._to_numpy):
        taken = take("q", Producer(view))
        assert taken.strides == view.strides and taken.ctypes.data == view.ctypes.data
        assert taken.tobytes() == view.tobytes()


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_arrays_of_other_libraries(framework):
    """Where they are installed: their tensors on the CPU, of types that NumPy lacks too."""
    library = pytest.importorskip(framework)
    q, k, v = qkv()
    tensors = [library.asarray(x) for x in (q, k, v)]
    expected = ejk.flash_attention(q, k, v, causal=True)
    assert ejk.flash_attention(*tensors, causal=True).tobytes() == expected.tobytes()
    brief = [library.asarray(x, dtype=library.bfloat16) for x in tensors]
    found = ejk.flash_attention(*brief, causal=True)
    assert found.dtype == ml_dtypes.bfloat16
    assert np.abs(found.astype(np.float32) - expected).max() < 3e-2
    out = library.zeros(q.shape, dtype=library.float32)
    if framework == "torch":
        assert ejk.flash_attention(*tensors, causal=True, out=out) is out
        assert np.asarray(out).tobytes() == expected.tobytes()
    else:
        with pytest.raises(libejkernel.InvalidArgument, match="out is read-only"):
            ejk.flash_attention(*tensors, out=out)


def test_producers_are_let_go():
    q, k, v = qkv()
    counts = [sys.getrefcount(x) for x in (q, k, v)]
    for _ in range(10):
        ejk.flash_attention(Producer(q), Producer(k), OldProducer(v))
        _dlpack._to_numpy("q", Producer(q))
        _dlpack._to_numpy("k", OldProducer(k))
    gc.collect()
    assert [sys.getrefcount(x) for x in (q, k, v)] == counts


def test_windows_lists_and_configurations():
    q, k, v = qkv(t=9)
    both = ejk.flash_attention(q, k, v, sliding_window=(2, 2))
    assert ejk.flash_attention(q, k, v, sliding_window=2).tobytes() == both.tobytes()
    assert ejk.flash_attention(q, k, v, sliding_window=[2, 2]).tobytes() == both.tobytes()
    left = ejk.flash_attention(q, k, v, sliding_window=(2, None))
    assert left.tobytes() != both.tobytes()
    cfg = {"platform": "reference", "fwd_params": {"q_blocksize": None}}
    reference = ejk.flash_attention(q, k, v, cfg=cfg)
    assert ejk.flash_attention(q, k, v, platform="reference").tobytes() == reference.tobytes()
    packed = ejk.flash_attention(q[0], k[0], v[0], cum_seqlens_q=[0, 4, 9], cum_seqlens_k=[0, 4, 9])
    assert np.abs(packed[:4] - plain(q[:, :4], k[:, :4], v[:, :4])[0]).max() < 1e-5
    with pytest.raises(libejkernel.UnknownName, match="cfg.fwd_params.blocks is unknown, expected one of"):
        ejk.flash_attention(q, k, v, cfg={"fwd_params": {"blocks": 3}})


Q, K, V = qkv()
FAULTS = [
    (libejkernel.InvalidShape, ValueError, r"value: axis 1 \(S\) has length 3", (Q, K, V[:, :3]), {}),
    (libejkernel.InvalidDtype, TypeError, "key: float16 given, expected float32 as query", (Q, K.astype("f2"), V), {}),
    (libejkernel.InvalidDtype, TypeError, "query: complex64 given", (Q.astype("c8"), K, V), {}),
    (libejkernel.InvalidDtype, TypeError, "query: >f4 given", (Q.astype(">f4"), K, V), {}),
    (libejkernel.InvalidArgument, ValueError, "key: missing", (Q, None, V), {}),
    (libejkernel.InvalidArgument, ValueError, "query is 'q', expected an array", ("q", K, V), {}),
    (libejkernel.InvalidArgument, ValueError, "causal is 'yes', expected a truth value", (Q, K, V), {"causal": "yes"}),
    (libejkernel.InvalidArgument, ValueError, "softmax_scale is 'x'", (Q, K, V), {"softmax_scale": "x"}),
    (libejkernel.InvalidLayout, ValueError, "query: axis 3, the last, has stride", (Q[..., ::2], K[..., :4], V), {}),
    (libejkernel.UnknownName, ValueError, "platform", (Q, K, V), {"platform": "abacus"}),
    (libejkernel.Malformed, ValueError, "cfg is no JSON", (Q, K, V), {"cfg": "{"}),
    (TypeError, TypeError, "unexpected keyword", (Q, K, V), {"colour": 1}),
    (TypeError, TypeError, "missing 1 required", (Q, K), {}),
]


@pytest.mark.parametrize("kind, base, sentence, arguments, options", FAULTS, ids=range(len(FAULTS)))
def test_faults_have_the_librarys_sentences(kind, base, sentence, arguments, options):
    for _ in range(2):  # what was refused once is refused again
        with pytest.raises(kind, match=sentence) as caught:
            ejk.flash_attention(*arguments, **options)
        assert isinstance(caught.value, base)
        assert kind is TypeError or isinstance(caught.value, libejkernel.Error)


def test_a_read_only_destination_is_refused():
    out = np.empty_like(Q)
    out.flags.writeable = False
    with pytest.raises(libejkernel.InvalidArgument, match="out is read-only"):
        ejk.flash_attention(Q, K, V, out=out)
    with pytest.raises(libejkernel.InvalidLayout, match="out"):
        ejk.flash_attention(Q, K, V, out=Q)


def test_subclasses_and_odd_strides():
    expected = ejk.flash_attention(Q, K, V)
    assert ejk.flash_attention(Q.view(np.recarray), K, V).tobytes() == expected.tobytes()
    raw = np.zeros(Q.size * 4 + 1, np.uint8)[1:].view(np.float32).reshape(Q.shape)
    raw[...] = Q
    assert ejk.flash_attention(raw, K, V).tobytes() == expected.tobytes()
    pairs = np.zeros((*Q.shape, 1), [("number", "f4"), ("pad", "u1")])["number"][..., 0]
    with pytest.raises(libejkernel.InvalidLayout, match="query: strides"):
        ejk.flash_attention(pairs, K, V)
    assert ejk.flash_attention(Q[:, :0], K, V).shape == (1, 0, 2, 8)


def test_threads_at_once():
    q, k, v = qkv(t=33)
    expected = ejk.flash_attention(q, k, v, causal=True)
    wrong = []

    def work(seed):
        own = qkv(t=33, seed=seed)
        mine = ejk.flash_attention(*own, causal=True)
        for _ in range(50):
            if ejk.flash_attention(q, k, v, causal=True).tobytes() != expected.tobytes():
                wrong.append(seed)
            if ejk.flash_attention(*own, causal=True).tobytes() != mine.tobytes():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_gil_is_released():
    q, k, v = qkv(t=1500, heads=4, size=64)
    ejk.flash_attention(q[:, :2], k[:, :2], v[:, :2])

    def counted():
        """How far this thread counts while another one is in a call."""
        count, ended = 0, threading.Event()

        def work():
            ejk.flash_attention(q, k, v)
            ended.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not ended.is_set():
            count += 1
        thread.join()
        return count

    assert any(counted() > 100 for _ in range(20))  # a loaded machine may have no core for this thread


def test_numbers_of_threads():
    threads = libejkernel.get_num_threads()
    libejkernel.set_num_threads(3)
    assert libejkernel.get_num_threads() == 3
    expected = ejk.flash_attention(Q, K, V)
    libejkernel.set_num_threads(1)
    assert ejk.flash_attention(Q, K, V).tobytes() == expected.tobytes()
    with pytest.raises(libejkernel.InvalidArgument, match="threads is 0"):
        libejkernel.set_num_threads(0)
    libejkernel.set_num_threads(threads)


def test_children_of_fork():
    q, k, v = qkv(t=65, heads=4)
    expected = ejk.flash_attention(q, k, v)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            same = ejk.flash_attention(q, k, v).tobytes() == expected.tobytes()
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert ejk.flash_attention(q, k, v).tobytes() == expected.tobytes()


def test_a_fork_amid_a_call_of_another_thread():
    """The child has a context of its own, whatever locks the parent's threads held."""
    q, k, v = qkv(t=1200, heads=4, size=64)
    small = [x[:, :3] for x in (q, k, v)]
    expected = ejk.flash_attention(*small)
    ended = threading.Event()

    def work():
        while not ended.is_set():
            ejk.flash_attention(q, k, v)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # what waits for ever fails
                same = ejk.flash_attention(*small).tobytes() == expected.tobytes()
                os._exit(0 if same else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        ended.set()
        thread.join()


def test_workers_of_multiprocessing():
    code = (
        "import multiprocessing, numpy as np, libejkernel.numpy as ejk\n"
        "q = np.ones((1, 9, 2, 8), np.float32)\n"
        "def work(i): return float(ejk.flash_attention(q * i, q, q).sum())\n"
        "ejk.flash_attention(q, q, q)\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(work, range(4)) == [144.0] * 4\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_memory_is_flat():
    q, k, v = qkv(t=1)

    def work(count):
        for _ in range(count):
            ejk.flash_attention(q, k, v, causal=True)

    objects, references, size = left_behind(work, (q, k, v), 1000, 100_000)
    assert objects < 50 and references == 0 and size < 1 << 20


def test_many_shapes_do_not_pile_up():
    q, k, v = qkv(t=300, heads=1)

    def every_length():
        for length in range(1, 300):
            ejk.flash_attention(q[:, :length], k[:, :length], v[:, :length])
        return resident()

    sizes = [every_length() for _ in range(4)]
    assert sizes[-1] - sizes[1] < 6 << 20, sizes


def test_the_end_of_an_interpreter_is_clean():
    code = "import numpy as np, libejkernel.numpy as e; q = np.ones((1, 9, 2, 8), 'f4'); x = e.flash_attention(q, q, q)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
