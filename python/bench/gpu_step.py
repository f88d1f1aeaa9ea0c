#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention forward and backward on a GPU through PyTorch, beside PyTorch's own by cuDNN, in turns.

bfloat16, heads of 128, 16 heads, two texts of 8192 tokens. Times lie between events on the stream, several steps each;
medians of repetitions, and how many times as fast. Then what a call of a tiny shape costs the host.
"""

import statistics
import time

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from libejkernel.torch import flash_attention

BATCH, LENGTH, HEADS, WIDTH = 2, 8192, 16, 128
REPETITIONS, STEPS = 11, 5


def milliseconds(step):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(STEPS):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / STEPS


def compare(title, own, theirs):
    times = {own: [], theirs: []}
    for step in times:
        step()
    for _ in range(REPETITIONS):
        for step, taken in times.items():
            taken.append(milliseconds(step))
    a, b = (statistics.median(taken) for taken in times.values())
    print(f"{title:28}{a:8.3f} ms with libejkernel {b:8.3f} ms by cuDNN {b / a:6.3f} times as fast")


def measure(causal):
    leaves = [
        torch.randn(BATCH, LENGTH, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)
    ]
    d_out = torch.randn(BATCH, LENGTH, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def own(q, k, v):
        return flash_attention(q, k, v, causal=causal)

    def theirs(q, k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            turned = (each.transpose(1, 2) for each in (q, k, v))
            return F.scaled_dot_product_attention(*turned, is_causal=causal).transpose(1, 2)

    def forward(attention):
        with torch.no_grad():
            attention(*leaves)

    def both(attention):
        torch.autograd.grad(attention(*leaves), leaves, d_out)

    word = "causal" if causal else "full"
    compare(f"{word}, forward", lambda: forward(own), lambda: forward(theirs))
    compare(f"{word}, forward and backward", lambda: both(own), lambda: both(theirs))


def microseconds(function, *arguments, calls=2000):
    for _ in range(20):
        function(*arguments)
    torch.cuda.synchronize()
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls // 10):
            function(*arguments)
        taken.append((time.perf_counter() - start) / (calls // 10) * 1e6)
        torch.cuda.synchronize()
    return min(taken)


def measure_host():
    q, k, v = (torch.randn(1, 64, 1, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    turned = [each.transpose(1, 2) for each in (q, k, v)]
    with torch.no_grad():
        print(f"a tiny call on the host {microseconds(flash_attention, q, k, v):6.2f} us", end="")
        print(f", PyTorch's own {microseconds(F.scaled_dot_product_attention, *turned):6.2f}")


def main():
    print(torch.cuda.get_device_name(), torch.__version__, "cuDNN", torch.backends.cudnn.version())
    for causal in (True, False):
        measure(causal)
    measure_host()


if __name__ == "__main__":
    main()
