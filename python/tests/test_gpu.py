# SPDX-License-Identifier: Apache-2.0
"""Every operation on a GPU through each binding, beside the NumPy functions on the CPU.

Skipped, and said so, without a GPU; and for operations and calls for which the library has no kernels there, which has
to be its own answer in every binding alike.
"""

import ctypes
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import libejkernel  # noqa: E402
import libejkernel.numpy as ejk  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from framework_calls import DIFFERENTIABLE, OPERATIONS, close, derivable, same_bits, wishes  # noqa: E402
from libejkernel import _library  # noqa: E402


def _why_not():
    """Why there is no GPU; None if there is one."""
    count = ctypes.c_int32()
    _library.declare({"ejk_device_count": ((ctypes.c_void_p,), ctypes.c_int32)})
    if _library.lib.ejk_device_count(ctypes.byref(count)) == 0:
        return None
    return _library.last_sentence()


REASON = _why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no GPU: {REASON}")
CALLS = int(os.environ.get("EJK_TEST_CASES", "3"))


# ---- Calls through each binding: results by name, updated states among them, as arrays of NumPy ----------------------


def by_numpy(wish):
    """By DLPack, from tensors of PyTorch to such."""
    pytest.importorskip("torch")
    from test_torch import array, tensor

    given = {n: tensor(a).cuda() for n, a in wish.arrays.items()}
    made = {n: tensor(wish.results[n]).cuda() for n in wish.outputs}
    for each in made.values():
        each.zero_()
    values = {n: v for n, v in wish.values.items() if not n.startswith("return_")}
    getattr(ejk, wish.operation.name)(**given, **values, **made)
    found = made | {f.name: given[f.name] for f in wish.operation.updated if f.name in given}
    return {n: array(t) for n, t in found.items()}


def _jax_gpu():
    jax = pytest.importorskip("jax")
    try:
        return jax, jax.devices("gpu")[0]
    except RuntimeError as error:
        pytest.skip(f"no GPU for JAX: {error}")


def by_jax(wish):
    jax, gpu = _jax_gpu()
    from test_jax import on_arrays

    call, arrays = on_arrays(wish)
    found = jax.jit(call)(*(jax.device_put(a, gpu) for a in arrays))
    assert not arrays or all(each.devices() == {gpu} for each in found)
    return dict(zip(wish.results, map(np.asarray, found)))


def by_torch(wish, change=lambda function: function):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU for PyTorch")
    from test_torch import array, on_tensors

    call, tensors = on_tensors(wish)
    tensors = [t.cuda() for t in tensors]
    found = change(call)(*tensors)
    by_name = dict(zip(wish.outputs, found))
    states = {f.name for f in wish.operation.updated}
    by_name |= {n: t for n, t in zip(wish.arrays, tensors) if n in states}
    assert all(t.is_cuda for t in by_name.values())
    return {n: array(t) for n, t in by_name.items()}


def by_torch_compiled(wish):
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    return by_torch(wish, lambda call: torch.compile(call, fullgraph=True, backend="aot_eager"))


def is_unavailable(error):
    """Whether it says, in the words of the library, that there is no kernel for a call."""
    return isinstance(error, libejkernel.Unavailable) or "UNIMPLEMENTED" in str(error) or "UNAVAILABLE:" in str(error)


def tried(function, *arguments):
    """What it answers; None where the library has no kernel."""
    try:
        return function(*arguments)
    except Exception as error:
        if not is_unavailable(error):
            raise
        return None


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("way", [by_numpy, by_jax, by_torch, by_torch_compiled])
def test_results(name, way):
    ran = 0
    for wish in wishes(name, CALLS, seed=6, finite=True):
        wish.results = wish.expected()
        found = tried(way, wish)
        if found is None:
            continue
        ran += 1
        assert list(found) == list(wish.results)
        for each, right in wish.results.items():
            if found[each].dtype == right.dtype:
                close(found[each], right, f"{wish.call.text}: {each}")
    if not ran:
        pytest.skip(f"no kernel of {name} for GPUs takes these calls")


def gradients_by_jax(wish, cotangents):
    jax, gpu = _jax_gpu()
    from test_jax import on_arrays

    call, arrays = on_arrays(wish, wish.floats())
    results, back = jax.vjp(
        lambda *a: [r for r, c in zip(call(*a), cotangents) if c is not None], *(jax.device_put(a, gpu) for a in arrays)
    )
    given = [jax.device_put(c, gpu).astype(r.dtype) for c, r in zip([c for c in cotangents if c is not None], results)]
    return dict(zip(wish.floats(), map(np.asarray, back(given))))


def gradients_by_torch(wish, cotangents):
    torch = pytest.importorskip("torch")
    from test_torch import array, is_float, on_tensors, tensor

    call, tensors = on_tensors(wish)
    tensors = [t.cuda().requires_grad_(is_float(t)) for t in tensors]
    pairs = [(r, c) for r, c in zip(call(*tensors), cotangents) if c is not None]
    torch.autograd.backward([r for r, _ in pairs], [tensor(c).to("cuda", r.dtype) for r, c in pairs])
    return {n: array(t.grad) for n, t in zip(wish.arrays, tensors) if t.grad is not None}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("way", [gradients_by_jax, gradients_by_torch])
def test_gradients(name, way):
    ran = 0
    for wish, cotangents, expected in derivable(name, CALLS, seed=7):
        found = tried(way, wish, cotangents)
        if found is None:
            continue
        ran += 1
        for each in wish.floats():
            if each in expected:
                close(found[each], expected[each], f"{wish.call.text}: {each}")
    if not ran:
        pytest.skip(f"no kernels of {name} and its gradient for GPUs take these calls")


# ---- What a framework does with them ---------------------------------------------------------------------------------


def _attention(seed=0, dtype="float16"):
    """An operation with a batch, sinks and gradients, and arrays for it."""
    from libejkernel._description import catalogue

    wanted = {"softmax_aux", "cum_seqlens_q"}
    name = next(n for n in DIFFERENTIABLE if wanted <= set(catalogue()[n].args.by_name))
    draw = np.random.default_rng(seed)
    return name, [draw.standard_normal((2, 64, 4, 64)).astype(dtype) for _ in range(3)]


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy")
    name, arrays = _attention()
    q, k, v = map(cupy.asarray, arrays)
    out = cupy.empty_like(q)
    assert getattr(ejk, name)(q, k, v, causal=True, out=out) is out
    close(cupy.asnumpy(out), getattr(ejk, name)(*arrays, causal=True), "cupy")


def test_torch_streams_and_graphs():
    """Calls follow PyTorch's stream, and are captured, also where their plans do not exist yet."""
    torch = pytest.importorskip("torch")
    name, arrays = _attention()
    import libejkernel.torch as ejt

    function = getattr(ejt, name)
    q, k, v = (torch.from_numpy(a).cuda() for a in arrays)
    right = function(q, k, v, causal=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        found = function(q * 2 * 0.5, k, v, causal=True)
    side.synchronize()
    assert torch.equal(found, right)
    for window in (None, (7, 0)):  # known, and new to the library when it is captured
        expected = getattr(ejk, name)(*arrays, causal=True, sliding_window=window)
        x, graph = q.clone(), torch.cuda.CUDAGraph()
        x.zero_()
        with torch.cuda.graph(graph):
            out = function(x, k, v, causal=True, sliding_window=window)
        x.copy_(q)
        for _ in range(3):
            out.zero_()
            graph.replay()
        torch.cuda.synchronize()
        close(out.cpu().numpy(), expected, "graph")


def test_torch_training_and_autocast():
    torch = pytest.importorskip("torch")
    name, arrays = _attention(dtype="float32")
    import libejkernel.torch as ejt

    function = getattr(ejt, name)
    q, k, v = (torch.from_numpy(a).cuda() for a in arrays)
    with torch.autocast("cuda", torch.bfloat16):
        leaf = q.clone().requires_grad_()
        out = function(leaf, k, v, causal=True)
        out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16 and leaf.grad.dtype == torch.float32
    mixed = torch.nn.Linear(64, 64, bias=False, device="cuda", dtype=torch.bfloat16)
    goal, losses = function(q.bfloat16(), k.bfloat16(), v.bfloat16().flip(-1), causal=True), []
    step = torch.optim.Adam(mixed.parameters(), 0.02)
    for _ in range(30):
        step.zero_grad()
        loss = (function(q.bfloat16(), k.bfloat16(), mixed(v.bfloat16()), causal=True) - goal).float().square().mean()
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses


def test_torch_views_and_lists():
    torch = pytest.importorskip("torch")
    name, arrays = _attention()
    import libejkernel.torch as ejt

    function = getattr(ejt, name)
    q, k, v = (torch.from_numpy(a).cuda() for a in arrays)
    apart = q.transpose(2, 3).contiguous().transpose(2, 3)  # its last axis is not contiguous
    assert torch.equal(function(apart, k, v), function(q, k, v))
    packed = function(*(t[0] for t in (q, k, v)), cum_seqlens_q=[0, 20, 64], cum_seqlens_k=[0, 20, 64])
    torch.testing.assert_close(packed[:20], function(q[:1, :20], k[:1, :20], v[:1, :20])[0], atol=2e-3, rtol=2e-3)
    with pytest.raises(libejkernel.InvalidArgument, match="one place"):
        function(q, k.cpu(), v)


def test_jax_transformations():
    jax, gpu = _jax_gpu()
    import libejkernel.jax as ejx

    name, arrays = _attention()
    function = getattr(ejx, name)
    q, k, v = (jax.device_put(a, gpu) for a in arrays)
    expected = getattr(ejk, name)(*arrays, causal=True)

    def call(q):
        return function(q, k, v, causal=True)

    many = jax.jit(jax.vmap(call))(jax.numpy.stack([q, q, q]))
    close(np.asarray(many[2]), expected, "vmap")
    steps = jax.jit(lambda q: jax.lax.scan(lambda c, _: (call(c), None), q, None, length=3)[0])
    close(np.asarray(steps(q)), np.asarray(call(call(call(q)))), "scan")


def test_jax_command_buffers():
    """XLA may record calls, whose programs say the choice they have workspace for; what it recorded runs again."""
    jax, gpu = _jax_gpu()
    import libejkernel.jax as ejx

    name, arrays = _attention()
    function = getattr(ejx, name)
    q, k, v = (jax.device_put(a, gpu) for a in arrays)
    query = q[:, :1]  # one row over keys in parts, which takes workspace

    def calls(query, q):
        for _ in range(4):
            query, q = function(query, k, v), function(q, k, v, causal=True)
        return query, q

    step = jax.jit(calls)
    text = step.lower(query, q).as_text()
    assert "@ejkernel_recorded_call" in text and "@ejkernel_call" not in text and "fwd_params" in text
    for factor in (1, 0.5, 2, 1):
        for found, right in zip(step(query * factor, q * factor), calls(query * factor, q * factor)):
            assert same_bits(np.asarray(found), np.asarray(right))


def test_jax_donated_states():
    """What is updated is a result; memory that is donated is used again, and without donation the state is copied."""
    jax, gpu = _jax_gpu()
    import libejkernel.jax as ejx

    wish = next(w for n in OPERATIONS for w in wishes(n, 1, seed=8, finite=True) if is_state_call(w))
    expected = wish.expected()
    state = next(f.name for f in wish.operation.updated if f.name in wish.arrays)
    function = getattr(ejx, wish.operation.name)
    rest = {n: jax.device_put(a, gpu) for n, a in wish.arrays.items() if n != state}

    def call(state_value, rest):
        found = function(**{state: state_value}, **rest, **wish.values)
        return getattr(found, state, found)

    given = jax.device_put(wish.arrays[state], gpu)
    close(np.asarray(jax.jit(call)(given, rest)), expected[state], "copied")
    assert same_bits(np.asarray(given), wish.arrays[state])
    where = given.unsafe_buffer_pointer()
    after = jax.jit(call, donate_argnums=0)(given, rest)
    assert after.unsafe_buffer_pointer() == where
    close(np.asarray(after), expected[state], "donated")


def is_state_call(wish):
    """Whether a call updates one state, and runs on a GPU."""
    states = [f.name for f in wish.operation.updated if f.name in wish.arrays]
    if len(states) != 1 or not wish.arrays[states[0]].size:
        return False
    wish.results = wish.expected()
    return tried(by_torch, wish) is not None
