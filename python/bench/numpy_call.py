#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a call, and to the start of a program.

Prints for tiny calls the time of the function, of the library alone, and the difference, in microseconds: medians over
batches, each the least of its repetitions. The library's time is that of ejk_plan_execute() by ctypes, less that of an
empty function by ctypes. Beside it NumPy's own matmul of as many elements. Then the time of the imports, in
milliseconds, in processes of their own.
"""

import ctypes
import statistics
import subprocess
import sys
import timeit

import numpy as np

import libejkernel
import libejkernel.numpy as ejk
from libejkernel import _arrays, _library

CALLS, BATCHES = 5000, 15


def microseconds(statement, names):
    timer = timeit.Timer(statement, globals=names)
    best = [min(timer.repeat(3, CALLS)) for _ in range(BATCHES)]
    return statistics.median(best) / CALLS * 1e6


def library_alone(function, arguments, keywords):
    plan, memory, kept = _arrays.made(function).prepared(arguments, keywords)
    call = _arrays.made(function)._prepare(kept)
    fresh = [np.empty(shape, dtype) for _, shape, dtype in call.made]
    for (slot, _, _), array in zip(call.made, fresh):
        memory.slots[slot] = array.ctypes.data
    execute, empty = _library.lib.ejk_plan_execute, _library.lib.ejk_dtype_size
    empty.argtypes, empty.restype = execute.argtypes, ctypes.c_int32
    names = {"execute": execute, "empty": empty, "plan": plan.handle, "memory": memory.address}
    return microseconds("execute(plan, memory, None, 0)", names) - microseconds("empty(0, memory, None, 0)", names)


def row(title, function, *arguments, **keywords):
    names = {"function": function, "arguments": arguments, "keywords": keywords}
    function(*arguments, **keywords)
    whole = microseconds("function(*arguments, **keywords)", names)
    alone = library_alone(function, arguments, keywords)
    print(f"{title:44} {whole:8.2f} {alone:8.2f} {whole - alone:8.2f}")


def import_ms(statement):
    code = f"import numpy, time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(15)
    ]
    return statistics.median(runs) * 1e3


def main():
    libejkernel.set_num_threads(1)
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal((1, 1, 1, 8), np.float32) for _ in range(3))
    x = draw.standard_normal((1, 2, 8), np.float32)
    out = np.empty_like(q)
    print(f"{'call':44} {'Python':>8} {'C alone':>8} {'beyond':>8}   us")
    row("flash_attention", ejk.flash_attention, q, k, v)
    row("flash_attention, causal, out=", ejk.flash_attention, q, k, v, causal=True, out=out)
    row("flash_attention, return_lse", ejk.flash_attention, q, k, v, return_lse=True)
    row("mean_pooling", ejk.mean_pooling, x)
    print(
        f"{'np.matmul of [1,8] and [8,8]':44} {microseconds('a @ b', {'a': x[0, :1], 'b': np.ones((8, 8), 'f4')}):8.2f}"
    )
    print(f"\nimport libejkernel.numpy, after numpy: {import_ms('import libejkernel.numpy'):.1f} ms")
    first = import_ms("import libejkernel.numpy as e; e.flash_attention")
    print(f"the same, and a first function:        {first:.1f} ms")


if __name__ == "__main__":
    main()
