# SPDX-License-Identifier: Apache-2.0
"""Functions on tensors of PyTorch, made from the description of their operations.

Each operation has an operator, registered in C where PyTorch allows it: its tensors, each of which may be missing, then
the text of the call; it returns the list of results. Fake kernel, gradients, mapped axes and autocast are registered
here, from the description too. The function in front finds the text of a call by its other arguments, which is why it
is a text of its own, compiled when it is first asked for, as those on NumPy arrays are.
"""

from __future__ import annotations

import ctypes
import operator
import os
from functools import cache, lru_cache

import torch

from . import _foreign, _library, _shapes, _signature, _torch_kernels
from ._description import catalogue

_library.declare(
    {
        "ejk_torch_start": ((_library._S, _library._S, _library._P), _library._I),
        "ejk_torch_define": ((_library._S, _library._S, _library._I), _library._I),
    }
)

_NAMESPACE = "libejkernel"
_VALUES, _RESULTS, _LISTS = range(3)  # ejk_torch_form
_MOST_CALLS = 4096  # of a function, by what is not a tensor: seeds are many
_transforms_active = torch._C._are_functorch_transforms_active


@cache
def start():
    """Registers all operators with PyTorch."""
    _foreign.start()
    for name in catalogue().names():
        _register(name)


@cache
def _defines_in_c():
    """Has C find PyTorch's functions: whether those are there that take operators."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    paths = [os.path.join(folder, f"libtorch_{device}.so").encode() for device in ("cpu", "cuda")]
    defines = ctypes.c_bool()
    _library.check(_library.lib.ejk_torch_start(*paths, ctypes.byref(defines)))
    return defines.value


@cache
def _register(name):
    """The operators of an operation: of calls that update nothing, and of those that do by how many results they have.

    PyTorch wants the former to return a list, which autograd takes, and cannot trace the latter if they do.
    """
    operation = catalogue()[name]
    if not any(field.is_required for field in operation.updated):
        _define(name, f"{name}({_parameters_of(operation, False)}) -> Tensor[]", _RESULTS)
        qualified = f"{_NAMESPACE}::{name}"
        torch.library.register_autograd(qualified, _backward, setup_context=_setup)
        torch.library.register_vmap(qualified, _mapped)
    if operation.updated:
        for count in range(len(operation.outputs) + 1):
            returned = ", ".join(["Tensor"] * count)
            overload = f"{name}_.results{count}"
            _define(overload, f"{overload}({_parameters_of(operation, True)}) -> ({returned})", _VALUES)
            _registrations().impl(overload, _refusing(name, count), "Autograd", with_keyset=True)
            torch.library.register_vmap(f"{_NAMESPACE}::{overload}", _not_mapped)


def _define(name, schema, form):
    if _defines_in_c():
        _library.check(_library.lib.ejk_torch_define(name.encode(), schema.encode(), form))
    else:
        _registrations().define(schema)
        kernels = _torch_kernels.returning_values, _torch_kernels.returning_list, _torch_kernels.of_list
        for key in ("CPU", "CUDA"):
            _registrations().impl(name, kernels[form], key)
    torch.library.register_fake(f"{_NAMESPACE}::{name}", (_fake_values, _fake, _fake_of_list)[form])
    _register_autocast(name)


def _fields(operation):
    return [field for field in operation.inputs if field.kind == "TENSOR"]


def _parameters_of(operation, updating):
    marks = [f"(a{i}!)" if updating and f.is_updated else "" for i, f in enumerate(_fields(operation))]
    tensors = [f"Tensor{mark}? {f.name}" for mark, f in zip(marks, _fields(operation))]
    return ", ".join([*tensors, "str call"])


def _updates(call):
    return any(field.name in call.operands for field in call.operation.updated)


@lru_cache(maxsize=None)
def _operator(name, count=None):
    """The operator of an operation; that which updates, if a `count` of results is given."""
    _register(name)
    namespace = getattr(torch.ops, _NAMESPACE)
    if count is None:
        return getattr(namespace, name).default
    return getattr(getattr(namespace, name + "_"), f"results{count}")


@lru_cache(maxsize=None)
def _listed(name):
    """The operator of calls that update nothing and are not differentiated, an overload that takes a list.

    For such a call each missing tensor costs time, and so does passing autograd by.
    """
    listed = f"{name}.listed"
    _define(listed, f"{listed}(Tensor[] tensors, str call) -> Tensor[]", _LISTS)
    _registrations().impl(listed, torch.library.fallthrough_kernel, "Autograd")
    return getattr(getattr(torch.ops, _NAMESPACE), name).listed


def _as_list(results):
    return [results] if isinstance(results, torch.Tensor) else list(results or ())


def _operator_of(call):
    return _operator(call.name, len(call.results) if _updates(call) else None)


def _given(arguments):
    return [each for each in arguments[:-1] if each is not None]


def _spread(call):
    """A function of a call's operands: its results."""
    names = [field.name for field in _fields(call.operation)]
    at = [names.index(name) for name in call.operands]
    function, updates = _operator_of(call), _updates(call)

    def run(*tensors):
        slots = [None] * len(names)
        for i, tensor in zip(at, tensors):
            slots[i] = tensor
        results = function(*slots, call.text)
        return _as_list(results) if updates else results

    return run


def _fake(*arguments):
    call, tensors = _foreign.call_of_text(arguments[-1]), _given(arguments)
    specs = call.specs([tuple(int(n) for n in t.shape) for t in tensors], [t.dtype for t in tensors])
    return [tensors[0].new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in specs]


def _fake_values(*arguments):
    results = _fake(*arguments)
    return results[0] if len(results) == 1 else tuple(results) or None


def _fake_of_list(tensors, text):
    return _fake(*tensors, text)


def _not_mapped(info, dims, *arguments):
    name = _foreign.call_of_text(arguments[-1]).name
    _library.fail("UNAVAILABLE", f"{name} updates tensors in place, which torch.vmap cannot map")


def _mapped(info, dims, *arguments):
    call = _foreign.call_of_text(arguments[-1])
    tensors, batched = [], []
    for tensor, dim in zip(arguments[:-1], dims):
        if tensor is not None:
            tensors.append(tensor if dim is None else tensor.movedim(dim, 0))
            batched.append(dim is not None)
    results = _foreign.run_mapped(torch, _spread, call, info.batch_size, tensors, batched)
    return list(results), [0] * len(results)


# ---- Gradients -------------------------------------------------------------------------------------------------------


def _keep(ctx, call, operands, results):
    """Has a context keep what the gradients of a call need."""
    ctx.call = call
    ctx.set_materialize_grads(False)
    pullback = _foreign.pullback_of(call)
    kept = [each for name, each in zip(call.results, results) if pullback and name in pullback.residuals]
    ctx.save_for_backward(*operands, *kept)


def _pull_back(ctx, cotangents, needed):
    """The gradients of the operands that are `needed`, by name."""
    call = ctx.call
    pullback = _foreign.pullback_of(call) if not call.elements else None
    if pullback is None:
        _library.fail("UNAVAILABLE", _foreign.no_derivative(call))
    saved = ctx.saved_tensors
    operands = dict(zip(call.operands, saved))
    found = dict(zip([n for n in call.results if n in pullback.residuals], saved[len(operands) :]))
    wanted = tuple(pullback.differentiable(n for n in call.operands if n in needed))
    given = {name: each for name, each in zip(call.results, cotangents) if each is not None}
    return _gradients(pullback, operands, found, given, wanted) if given and wanted else {}


def _setup(ctx, inputs, output):
    ctx.places = len(inputs)
    _keep(ctx, _foreign.call_of_text(inputs[-1]), _given(inputs), output)


def _backward(ctx, cotangents):
    fields = _fields(ctx.call.operation)
    needed = {field.name for field, needs in zip(fields, ctx.needs_input_grad) if needs}
    gradients = _pull_back(ctx, cotangents, needed)
    return (*(gradients.get(field.name) for field in fields), None)


class _Transformed(torch.autograd.Function):
    """A call under the transforms of torch.func, which operators with lists of results do not have."""

    @staticmethod
    def forward(call, *tensors):
        return tuple(_spread(call)(*tensors))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _keep(ctx, inputs[0], inputs[1:], output)

    @staticmethod
    def backward(ctx, *cotangents):
        needed = {name for name, needs in zip(ctx.call.operands, ctx.needs_input_grad[1:]) if needs}
        gradients = _pull_back(ctx, cotangents, needed)
        return (None, *(gradients.get(name) for name in ctx.call.operands))

    @staticmethod
    def vmap(info, dims, call, *tensors):
        tensors = [each if dim is None else each.movedim(dim, 0) for each, dim in zip(tensors, dims[1:])]
        batched = [dim is not None for dim in dims[1:]]
        results = _foreign.run_mapped(torch, _transformed, call, info.batch_size, tensors, batched)
        return results, (0,) * len(results)


def _transformed(call):
    return lambda *tensors: _Transformed.apply(call, *tensors)


class _Refused(torch.autograd.Function):
    """Results that depend on what they have no gradients of: whoever asks for them is told so."""

    @staticmethod
    def forward(ctx, call, count, *tensors):
        ctx.call = call
        return tuple(each.detach() for each in tensors[:count])

    @staticmethod
    def backward(ctx, *cotangents):
        _library.fail("UNAVAILABLE", _foreign.no_derivative(ctx.call))


def _refusing(name, count):
    """The autograd kernel of an operator that updates tensors in place, for which PyTorch makes none."""

    def run(keyset, *arguments):
        with torch._C._AutoDispatchBelowAutograd():
            results = _operator(name, count).redispatch(keyset & torch._C._after_autograd_keyset, *arguments)
        tensors = _given(arguments)
        if count == 0 or not torch.is_grad_enabled() or not any(each.requires_grad for each in tensors):
            return results
        call = _foreign.call_of_text(arguments[-1])
        refused = _Refused.apply(call, count, *_as_list(results), *tensors)
        return refused[0] if count == 1 else refused

    return run


def _runner():
    """What makes a function of a call, wherever this is asked for."""
    return _transformed if _transforms_active() else _spread


def _gradients(pullback, operands, found, given, wanted):
    """The gradients of `wanted`, by name, from operands, results that are there and cotangents."""
    pullback.check_cotangents(given)
    missing = pullback.missing(given)
    if any(name not in found for name in [*pullback.residuals, *missing]):
        extended = pullback.extended
        results = _runner()(extended)(*(operands[name] for name in extended.operands))
        found = dict(zip(extended.results, results))
    given = {**given, **{name: torch.zeros_like(found[name]) for name in missing}}
    values = {name: operands[name] for name in pullback.shared}
    values |= {name: found[name] for name in pullback.residuals}
    values |= {pullback.gradient.cotangents[name]: each for name, each in given.items()}
    dtypes = {name: str(each.dtype).rpartition(".")[2] for name, each in operands.items()}
    back = pullback.backward_call(tuple(given), wanted)
    tensors = []
    for name in back.operands:
        dtype = pullback.dtype_of(name, dtypes)
        tensors.append(values[name] if dtype is None else values[name].to(getattr(torch, dtype)))
    results = dict(zip(back.results, _runner()(back)(*tensors)))
    return {name: results[pullback.gradient.gradients[name]].to(operands[name].dtype) for name in wanted}


# ---- Autocast --------------------------------------------------------------------------------------------------------


def _register_autocast(overload):
    """Under autocast, what is float32 and may be any float has the type that it says."""
    name, _, count = overload.partition("_.results")
    name, _, listed = name.partition(".")
    operation = catalogue()[name]
    opened = {f.name for f in _fields(operation) if _shapes.is_any_float(operation.args, f) and not f.is_updated}
    names = [field.name for field in _fields(operation)]

    def register(device, key):
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def cast(names, tensors):
            dtype = torch.get_autocast_dtype(device)
            return [
                each.to(dtype) if name in opened and each is not None and each.dtype == torch.float32 else each
                for name, each in zip(names, tensors)
            ]

        def run(*arguments):
            with torch._C._ExcludeDispatchKeyGuard(keys):
                tensors = cast(names, arguments[:-1])
                return _operator(name, int(count) if count else None)(*tensors, arguments[-1])

        def run_of_list(tensors, text):
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return _listed(name)(cast(_foreign.call_of_text(text).operands, tensors), text)

        _registrations().impl(overload, run_of_list if listed else run, key)

    register("cpu", "AutocastCPU")
    register("cuda", "AutocastCUDA")


@cache
def _registrations():
    return torch.library.Library(_NAMESPACE, "FRAGMENT")


# ---- Functions -------------------------------------------------------------------------------------------------------

_TEXT = """
def {name}({parameters}):
    try:
        _known = _calls[{key}]
    except (KeyError, TypeError):
        return _slow({names})
    if _transforms_active():
        return _slow({names})
    try:
        if _grad_enabled() and ({needs}):
            _found = _operator({tensors}, {extended})
        elif _modes():  # which may keep the call, and have it differentiated later
            with _below_autograd():  # whose kernel would be PyTorch's own, in Python
                _found = _operator({tensors}, _known.text)
        elif _known.bare:
            _found = _listed([{required}], _known.text)
        else:
            _found = _listed([_t for _t in ({tensors},) if _t is not None], _known.text)
    except (AttributeError, RuntimeError) as _error:
        if _are_tensors({tensors}):
            _report(_error)
        return _slow({names})
    return _known.results(_found)
"""


class _Known:
    """What is known of calls that differ in their tensors only."""

    __slots__ = ("bare", "extended", "keeping", "results", "text")

    def __init__(self, call, results, required):
        self.text, self.results, self.bare = call.text, results, call.operands == required
        pullback = _foreign.pullback_of(call)
        self.extended = pullback.extended.text if pullback else self.text
        self.keeping = pullback.keeping.text if pullback else self.text


def _report(error):
    """Raises what the library said, where it said something."""
    status, _, sentence = str(error).partition(": ")
    if status.split()[-1:] and status.split()[-1] in _library.exceptions:
        raise _library.exceptions[status.split()[-1]](sentence.splitlines()[0]) from None
    raise error


def _are_tensors(*given):
    """Whether calls that differ in their tensors only may have these: arrays of others become tensors first."""
    return all(each is None or isinstance(each, torch.Tensor) for each in given)


def _is_tensor(argument):
    return argument.use == "input" and argument.field.kind == "TENSOR"


def _source(operation, arguments):
    tensors = [a for a in arguments if _is_tensor(a)]
    by_field = {a.field.name: a for a in tensors}
    optional = [a for a in tensors if a.default is not a.parameter.empty]
    key = [f"{a.name} is None" for a in optional] + [a.name for a in arguments if a not in tensors]
    needs = [f"{a.name}.requires_grad" for a in tensors if a not in optional]
    needs += [f"{a.name} is not None and {a.name}.requires_grad" for a in optional]
    gradient, required = catalogue().gradient(operation.name), _required(operation, arguments)
    extended = "_known.extended"
    if gradient and gradient.kept and required:
        extended = f"_known.keeping if {by_field[required[0]].name}.is_cpu else {extended}"
    return _TEXT.format(
        name=operation.name,
        extended=extended,
        parameters=_signature.parameter_text(arguments),
        key="(" + "".join(each + ", " for each in key) + ")",
        names=", ".join(a.name for a in arguments),
        needs=" or ".join(needs),
        tensors=", ".join(by_field[field.name].name for field in _fields(operation)),
        required=", ".join(by_field[name].name for name in required),
    )


def _required(operation, arguments):
    """The names of the tensors that every call has, as they are in its text."""
    names = {a.field.name for a in arguments if _is_tensor(a) and a.default is a.parameter.empty}
    return tuple(field.name for field in _fields(operation) if field.name in names)


class _Function(_foreign.Function):
    def __init__(self, name):
        super().__init__(name)
        self.name, self.calls = name, {}
        self._optional = [a for a in self.arguments if _is_tensor(a) and a.default is not a.parameter.empty]
        names = {
            "_calls": self.calls, "_slow": self.slow, "_grad_enabled": torch.is_grad_enabled,
            "_operator": self._functional(_operator), "_listed": self._functional(_listed), "_report": _report,
            "_are_tensors": _are_tensors,
            "_transforms_active": _transforms_active, "_modes": torch._C._len_torch_dispatch_stack,
            "_below_autograd": torch._C._AutoDispatchBelowAutograd,
        }  # fmt: skip
        exec(compile(_source(self.operation, self.arguments), f"<{name}>", "exec"), names)
        self.function = self.dress(names[name], "libejkernel.torch")

    def slow(self, *values):
        """What the function does with arguments that it does not know yet."""
        given = dict(zip(self.names, values))
        tensors, results, arguments = _foreign.split(self.operation, given, states=False)
        device = next((each.device for each in tensors.values() if isinstance(each, torch.Tensor)), None)
        tensors = {name: self._tensor(name, each, device) for name, each in tensors.items()}
        operands = tuple(f.name for f in _fields(self.operation) if f.name in tensors)
        call = _foreign.call_of(self.name, operands, results, arguments)
        if _updates(call) or _transforms_active() or any(given[name] is not tensors[name] for name in tensors):
            return self._run(call, tensors)
        known = _Known(call, self._chooser(call), _required(self.operation, self.arguments))
        key = tuple(given[a.name] is None for a in self._optional) + tuple(
            value for a, value in zip(self.arguments, values) if not _is_tensor(a)
        )
        if len(self.calls) >= _MOST_CALLS:
            self.calls.clear()
        try:
            self.calls[key] = known
        except TypeError:  # a dict or a list
            return self._run(call, tensors)
        return self.function(**dict(zip((a.name for a in self.arguments), values)))

    def _functional(self, operator_of):
        """What calls an operator of calls that update nothing; None if all do."""
        if any(field.is_required for field in self.operation.updated):
            return None
        found = operator_of(self.name)
        return getattr(found, "_op", found)  # which its __call__, in Python, calls and does no more

    def _tensor(self, name, value, device):
        field = self.operation.args.by_name[name]
        if not isinstance(value, torch.Tensor):
            if field.is_updated:
                _library.fail("INVALID_ARGUMENT", f"{name} is {value!r}, expected a tensor to update")
            return torch.tensor(value, device=device)
        return value

    def _run(self, call, tensors):
        """A call that is not remembered."""
        try:
            operands = [tensors[name] for name in call.operands]
            if _transforms_active() and not _updates(call):
                pullback = _foreign.pullback_of(call)
                own = call
                if pullback:
                    own = pullback.keeping if operands[0].is_cpu else pullback.extended
                found = _transformed(own)(*operands)
            else:
                found = _spread(call)(*operands)
        except RuntimeError as error:
            _report(error)
        if call.results:
            return self._chooser(call)(found)
        updated = [tensors[f.name] for f in self.operation.updated if f.name in tensors]
        return updated[0] if len(updated) == 1 else tuple(updated)

    def _chooser(self, call):
        """What makes a call's results of the list that an operator returned, which may have more."""
        pullback = _foreign.pullback_of(call)
        if len(call.results) == 1 and (pullback is None or pullback.extended.results[0] == call.results[0]):
            return operator.itemgetter(0)
        made = _signature.result_type(self.name, call.results, "libejkernel.torch")
        every = pullback.extended.results if pullback else call.results
        places = [every.index(name) for name in call.results]

        def choose(found):
            if len(found) == len(call.results):
                return made._make(found)
            return made._make([found[i] for i in places])

        if len(call.results) > 1:
            return choose
        return lambda found: found[0] if len(found) == 1 else found[places[0]]


@lru_cache(maxsize=None)
def function_of(name):
    """The function of an operation on tensors of PyTorch."""
    start()
    function = _Function(name).function
    return torch.compiler.allow_in_graph(function)
