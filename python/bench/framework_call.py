#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call costs in JAX and PyTorch beyond the library's own time, for a tiny attention.

JAX: a jitted call less two jitted functions that return their first argument: one that drops its arguments, so that XLA
has none, and one that is passed all three, which XLA checks and holds for a call, too; and by chains of 1 and 101 calls
in one function the cost of each. They are called one after the other, each once: wide vectors lower the clock of some
processors for the best part of a millisecond, and a loop of calls without any would be timed at another clock.
PyTorch: a call of the function, its operator alone, and torch's own attention, with the time of the NumPy function and
of the library beside them. Microseconds, medians, or the least of repetitions for one function. Frameworks that are
missing are passed over.
"""

import statistics
import time
import timeit

import libejkernel
import libejkernel.numpy as ejk
import numpy as np
from libejkernel import _arrays, _library

REPETITIONS, CALLS = 7, 1000


def microseconds(function, *arguments):
    timer = timeit.Timer(lambda: function(*arguments))
    timer.timeit(CALLS)
    return min(timer.repeat(REPETITIONS, CALLS)) / CALLS * 1e6


def in_turns(functions):
    """The same of several functions, call by call: medians."""
    clock, times = time.perf_counter_ns, [[] for _ in functions]
    for _ in range((REPETITIONS + 1) * CALLS):
        for function, each in zip(functions, times):
            start = clock()
            function()
            each.append(clock() - start)
    return [statistics.median(each[CALLS:]) / 1e3 for each in times]


def library_alone(arrays):
    plan, memory, kept = _arrays.made(ejk.flash_attention).prepared(arrays, {})
    call = _arrays.made(ejk.flash_attention)._prepare(kept)
    fresh = [np.empty(shape, dtype) for _, shape, dtype in call.made]
    for (slot, _, _), array in zip(call.made, fresh):
        memory.slots[slot] = array.ctypes.data
    execute, empty = _library.lib.ejk_plan_execute, _library.lib.ejk_dtype_size
    empty.argtypes, empty.restype = execute.argtypes, None
    whole = microseconds(execute, plan.handle, memory.address, None, 0)
    return whole - microseconds(empty, 0, memory.address, None, 0)


def jax_rows(arrays, alone):
    import jax
    from libejkernel.jax import flash_attention

    q, k, v = jax.device_put(arrays, jax.devices("cpu")[0])  # also where there is a GPU

    def chain(count):
        def run(q, k, v):
            for _ in range(count):
                q = flash_attention(q, k, v)
            return q

        return jax.jit(run)

    empty, idle = (jax.jit(lambda q, k, v: q, keep_unused=keep) for keep in (False, True))
    once, often = chain(1), chain(101)

    def timed(*functions):
        return in_turns([lambda f=f: f(q, k, v).block_until_ready() for f in functions])

    dropped, passed, one = timed(empty, idle, once)
    short, long = timed(once, often)
    print(f"jitted call                       {one:7.2f}")
    print("  beyond C and an empty one that")
    print(f"    drops its arguments           {one - dropped - alone:7.2f}")
    print(f"    is passed the same arguments  {one - passed - alone:7.2f}")
    print(f"  each of a chain, beyond C       {(long - short) / 100 - alone:7.2f}")


def torch_rows(arrays, alone):
    import torch
    from libejkernel.torch import flash_attention

    torch.set_num_threads(1)
    q, k, v = map(torch.from_numpy, arrays)
    turned = [each.transpose(1, 2) for each in (q, k, v)]
    text = "flash_attention;query,key,value;out;0;{}"
    operator = torch.ops.libejkernel.flash_attention.listed
    with torch.no_grad():
        whole = microseconds(flash_attention, q, k, v)
        bare = microseconds(operator, [q, k, v], text)
        peer = microseconds(torch.nn.functional.scaled_dot_product_attention, *turned)
    print(f"torch function                    {whole:7.2f}")
    print(f"  beyond C                        {whole - alone:7.2f}")
    print(f"  its operator, beyond C          {bare - alone:7.2f}")
    print(f"torch's own attention, same shape {peer:7.2f}")


def main():
    libejkernel.set_num_threads(1)
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal((1, 1, 1, 8), np.float32) for _ in range(3)]
    alone = library_alone(arrays)
    print(f"the library alone                 {alone:7.2f} us")
    print(f"NumPy function                    {microseconds(ejk.flash_attention, *arrays):7.2f}")
    for rows in (jax_rows, torch_rows):
        try:
            rows(arrays, alone)
        except ImportError as error:
            print(f"skipped: {error}")


if __name__ == "__main__":
    main()
