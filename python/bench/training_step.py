#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of a small GPT with this library's attention, beside the frameworks' own, in turns.

Four layers of width 256 with 4 heads over a text of 1024 numbers in float32: loss and all gradients. Milliseconds, the
median of repetitions, and how many times as fast. Frameworks that are missing are passed over.
"""

import os
import statistics
import time

LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY, REPETITIONS = 4, 256, 4, 1024, 256, 9
THREADS = int(os.environ.get("EJKERNEL_NUM_THREADS", "2"))


def compare(framework, own, theirs):
    times = {own: [], theirs: []}
    for step in times:
        step()
    for _ in range(REPETITIONS):
        for step, taken in times.items():
            start = time.perf_counter()
            step()
            taken.append(1e3 * (time.perf_counter() - start))
    a, b = (statistics.median(taken) for taken in times.values())
    print(f"{framework:8}{a:8.1f} ms with libejkernel {b:8.1f} ms with its own attention {b / a:6.2f} times as fast")


def measure_torch():
    import torch
    from torch.nn import functional as F

    from libejkernel.torch import flash_attention

    torch.set_num_threads(THREADS)

    def own(q, k, v):
        return flash_attention(q, k, v, causal=True)

    def theirs(q, k, v):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    def draw(*shape):
        return (torch.randn(*shape) / shape[0] ** 0.5).requires_grad_()

    embed = draw(VOCABULARY, WIDTH)
    sizes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    layers = [[draw(*size) for size in sizes] for _ in range(LAYERS)]
    data = torch.randint(VOCABULARY, (LENGTH + 1,))

    def step(attention):
        x = embed[data[:-1]]
        for qkv, out, up, down in layers:
            heads = (F.rms_norm(x, (WIDTH,)) @ qkv).view(1, LENGTH, 3, HEADS, -1)
            x = x + attention(*heads.unbind(2)).reshape(LENGTH, WIDTH) @ out
            x = x + F.gelu(F.rms_norm(x, (WIDTH,)) @ up) @ down
        loss = F.cross_entropy(x @ embed.T, data[1:])
        torch.autograd.grad(loss, [embed, *sum(layers, [])])

    compare("PyTorch", lambda: step(own), lambda: step(theirs))


def measure_jax():
    import jax
    import jax.numpy as jnp

    from libejkernel.jax import flash_attention

    def normalise(x):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    keys = iter(jax.random.split(jax.random.key(0), 32))

    def draw(*shape):
        return jax.random.normal(next(keys), shape) / shape[0] ** 0.5

    sizes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    weights = draw(VOCABULARY, WIDTH), [[draw(*size) for size in sizes] for _ in range(LAYERS)]
    data = jax.random.randint(next(keys), (LENGTH + 1,), 0, VOCABULARY)

    def made(attention):
        def loss(weights):
            embed, layers = weights
            x = embed[data[:-1]]
            for qkv, out, up, down in layers:
                heads = (normalise(x) @ qkv).reshape(1, LENGTH, 3, HEADS, -1)
                x = x + attention(*jnp.moveaxis(heads, 2, 0)).reshape(LENGTH, WIDTH) @ out
                x = x + jax.nn.gelu(normalise(x) @ up) @ down
            chosen = jax.nn.log_softmax(x @ embed.T)
            return -jnp.take_along_axis(chosen, data[1:, None], 1).mean()

        step = jax.jit(jax.grad(loss))
        return lambda: jax.block_until_ready(step(weights))

    compare(
        "JAX",
        made(lambda q, k, v: flash_attention(q, k, v, causal=True)),
        made(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True)),
    )


def main():
    for measure in (measure_torch, measure_jax):
        try:
            measure()
        except ModuleNotFoundError as missing:
            print(f"passed over: no {missing.name}")


if __name__ == "__main__":
    main()
