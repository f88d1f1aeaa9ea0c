#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tiny language model of bytes, fitted to a text in JAX: python examples/python/fit_jax.py [TEXT [STEPS]]

Two layers of attention by libejkernel, with grouped heads, a window in the second, and sinks that are fitted too; all
under jit and grad.
"""

import os
import sys

import jax
import jax.numpy as jnp

from libejkernel.jax import flash_attention

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "bytelm", "prompt.txt")
WIDTH, HEADS, KV_HEADS, LENGTH = 64, 4, 2, 64


def initial(key):
    """Weights of the model, a dict of each layer's in a list."""
    keys = iter(jax.random.split(key, 16))
    draw = lambda *shape: jax.random.normal(next(keys), shape) / shape[0] ** 0.5  # noqa: E731
    layer = lambda: {  # noqa: E731
        "qkv": draw(WIDTH, WIDTH // HEADS * (HEADS + 2 * KV_HEADS)),
        "out": draw(WIDTH, WIDTH),
        "sinks": jnp.zeros((HEADS, 1)),
        "up": draw(WIDTH, 4 * WIDTH),
        "down": draw(4 * WIDTH, WIDTH),
    }
    return {"embed": draw(256, WIDTH) * 4, "places": draw(LENGTH, WIDTH), "layers": [layer(), layer()]}


def normalise(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def loss(weights, data, attention=flash_attention):
    """Nats a byte of texts [B, LENGTH + 1], after the first of each."""
    x = weights["embed"][data[:, :-1]] + weights["places"]
    for index, w in enumerate(weights["layers"]):
        heads = (normalise(x) @ w["qkv"]).reshape(*x.shape[:2], HEADS + 2 * KV_HEADS, -1)
        q, k, v = jnp.split(heads, [HEADS, HEADS + KV_HEADS], 2)
        window = (15, 0) if index == 1 else None
        out = attention(q, k, v, softmax_aux=w["sinks"], causal=True, sliding_window=window)
        x = x + out.reshape(x.shape) @ w["out"]
        x = x + jax.nn.gelu(normalise(x) @ w["up"]) @ w["down"]
    chosen = jax.nn.log_softmax(normalise(x) @ weights["embed"].T)
    return -jnp.take_along_axis(chosen, data[:, 1:, None], 2).mean()


@jax.jit
def step(weights, moments, count, data):
    """One step of Adam."""
    value, gradients = jax.value_and_grad(loss)(weights, data)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g * g, moments[1], gradients)
    rate = 3e-3 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    weights = jax.tree.map(lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), weights, first, second)
    return weights, (first, second), value


def fit(text, steps, report=lambda count, value: None):
    """The losses of the steps, each on eight pieces of a text."""
    key = jax.random.key(0)
    weights = initial(key)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    moments, values = (zeros, zeros), []
    data = jnp.frombuffer(text, jnp.uint8).astype(jnp.int32)
    for count in range(1, steps + 1):
        starts = jax.random.randint(jax.random.fold_in(key, count), (8, 1), 0, len(text) - LENGTH)
        weights, moments, value = step(weights, moments, count, data[starts + jnp.arange(LENGTH + 1)])
        values.append(float(value))
        report(count, values[-1])
    return values


def main():
    with open(sys.argv[1] if sys.argv[1:] else TEXT, "rb") as file:
        text = file.read()
    print("step, nats a byte")
    fit(text, int(sys.argv[2]) if sys.argv[2:] else 200, lambda n, value: n % 20 or print(f"{n:4d}  {value:.3f}"))


if __name__ == "__main__":
    main()
