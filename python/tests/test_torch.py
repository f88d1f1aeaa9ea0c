# SPDX-License-Identifier: Apache-2.0
"""Every operation under PyTorch: results of C, gradients of NumPy's functions, opcheck, and what goes wrong."""

import os
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

import libejkernel  # noqa: E402
import libejkernel.torch as ejt  # noqa: E402
import numpy as np  # noqa: E402
from framework_calls import (  # noqa: E402
    DIFFERENTIABLE,
    OPERATIONS,
    calm,
    checkable,
    close,
    derivable,
    few,
    python_of,
    same_bits,
    wishes,
)
from libejkernel import _foreign, _signature, _torch, _torch_kernels  # noqa: E402
from libejkernel._description import catalogue  # noqa: E402
from test_own_operation import scale_by  # noqa: E402, F401
from watch import left_behind  # noqa: E402


def _as_bits(array):
    """An array, and the type of torch's that its bits are, where NumPy has none of its own."""
    dtype = getattr(torch, array.dtype.name)
    return (array, None) if array.dtype.isbuiltin == 1 else (array.view(f"i{array.dtype.itemsize}"), dtype)


def tensor(array):
    """A tensor of an array's bits."""
    bits, dtype = _as_bits(np.ascontiguousarray(array).reshape(array.shape))
    found = torch.empty(bits.shape, dtype=getattr(torch, bits.dtype.name))
    found.numpy()[...] = bits
    return found if dtype is None else found.view(dtype)


def array(tensor):
    found = tensor.detach().cpu().contiguous()
    name = str(found.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        bits = getattr(torch, f"int{8 * found.element_size()}")
        return found.view(bits).numpy().view(getattr(ml_dtypes, name))
    return found.numpy()


def is_float(tensor):
    """Whether it is of numbers to calculate with: not of codes and scales in 8 bits."""
    return tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def on_tensors(wish):
    """A function of the tensors of a call, and these."""
    names = list(wish.arrays)
    function = getattr(ejt, wish.operation.name)

    def call(*tensors):
        found = function(**dict(zip(names, tensors)), **wish.values)
        return tuple(found) if isinstance(found, tuple) else (found,)

    return call, [tensor(a) for a in wish.arrays.values()]


def operator_call(wish):
    """The operator behind a call, and its arguments."""
    names = [a.name for a in _foreign.Function(wish.operation.name).arguments]
    given = {**dict.fromkeys(names), **wish.arrays, **wish.values}
    tensors, results, rest = _foreign.split(wish.operation, given, states=False)
    fields = _torch._fields(wish.operation)
    call = _foreign.call_of(wish.operation.name, tuple(f.name for f in fields if f.name in tensors), results, rest)
    operands = [tensor(tensors[f.name]) if f.name in tensors else None for f in fields]
    return _torch._operator_of(call), (*operands, call.text)


def attention():
    """An operation with a batch, sinks and gradients, and tensors for it."""
    name = next(n for n in DIFFERENTIABLE if {"softmax_aux", "cum_seqlens_q"} <= set(catalogue()[n].args.by_name))
    torch.manual_seed(0)
    return getattr(ejt, name), [torch.randn(2, 5, 4, 8) for _ in range(3)], torch.randn(4, 1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_have_the_bits_of_c(name):
    for wish in wishes(name, few(8)):
        call, tensors = on_tensors(wish)
        found = call(*tensors)
        found += tuple(t for f, t in zip(wish.arrays, tensors) if f in {f.name for f in wish.operation.updated})
        expected = wish.expected()
        for (each, right), result in zip(expected.items(), found[-len(expected) :]):
            if not wish.is_open(each) or array(result).dtype == right.dtype:
                assert same_bits(array(result), right), f"{wish.call.text}: {each}"


@pytest.mark.parametrize("enabled", [True, False])
def test_arrays_of_others(enabled):
    """They are taken by the first call of a kind and by later ones, alone and beside tensors."""
    function, (q, k, v), _ = attention()
    with torch.set_grad_enabled(enabled):
        for given in ((k.numpy(), v.numpy()), (k, v), (k.numpy(), v.numpy()), (k, v.numpy())):
            assert torch.equal(function(q, *given), function(q, k, v))
    with pytest.raises(libejkernel.InvalidShape, match="value: axis"):
        function(q, k, v[:, :, :3])


@pytest.mark.parametrize("name", OPERATIONS)
def test_kernels_in_python(name):
    """Those of PyTorch 2.9 do what the operator does, in any version."""
    for wish in wishes(name, few(2)):
        operator, arguments = operator_call(wish)
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]
        updates = operator.name().partition(".")[0].endswith("_")
        kernel = _torch_kernels.returning_values if updates else _torch_kernels.returning_list
        pairs = [*zip(_torch._as_list(kernel(*copies)), _torch._as_list(operator(*arguments)), strict=True)]
        if not updates:
            found = _torch_kernels.of_list(_torch._given(copies), copies[-1])
            pairs += zip(found, _torch._listed(name)(_torch._given(arguments), arguments[-1]), strict=True)
        pairs += [pair for pair in zip(copies, arguments) if isinstance(pair[0], torch.Tensor) and updates]
        assert all(same_bits(array(found), array(right)) for found, right in pairs), wish.call.text


def test_failures_of_kernels_in_python():
    function, (q, k, v), _ = attention()
    text = f"{function.__name__};query,key,value;out;0;{{}}"
    for _ in range(2):
        with pytest.raises(RuntimeError, match="INVALID_SHAPE: value: axis"):
            _torch_kernels.returning_list(q, k[:, :, :3], v, text)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_numpy(name):
    for wish, cotangents, expected in derivable(name, few(4), seed=1):
        call, tensors = on_tensors(wish)
        wanted = [t.requires_grad_() for t in tensors if is_float(t)]
        pairs = [(r, c) for r, c in zip(call(*tensors), cotangents) if c is not None]
        given = [tensor(c).to(r.dtype) for r, c in pairs]
        torch.autograd.backward([r for r, _ in pairs], given)
        for each, t in zip(wish.floats(), wanted):
            if each in expected:
                close(array(t.grad), expected[each], f"{wish.call.text}: {each}")


def is_of_8_bits(wish):
    return any(a.dtype.name.startswith("float8") for a in wish.arrays.values())


def is_comparable(wish, with_gradients):
    """opcheck multiplies what it compares, and takes no NaN for equal."""
    if is_of_8_bits(wish):
        return False
    results = wish.pullback()[1] if with_gradients else wish.expected()
    return not any(np.isnan(np.asarray(r, np.float64)).any() for r in results.values() if r is not None)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_operator_is_what_pytorch_expects(name):
    """opcheck: schema, fake kernel, registration of gradients, tracing; with and without gradients."""
    ways = [(False, wishes(name, 6, seed=2, finite=True))]
    if name in DIFFERENTIABLE:
        ways.append((True, (wish for wish, _, _ in derivable(name, 6, seed=2))))
    for with_gradients, calls in ways:
        others = 0
        for wish in calls:
            wish.arrays = {n: calm(a) for n, a in wish.arrays.items()}
            if is_comparable(wish, with_gradients):
                break
            others += not is_of_8_bits(wish)
        else:
            assert others == 0, f"no call of {name} that opcheck can compare"
            continue
        operator, arguments = operator_call(wish)
        if operator._overloadname == "default":
            listed, utils = _torch._listed(name), ("test_schema", "test_faketensor")
            torch.library.opcheck(listed, (_torch._given(arguments), arguments[-1]), test_utils=utils)
        for t in arguments[:-1]:
            if with_gradients and t is not None:
                t.requires_grad_(is_float(t))
        torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_right(name):
    """By differences, in double precision where the operation has it."""

    def runs(wish):
        call, tensors = on_tensors(wish)
        try:
            call(*tensors)
        except libejkernel.Error:
            return False
        return True

    gradients = catalogue().gradient(name).gradients
    for wish, step, bound in checkable(name, few(2), 3, runs):
        call, tensors = on_tensors(wish)
        for t, each in zip(tensors, wish.arrays):
            t.requires_grad_(each in gradients and is_float(t))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is not in double precision
            assert torch.autograd.gradcheck(call, tensors, eps=step, atol=bound / 10, rtol=bound, fast_mode=True)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("share", [False, True])
def test_mapped_axes(name, share):
    for wish in wishes(name, few(2), seed=4):
        call, tensors = on_tensors(wish)
        if wish.updates:
            with pytest.raises(libejkernel.Unavailable, match="torch.vmap cannot map"):
                torch.vmap(call)(*(t[None] for t in tensors))
            continue
        elements = [torch.stack([t, t * 0.5 if is_float(t) else t, t]) for t in tensors]
        mapped = [i == 0 or not share for i in range(len(tensors))]
        batch = [e if m else t for e, t, m in zip(elements, tensors, mapped)]
        found = torch.vmap(call, tuple(0 if m else None for m in mapped))(*batch)
        for i in range(3):
            one = call(*(b[i] if m else b for b, m in zip(batch, mapped)))
            for a, b in zip(found, one):
                close(array(a[i]), array(b), f"{wish.call.text}: element {i}")


@pytest.mark.parametrize("name", OPERATIONS)
def test_compiled_calls(name):
    """torch.compile without a break: the bits of eager calls, and their gradients."""
    calls = [(wish, None) for wish in wishes(name, 1, seed=5)]
    if name in DIFFERENTIABLE:
        calls += [(wish, cotangents) for wish, cotangents, _ in derivable(name, 1, seed=5)]
    for wish, cotangents in calls:
        torch._dynamo.reset()
        call, found = on_tensors(wish)[0], []
        for each in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
            tensors = on_tensors(wish)[1]
            leaves = [t.requires_grad_() for t in tensors if cotangents and is_float(t)]
            results = each(*tensors)
            pairs = [(r, tensor(c).to(r.dtype)) for r, c in zip(results, cotangents or []) if c is not None]
            gradients = []
            if pairs:
                gradients = torch.autograd.grad([r for r, _ in pairs], leaves, [c for _, c in pairs], allow_unused=True)
            found.append([array(t) for t in (*results, *tensors, *gradients) if t is not None])
        assert len(found[0]) == len(found[1]) and all(map(same_bits, *found)), wish.call.text


def test_compiled_and_exported():
    function, (q, k, v), sinks = attention()

    def model(q, s):
        out, lse = function(q, k, v, softmax_aux=s, causal=True, sliding_window=(3, 0), return_lse=True)
        return (out * 2).sum() + lse.sum()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    pairs = []
    for each in (model, compiled):
        leaves = [q.clone().requires_grad_(), sinks.clone().requires_grad_()]
        result = each(*leaves)
        pairs.append((result.detach(), *torch.autograd.grad(result, leaves)))
    for a, b in zip(*pairs):
        torch.testing.assert_close(a, b)

    class Module(torch.nn.Module):
        def forward(self, q):
            return function(q, k, v, causal=True)

    exported = torch.export.export(Module(), (q,))
    leaf, right = q.clone().requires_grad_(), function(q, k, v, causal=True)
    found = exported.module()(leaf)
    assert torch.equal(found, right)
    found.sum().backward()  # it was exported without: the operator in it has them
    assert leaf.grad.shape == q.shape


def test_transforms_of_functions():
    function, (q, k, v), sinks = attention()
    batch = torch.stack([q, q * 2, q * 3])
    gradient = torch.func.grad(lambda s, q: function(q, k, v, softmax_aux=s).sum())
    found = torch.func.vmap(gradient, (None, 0))(sinks, batch)
    for i in range(3):
        leaf = sinks.clone().requires_grad_()
        function(batch[i], k, v, softmax_aux=leaf).sum().backward()
        torch.testing.assert_close(found[i], leaf.grad)


def test_views_and_autocast():
    function, (q, k, v), _ = attention()
    right = function(q, k, v)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    apart = q.transpose(2, 3).contiguous().transpose(2, 3)  # its last axis is not contiguous
    for each in (turned, apart):
        assert torch.equal(function(each, k, v), right)
    with torch.autocast("cpu", torch.bfloat16):
        assert function(q, k, v).dtype == torch.bfloat16
        leaf = q.clone().requires_grad_()
        function(leaf, k, v).sum().backward()
    assert leaf.grad.dtype == torch.float32
    empty = function(q[:0], k[:0], v[:0])
    assert empty.shape == (0, 5, 4, 8)


def test_deterministic_algorithms():
    """Allowed, as results and gradients have the same bits each time."""
    function, (q, k, v), sinks = attention()
    torch.use_deterministic_algorithms(True)
    try:
        found = []
        for _ in range(2):
            leaf = sinks.clone().requires_grad_()
            out = function(q, k, v, softmax_aux=leaf, dropout_prob=0.25, dropout_seed=3)
            found.append((out.detach(), torch.autograd.grad(out.sum(), leaf)[0]))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, *found))


def test_states_are_updated_in_place(scale_by):  # noqa: F811
    x, total = torch.arange(4.0), torch.ones(4)
    assert ejt.scale_by(x, 2.0, total).tolist() == [0, 2, 4, 6]
    assert total.tolist() == [1, 3, 5, 7]
    assert ejt.scale_by(x, 3, places=[1, 3]).tolist() == [0, 3, 0, 9]
    with pytest.raises(libejkernel.InvalidLayout, match="last axis"):
        ejt.scale_by(x, 2.0, torch.ones(4, 2)[:, 0])
    with pytest.raises(libejkernel.Unavailable, match="no gradients"):
        ejt.scale_by(x.requires_grad_(), 2.0).sum().backward()


def test_what_cannot_be_had_is_said():
    function, (q, k, v), _ = attention()
    with pytest.raises(libejkernel.InvalidShape, match="value: axis 2"):
        function(q, k[:, :, :2], v)
    with pytest.raises(libejkernel.InvalidDtype):
        function(q.to(torch.complex64), k, v)
    leaf = q.clone().requires_grad_()
    with pytest.raises(libejkernel.Unavailable, match="no gradients"):
        first = torch.autograd.grad(function(leaf, k, v).sum(), leaf, create_graph=True)[0]
        torch.autograd.grad(first.sum(), leaf)
    with pytest.raises(libejkernel.Unavailable, match="no gradients through row_max"):
        function(leaf, k, v, normalize_output=False, return_row_max=True).row_max.sum().backward()
    with pytest.raises(TypeError, match="missing"):
        function(q, k)


def test_threads_and_forks():
    function, (q, k, v), _ = attention()
    right = function(q, k, v)
    wrong = []

    def work():
        for _ in range(50):
            if not torch.equal(function(q, k, v), right):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for each in workers:
        each.start()
    threads = libejkernel.get_num_threads()
    for count in (1, 2, 1):  # while they work
        libejkernel.set_num_threads(count)
    for each in workers:
        each.join()
    libejkernel.set_num_threads(threads)
    assert not wrong
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(function(q, k, v), right) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_memory_is_flat():
    """Calls, calls that fail and calls with gradients leave nothing behind."""
    function, (q, k, v), sinks = attention()
    leaf = q.clone().requires_grad_()

    def work(count):
        for i in range(count):
            function(q, k, v, softmax_aux=sinks, dropout_prob=0.5, dropout_seed=i % 7)
            if i % 10 == 0:
                function(leaf, k, v).sum().backward()
                with pytest.raises(libejkernel.InvalidShape):
                    function(q, k[:, :, :3], v)

    objects, references, size = left_behind(work, (q, k, v, sinks, leaf), 2000, 100_000)
    assert objects < 50 and references == 0
    assert size < 2 << 20  # a tensor of q's size would be 120 MB by now


@pytest.mark.parametrize("name", OPERATIONS)
def test_signature_and_docstring(name):
    function = getattr(ejt, name)
    assert function.__name__ == name and function.__module__ == "libejkernel.torch"
    expected = _signature.argument_list(catalogue()[name], False)
    assert list(function.__signature__.parameters) == [a.name for a in expected]
    assert name in dir(ejt) and "Parameters" in function.__doc__


def test_the_examples_of_the_page_run():
    exec("\n".join(python_of("docs/python/torch.md")), {})
