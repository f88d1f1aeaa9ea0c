# SPDX-License-Identifier: Apache-2.0
"""Every operation under JAX: results of C, gradients of NumPy's functions, mapped axes, and what goes wrong."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import pytest  # noqa: E402

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import libejkernel  # noqa: E402
import libejkernel.jax as ejx  # noqa: E402
import libejkernel.numpy as ejk  # noqa: E402
import numpy as np  # noqa: E402
from framework_calls import (  # noqa: E402
    DIFFERENTIABLE,
    OPERATIONS,
    checkable,
    close,
    derivable,
    few,
    python_of,
    same_bits,
    wishes,
)
from jax.test_util import check_grads  # noqa: E402
from libejkernel import _foreign, _jax, _sharding, _signature  # noqa: E402
from libejkernel._description import catalogue  # noqa: E402
from test_own_operation import scale_by  # noqa: E402, F401
from watch import left_behind  # noqa: E402

P = jax.sharding.PartitionSpec
jax.config.update("jax_default_device", jax.devices("cpu")[0])  # test_gpu.py has the others


def on_arrays(wish, names=None):
    """A function of some of the arrays of a call, all of them by default; and these."""
    names = list(wish.arrays if names is None else names)
    function = getattr(ejx, wish.operation.name)

    def call(*arrays):
        found = function(**{**wish.arrays, **dict(zip(names, arrays))}, **wish.values)
        return tuple(found) if isinstance(found, tuple) else (found,)

    return call, [wish.arrays[name] for name in names]


def attention():
    """An operation with a batch, sinks and gradients, and arrays for it."""
    name = next(n for n in DIFFERENTIABLE if {"softmax_aux", "cum_seqlens_q"} <= set(catalogue()[n].args.by_name))
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal((2, 5, 4, 8), np.float32) for _ in range(3)]
    return getattr(ejx, name), arrays, jnp.asarray(draw.standard_normal((4, 1), np.float32))


def flushed(array):
    """Subnormal numbers are zeros on XLA's threads, and what C writes there."""
    if array.dtype.name not in ("float32", "float64") or not array.size:
        return array
    return np.where(np.abs(array) < np.finfo(array.dtype).tiny, array.dtype.type(0), array)


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_have_the_bits_of_c(name):
    for wish in wishes(name, few(4)):
        call, arrays = on_arrays(wish)
        found = jax.jit(call)(*arrays)
        expected = wish.expected()
        assert len(found) == len(expected)
        for (each, right), array in zip(expected.items(), found):
            if not wish.is_open(each) or array.dtype == right.dtype:
                assert same_bits(flushed(np.asarray(array)), flushed(right)), f"{wish.call.text}: {each}"


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_numpy(name):
    for wish, cotangents, expected in derivable(name, few(3), seed=1):
        call, arrays = on_arrays(wish, wish.floats())
        results, back = jax.vjp(lambda *a: [r for r, c in zip(call(*a), cotangents) if c is not None], *arrays)
        found = back([jnp.asarray(c, r.dtype) for c, r in zip([c for c in cotangents if c is not None], results)])
        for each, array in zip(wish.floats(), found):
            if each in expected:
                close(np.asarray(array), expected[each], f"{wish.call.text}: {each}")


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("share", ["all", "first", "twice"])
def test_mapped_axes(name, share):
    """Elements by vmap are those by a loop: one greater batch, or one after the other in C."""
    for wish in wishes(name, few(2), seed=2):
        call, arrays = on_arrays(wish)
        if not arrays:
            continue
        kinds = [a.dtype.kind not in "iub" for a in arrays]
        halves = [(a * 0.5).astype(a.dtype) if k else a for a, k in zip(arrays, kinds)]
        elements = [np.stack([a, half, a]) for a, half in zip(arrays, halves)]
        mapped = [share != "first" or i == 0 for i in range(len(arrays))]
        axes = tuple(0 if m else None for m in mapped)
        batch = [e if m else a for e, a, m in zip(elements, arrays, mapped)]
        if share == "twice":
            twice = [np.stack([b, b[::-1]]) for b in batch]  # by NumPy: XLA would compile that for each shape
            found = [np.asarray(r)[1][::-1] for r in jax.vmap(jax.vmap(call))(*twice)]
        else:
            found = [np.asarray(r) for r in jax.vmap(call, axes)(*batch)]
        for i in range(3):
            one = call(*(b[i] if m else b for b, m in zip(batch, mapped)))
            for a, b in zip(found, one):
                close(a[i], np.asarray(b), f"{wish.call.text}: {share}, element {i}")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_right(name):
    """By differences, in double precision where the operation has it."""

    def runs(wish):
        call, arrays = on_arrays(wish)
        try:
            call(*arrays)
        except libejkernel.Error:
            return False
        return True

    with jax.enable_x64(True):
        for wish, step, bound in checkable(name, few(2), 3, runs):
            call, arrays = on_arrays(wish, [n for n in wish.floats() if n in catalogue().gradient(name).gradients])
            check_grads(call, arrays, 1, modes=["rev"], atol=bound, rtol=bound, eps=step)


def test_gradients_of_one_argument_and_of_all():
    """JAX 0.8 refused the second where the first asked for fewer."""
    function, arrays, _ = attention()
    one = jax.grad(lambda q, k, v: function(q, k, v, causal=True).sum())(*arrays)
    every = jax.grad(lambda q, k, v: function(q, k, v, causal=True).sum(), (0, 1, 2))(*arrays)
    assert same_bits(np.asarray(one), np.asarray(every[0]))


def test_sparse_attention_has_gradients_in_jitted_functions():
    """With blocks that are chosen and no scale, which elsewhere could not be traced."""
    draw = np.random.default_rng(3)
    query, key, value = (jnp.asarray(draw.standard_normal((1, 64, h, 16), np.float32)) for h in (4, 2, 2))
    gate = jnp.asarray(draw.random((1, 64, 4), np.float32))

    def loss(*arrays):
        return ejx.native_sparse_attention(*arrays, gate, None, 2, block_size=16).sum()

    jitted = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(query, key, value, gate)
    plain = jax.grad(loss, (0, 1, 2, 3))(query, key, value, gate)
    for a, b in zip(jitted, plain):
        close(np.asarray(a), np.asarray(b), "jitted gradients")
        assert float(jnp.abs(a).max()) > 0


def test_mapped_axes_become_the_batch():
    """Where all have a batch, a mapped axis is one call of a greater one; the gradient of what is shared is not."""
    function, (q, k, v), sinks = attention()
    text = str(jax.make_jaxpr(jax.vmap(lambda q: function(q, k, v)))(jnp.stack([q] * 3)))
    assert "6,5,4,8" in text and ";0;" in text
    shared = jax.vmap(jax.grad(lambda s, q: function(q, k, v, softmax_aux=s).sum()), (None, 0))
    text = str(jax.make_jaxpr(shared)(sinks, jnp.stack([q] * 3)))
    assert ";3;" in text


def test_loops_and_recomputation():
    function, (q, k, v), _ = attention()

    def steps(q):
        return jax.lax.scan(lambda c, _: (function(c, k, v, causal=True), None), q, None, length=3)[0].sum()

    def unrolled(q):
        for _ in range(3):
            q = function(q, k, v, causal=True)
        return q.sum()

    expected = jax.grad(unrolled)(q)
    for each in (steps, jax.remat(steps), jax.jit(steps)):
        close(np.asarray(jax.grad(each)(q)), np.asarray(expected), "scan")


def test_sharded_arrays():
    function, (q, k, v), sinks = attention()
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("x",))
    split = jax.shard_map(
        lambda q, k, v, s: function(q, k, v, softmax_aux=s, causal=True),
        mesh=mesh,
        in_specs=(P("x"), P("x"), P("x"), P()),
        out_specs=P("x"),
    )
    right = function(q, k, v, softmax_aux=sinks, causal=True)
    assert same_bits(np.asarray(jax.jit(split)(q, k, v, sinks)), np.asarray(right))
    found = jax.grad(lambda s: split(q, k, v, s).sum())(sinks)
    expected = jax.grad(lambda s: function(q, k, v, softmax_aux=s, causal=True).sum())(sinks)
    close(np.asarray(found), np.asarray(expected), "sinks of two shards")


@pytest.mark.parametrize("name", OPERATIONS)
def test_arrays_of_several_devices(name):
    """Without shard_map: calls are shared out over batch and heads, and compute what they do on one device."""
    mesh, tried = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("x",)), 0
    for wish in wishes(name, 12, seed=9, finite=True):
        given = {**dict.fromkeys(_foreign.Function(name).names), **wish.arrays, **wish.values}
        tensors, results, rest = _foreign.split(wish.operation, given)
        operands = tuple(f.name for f in wish.operation.inputs if f.name in tensors)
        shapes = [tensors[n].shape for n in operands]
        rule = _sharding.Rule(
            _foreign.call_of(name, operands, results, rest), shapes, [tensors[n].dtype for n in operands]
        )
        for axes, length in rule.factors.values():
            if length % 2 or tried == few(2):
                continue
            tried += 1
            call, arrays = on_arrays(wish, operands)
            parts = [P(*("x" if axis == i else None for i in range(len(shape)))) for axis, shape in zip(axes, shapes)]
            apart = [jax.device_put(a, jax.sharding.NamedSharding(mesh, p)) for a, p in zip(arrays, parts)]
            step = jax.jit(call)
            assert "all-gather" not in step.lower(*apart).compile().as_text()
            for each, right in zip(step(*apart), call(*arrays)):
                close(np.asarray(each), np.asarray(right), wish.call.text)


def test_training_on_several_devices():
    """Gradients of what all devices share are added up; nothing is gathered."""
    function, (q, k, v), sinks = attention()
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("x",))

    def loss(q, k, v, s):
        return (function(q, k, v, softmax_aux=s, causal=True) ** 2).sum()

    right = jax.grad(loss, (0, 1, 2, 3))(q, k, v, sinks)
    step = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    split = jax.sharding.NamedSharding(mesh, P("x"))
    apart = [*(jax.device_put(a, split) for a in (q, k, v)), sinks]
    assert "all-gather" not in step.lower(*apart).compile().as_text()
    for each, expected in zip(step(*apart), right):
        close(np.asarray(each), np.asarray(expected), "gradients of two devices")


def test_states_are_donated(scale_by):  # noqa: F811
    """What NumPy's function updates in place is a result; memory that is donated is used again."""

    @jax.jit
    def plain(x, total):
        return ejx.scale_by(x, 2.0, total)

    x, total = jnp.arange(4.0), jnp.ones(4)
    out, after = plain(x, total)
    assert out.tolist() == [0, 2, 4, 6] and after.tolist() == [1, 3, 5, 7] and total.tolist() == [1] * 4
    total = jnp.ones(4)  # which nobody has looked at: JAX keeps what NumPy sees
    where = total.unsafe_buffer_pointer()
    after = jax.jit(lambda x, total: plain(x, total).total, donate_argnums=1)(x, total)
    assert after.unsafe_buffer_pointer() == where and after.tolist() == [1, 3, 5, 7]
    many = jax.vmap(plain)(jnp.stack([x, x + 1]), jnp.ones((2, 4)))
    assert many[1].tolist() == [[1, 3, 5, 7], [3, 5, 7, 9]]
    shared = jax.vmap(plain, (0, None))(jnp.stack([x, x + 1]), jnp.ones(4))
    assert shared[1].tolist() == [[1, 3, 5, 7], [3, 5, 7, 9]]


def test_what_cannot_be_had_is_said():
    function, (q, k, v), _ = attention()
    with pytest.raises(libejkernel.InvalidShape, match="value: axis 2"):
        jax.jit(function)(q, k[:, :, :2], v)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: function(q, k, v), (q,), (q,))
    with pytest.raises(libejkernel.Unavailable, match="first derivatives only"):
        jax.grad(lambda q: jax.grad(lambda q: function(q, k, v).sum())(q).sum())(q)
    with pytest.raises(libejkernel.Unavailable, match="no gradients through row_max"):
        jax.grad(lambda q: function(q, k, v, normalize_output=False, return_row_max=True).row_max.sum())(q)
    with pytest.raises(libejkernel.InvalidArgument, match="softmax_scale is"):
        jax.jit(lambda s: function(q, k, v, softmax_scale=s))(0.5)
    lengths = jnp.asarray([0, 9, 5], jnp.int32)
    flat = [a[0] for a in (q, k, v)]
    with pytest.raises(Exception, match="cum_seqlens_q"):  # known only when it runs
        jax.block_until_ready(jax.jit(lambda n: function(*flat, cum_seqlens_q=n, cum_seqlens_k=n))(lengths))


def test_programs_for_gpus_have_their_workspace(monkeypatch):
    """As one more result, with which XLA may record a call; programs for CPUs do not."""
    monkeypatch.setattr(_jax, "_recorded_call", lambda call, views: (call, 1280))
    function, (q, k, v), _ = attention()
    step = jax.jit(jax.grad(lambda q: function(q, k, v, softmax_scale=0.375).sum()))
    text = step.trace(q).lower(lowering_platforms=("cuda",)).as_text()
    assert "@ejkernel_recorded_call" in text and "tensor<1280xui8>" in text and "@ejkernel_call" not in text
    text = step.trace(q).lower(lowering_platforms=("cpu",)).as_text()
    assert "@ejkernel_call" in text and "recorded" not in text and "1280" not in text
    expected = jax.grad(lambda q: function(q * 0.375 * np.sqrt(q.shape[-1]), k, v).sum())(q)
    close(np.asarray(step(q)), np.asarray(expected), "gradients")


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_call_can_say_its_choice(name):
    """With the parameters that its plan found, which recorded calls keep, it has the same plan and the same bits."""
    for wish in wishes(name, 2, seed=9):
        given = {a.name: None for a in _signature.argument_list(wish.operation, False)} | wish.arrays | wish.values
        tensors, results, arguments = _foreign.split(wish.operation, given)
        operands = tuple(f.name for f in wish.operation.inputs if f.name in tensors)
        plan = ejk.plan(name, **wish.arrays, **wish.values).describe()
        call = _foreign.call_of(name, operands, results, arguments).with_choice(plan)
        assert call.with_choice(plan) is call and _foreign.call_of_text(call.text) is call
        wish.values["cfg"] = call.values.get("cfg")
        again = ejk.plan(name, **wish.arrays, **wish.values).describe()
        assert again["parameters"] == plan["parameters"] and again["workspace_bytes"] == plan["workspace_bytes"]
        assert set(again["chosen_by"].values()) <= {"override"}, wish.call.text


def test_masks_and_other_threads():
    function, (q, k, v), _ = attention()
    info = libejkernel.MaskInfo.from_mask(libejkernel.CausalMask((5, 5)), 2)
    threads = libejkernel.get_num_threads()
    step = jax.jit(lambda q: function(q, k, v, causal=True))
    before = np.asarray(step(q))
    libejkernel.set_num_threads(1)
    assert same_bits(np.asarray(step(q)), before)
    libejkernel.set_num_threads(threads)
    close(np.asarray(function(q, k, v, mask_info=info)), before, "mask_info")


def test_memory_is_flat():
    """Jitted calls, their gradients and calls that fail leave nothing behind."""
    function, arrays, sinks = attention()
    q, k, v = map(jnp.asarray, arrays)
    step = jax.jit(lambda q, s: function(q, k, v, softmax_aux=s, causal=True))
    gradient = jax.jit(jax.grad(lambda q: function(q, k, v).sum()))

    def work(count):
        for i in range(count):
            found = step(q, sinks)
            if i % 10 == 0:
                found = gradient(q)
            if i % 1000 == 0:
                with pytest.raises(libejkernel.InvalidShape):
                    function(q, k[:, :, :3], v)
        found.block_until_ready()

    objects, references, size = left_behind(work, (q, k, v, sinks), 4000, 100_000)
    assert objects < 100 and references == 0
    assert size < 4 << 20  # an array of q's size would be 120 MB by now


@pytest.mark.parametrize("name", OPERATIONS)
def test_signature_and_docstring(name):
    function = getattr(ejx, name)
    assert function.__name__ == name and function.__module__ == "libejkernel.jax"
    expected = _signature.argument_list(catalogue()[name], False)
    assert list(function.__signature__.parameters) == [a.name for a in expected]
    assert name in dir(ejx) and "Parameters" in function.__doc__


def test_the_examples_of_the_page_run():
    exec("\n".join(python_of("docs/python/jax.md")), {})
