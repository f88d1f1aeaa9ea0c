# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU in calls from NumPy: producers of DLPack whose memory is there, as those of CuPy and PyTorch.

Work is enqueued on the default stream of their device, and a call returns before it is done. NumPy has no memory there:
each result needs a destination.
"""

from __future__ import annotations

from . import _calls, _dlpack, _library, _records

_DLPACK_CUDA = 2
CUDA = 2  # ejk_device_type
_LEGACY_DEFAULT_STREAM = 1


class DeviceTensor:
    """A view of memory on a GPU, with what keeps it."""

    __slots__ = ("address", "owner", "view")

    def __init__(self, name, producer):
        tensor, _, self.owner = _dlpack.open_capsule(name, producer, stream=_LEGACY_DEFAULT_STREAM)
        number = _records.DTYPES[_dlpack.type_name(name, tensor)]
        shape = tuple(tensor.shape[: tensor.rank])
        strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
        self.view = _calls.View(number, shape, strides, (CUDA, tensor.device_id))
        self.address = (tensor.data or 0) + tensor.byte_offset

    @property
    def key(self):
        return self.view.dtype, self.view.shape, self.view.strides, self.view.device


def is_on_gpu(value):
    """Whether a producer's memory is on a GPU."""
    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == _DLPACK_CUDA


def key_of(values):
    """A key for calls with tensors on a GPU; None without any."""
    return tuple(map(_part, values)) if any(map(is_there, values)) else None


def is_there(value):
    """Whether a value is a tensor on a GPU, or a list with one."""
    return isinstance(value, DeviceTensor) or isinstance(value, tuple) and any(map(is_there, value))


def _part(value):
    if isinstance(value, DeviceTensor):
        return value.key
    if isinstance(value, tuple):
        return tuple(map(_part, value))
    return (value.shape, value.strides, value.dtype) if hasattr(value, "strides") else value


def run(call, arguments, values):
    """Enqueues a prepared call; answers its destinations."""
    try:
        memory = call.free.pop()
    except IndexError:
        memory = call.memory()
    given = {}
    for argument, value in zip(arguments, values):
        if isinstance(value, DeviceTensor):
            memory.slots[argument.field.offset // 8] = value.address
            given[argument.field.name] = value
        elif is_there(value):
            for member, tensor in enumerate(value):
                memory.slots[(argument.field.offset + member * _records.TENSOR_SIZE) // 8] = tensor.address
    status = _library.lib.ejk_plan_execute(call.handle, memory.address, None, 0)
    call.free.append(memory)
    _library.check(status)
    return given
