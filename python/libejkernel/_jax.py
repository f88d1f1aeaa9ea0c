# SPDX-License-Identifier: Apache-2.0
"""Functions on arrays of JAX, made from the description of their operations.

A call is an XLA custom call with the library's one handler. What a function is under JAX's transformations is layered:
a jitted function, whose pullback is the operation that has the gradients (custom_vjp), around a call that knows what to
do with a mapped axis (custom_vmap), around the custom call.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from . import _device, _foreign, _library, _records, _sharding, _tensors
from ._signature import result_type

_P, _I, _S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_library.declare({"ejk_jax_workspace": ((_S, _P, _I, _P, _P), _I)})

_TARGET, _RECORDED = "ejkernel_call", "ejkernel_recorded_call"


@cache
def _register():
    _foreign.start()
    lib = _library.lib
    for name, platform, handler in (
        (_TARGET, "cpu", lib.ejk_jax_call),
        (_TARGET, "CUDA", lib.ejk_jax_call_on_gpu),
        (_RECORDED, "CUDA", lib.ejk_jax_recorded_call_on_gpu),
    ):
        capsule = jax.ffi.pycapsule(ctypes.cast(handler, ctypes.c_void_p))
        jax.ffi.register_ffi_target(name, capsule, platform=platform)


def _varying(array):
    """Names of the axes of a mesh over which an array varies inside shard_map."""
    aval = jax.typeof(array)
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset(getattr(aval, "vma", ()) if kind is None else kind.varying)


def _same_varying(arrays):
    """Arrays that all vary over the same axes."""
    axes = frozenset().union(*map(_varying, arrays))
    cast = getattr(jax.lax, "pcast", None)
    vary = (lambda a, m: cast(a, m, to="varying")) if cast else jax.lax.pvary
    missing = [tuple(sorted(axes - _varying(each))) for each in arrays]
    return [vary(a, m) if m else a for a, m in zip(arrays, missing)]


def _varying_spec(arrays):
    """What says of a result that it varies as the operands do, all in the same way."""
    if not arrays or not _varying(arrays[0]):
        return {}
    kind = getattr(jax.typeof(arrays[0]), "manual_axis_type", None)
    if kind is None:
        return {"vma": _varying(arrays[0])}
    mesh = jax.sharding.get_abstract_mesh()
    return {"manual_axis_type": kind, "sharding": jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())}


def _shapes_of(arrays):
    return [a.shape for a in arrays], [a.dtype for a in arrays]


def _plan_on_gpu(call, views):
    """(bytes of workspace, description) of the plan of a call on a GPU; None where there is none."""
    tensors = (_tensors.Tensor * len(views))()
    for tensor, (shape, dtype) in zip(tensors, views):
        number = _records.DTYPES[_records.dtype_name(dtype)]
        tensor.dtype, tensor.rank, tensor.device_type = number, len(shape), _device.CUDA
        tensor.shape[: len(shape)], tensor.strides[: len(shape)] = shape, _records.contiguous(shape)
    size, ask = ctypes.c_int64(), _library.lib.ejk_jax_workspace
    try:
        plan = _library.json_from(ask, call.text.encode(), tensors, len(views), ctypes.byref(size))
    except _library.Error:  # what the library cannot do it says when it is asked to
        return None
    return size.value, plan


def _recorded_call(call, views):
    """A call as XLA may record it into its command buffers, and the bytes of its workspace; None where it may not.

    A program has as much workspace as was asked for when it was made, so its calls keep the choice that was made then.
    """
    found = _plan_on_gpu(call, views) if jax.default_backend() == "gpu" else None
    if found is None:
        return None
    call = call.with_choice(found[1])
    found = _plan_on_gpu(call, views)
    return found and (call, found[0])


def _handler_call(call, arrays):
    """The call of the handler itself: on a GPU one that has its workspace as a further result, where it can."""
    more = _varying_spec(arrays)
    shapes, dtypes = _shapes_of(arrays)
    results = call.specs(shapes, dtypes)

    def made(target, call, specs):
        specs = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), **more) for shape, dtype in specs]
        run = jax.ffi.ffi_call(target, specs, input_output_aliases=call.aliases or None, vmap_method="sequential")
        return lambda *arrays: tuple(run(*arrays, call=call.text))[: len(results)]

    plain = made(_TARGET, call, results)
    # XLA refuses a recording of nothing.
    found = _recorded_call(call, [*zip(shapes, dtypes), *results]) if all(map(_is_something, results)) else None
    if found is None:
        return plain(*arrays)
    recorded = made(_RECORDED, found[0], [*results, ((found[1],), "uint8")])
    return jax.lax.platform_dependent(*arrays, cuda=recorded, default=plain)


def _is_something(spec):
    return 0 not in spec[0]


def _custom_call(call, arrays):
    """The same, shared out among devices where XLA decides who has what."""
    arrays = _same_varying(arrays)
    run = _sharding.shared_out(call, _handler_call, arrays)
    return run(*arrays) if run else _handler_call(call, arrays)


# ---- Mapped axes -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _run(call):
    """A function of the call's operands: its results as a tuple."""

    @custom_vmap
    def run(*arrays):
        return _custom_call(call, arrays)

    @run.def_vmap
    def run_mapped(size, batched, *arrays):
        if size == 0:
            shapes = [a.shape[1:] if each else a.shape for a, each in zip(arrays, batched)]
            specs = call.specs(shapes, [a.dtype for a in arrays])
            results = tuple(jnp.zeros((0, *shape), jnp.dtype(name)) for shape, name in specs)
        else:
            results = _foreign.run_mapped(jnp, _run, call, size, arrays, batched)
        return results, (True,) * len(results)

    return run


# ---- Gradients -------------------------------------------------------------------------------------------------------


def _without_gradients(call):
    """The call for an operation that has none: whoever differentiates it is told so."""
    run = jax.custom_jvp(lambda *arrays: _run(call)(*arrays))

    @run.defjvp
    def refuse(primals, tangents):
        _library.fail("UNAVAILABLE", _foreign.no_derivative(call))

    return run


def _with_gradients(call, pullback):
    extended = pullback.keeping if jax.default_backend() == "cpu" else pullback.extended
    pullback, names = _foreign.pullback_of(extended), call.operands

    def results_of(found):
        return tuple(found[name] for name in call.results)

    @jax.custom_vjp
    def run(*arrays):
        return _run(call)(*arrays)

    def forward(*arrays):
        values = [each.value for each in arrays]
        found = dict(zip(extended.results, _without_gradients(extended)(*values)))
        wanted = pullback.differentiable(n for n, each in zip(names, arrays) if each.perturbed)
        kept = dict(zip(names, values))
        kept |= {"result " + name: found[name] for name in pullback.residuals}
        return results_of(found), (kept, dict.fromkeys(wanted))

    def filled(kept, gradients):
        """These gradients, and zeros for other floats: JAX 0.8 wants a call's to be as many each time."""
        return tuple(
            _as_type(gradients[n], kept[n].dtype.name) if n in gradients else _zeros_of(kept[n]) for n in names
        )

    def backward(residuals, cotangents):
        kept, wanted = residuals
        given = {n: c for n, c in zip(call.results, cotangents) if not isinstance(c, SymbolicZero)}
        if not given or not wanted:
            return filled(kept, {})
        pullback.check_cotangents(given)
        for name in pullback.missing(given):
            given[name] = jnp.zeros_like(kept["result " + name]) if "result " + name in kept else None
            if given[name] is None:
                zero = cotangents[call.results.index(name)].aval
                given[name] = jnp.zeros(zero.shape, zero.dtype)
        operands = {name: kept[name] for name in pullback.shared}
        operands |= {name: kept["result " + name] for name in pullback.residuals}
        operands |= {pullback.gradient.cotangents[name]: value for name, value in given.items()}
        dtypes = {name: array.dtype.name for name, array in kept.items() if " " not in name}
        back = pullback.backward_call(tuple(given), tuple(wanted))
        arrays = [_as_type(operands[name], pullback.dtype_of(name, dtypes)) for name in back.operands]
        found = dict(zip(back.results, _without_gradients(back)(*arrays)))
        gradients = {name: found[pullback.gradient.gradients[name]] for name in wanted}
        return filled(kept, gradients)

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run


def _zeros_of(array):
    """Zeros that vary as an array does; None of what has no gradients."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return None
    return _same_varying([jnp.zeros(array.shape, array.dtype), array])[0]


def _as_type(array, name):
    return array if name is None or array.dtype.name == name else array.astype(name)


# ---- Functions -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _compiled(call):
    pullback = _foreign.pullback_of(call)
    run = _with_gradients(call, pullback) if pullback else _without_gradients(call)
    return jax.jit(run, inline=True)


def function_of(name):
    """The function of an operation on arrays of JAX."""
    _register()
    made = _foreign.Function(name)
    operation = made.operation

    def function(*positional, **keywords):
        tensors, results, arguments = _foreign.split(operation, made.given(positional, keywords))
        operands = tuple(f.name for f in operation.inputs if f.name in tensors)
        # Outside of what has a pullback of its own, so that gradients of what shards share are added up.
        arrays = _same_varying([jnp.asarray(tensors[each]) for each in operands])
        found = _compiled(_foreign.call_of(name, operands, results, arguments))(*arrays)
        return found[0] if len(found) == 1 else result_type(name, results, "libejkernel.jax")._make(found)

    return made.dress(function, "libejkernel.jax")
