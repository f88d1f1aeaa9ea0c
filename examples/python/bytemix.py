#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A hybrid language model, or bytelm, that reads some bytes of any number of texts at once.

    python examples/python/bytemix.py [FOLDER]

Keys and values lie in pages, states of recurrent layers in slots; a batch says which belong to which text. Layers are
described in examples/data/bytemix/README.md. Layers and products are libejkernel's.
"""

import os
import sys
from typing import NamedTuple

import numpy as np
from bytelm import load, normalise

import libejkernel.numpy as ejk

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "bytemix")
PAGE, CONTEXT, EPSILON = 16, 1024, 1e-6

BYTELM = {"attn_norm": "norm1", "mlp_norm": "norm2", "gate": "mlp.w_gate", "up": "mlp.w_up", "down": "mlp.w_down"}
BYTELM |= {"wq": "mix.w_q", "wk": "mix.w_k", "wv": "mix.w_v", "wo": "mix.w_o", "sinks": "mix.sinks"}


class Batch(NamedTuple):
    """Texts of a step: 0 and the ends of their bytes, their lengths so far, [texts, pages], [texts]."""

    starts: np.ndarray
    lengths: np.ndarray
    table: np.ndarray
    slots: np.ndarray


def heads(x, count):
    return x.reshape(len(x), count, -1)


def silu(x):
    return x / (1 + np.exp(-x))


class Layer:
    """Weights by their names in the file, and the caches and states of all texts."""

    def __init__(self, weights, index, pages, slots):
        bytelm = "wq" in weights
        self.w = w = {BYTELM.get(name, name): tensor for name, tensor in weights.items()}
        zeros = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
        if "mix.sinks" in w:
            self.mix, count = self.attention, len(w["mix.sinks"])
            self.count, self.kv = count, len(w["mix.w_k"]) * count // len(w["mix.w_q"])
            self.window = None if bytelm and index % 2 == 0 else 128
            self.cap = 30.0 if bytelm else None
            self.keys, self.values = (zeros(pages, PAGE, self.kv, len(w["mix.w_q"]) // count) for _ in range(2))
        elif "mix.w_kv" in w:
            self.mix, self.latents = self.latent_attention, zeros(pages, PAGE, len(w["mix.w_kv"]))
        else:
            self.mix = self.kimi_delta if "mix.w_f1" in w else self.gated_delta
            if "mix.conv" not in w:
                w["mix.conv"] = np.concatenate([w.pop(f"mix.conv_{name}") for name in "qkv"])
                w["mix.w_qkv"] = np.concatenate([w.pop(f"mix.w_{name}") for name in "qkv"])
            self.before = zeros(slots, len(w["mix.conv"]), w["mix.conv"].shape[1] - 1)
            self.state = zeros(slots, 4, 64, 64)

    def states(self):
        return (self.before, self.state) if hasattr(self, "state") else ()

    def to(self, name, h):
        return ejk.matmul(h, self.w[name], transpose_rhs=True)

    def attention(self, h, batch, rotate):
        q, k, v = (heads(self.to(f"mix.w_{n}", h), self.count if n == "q" else self.kv) for n in "qkv")
        return ejk.chunked_prefill_paged_decode(
            rotate(q), rotate(k), v, self.keys, self.values, batch.lengths, batch.table, batch.starts,
            softmax_aux=self.w["mix.sinks"].reshape(-1, 1), sliding_window=self.window, logits_soft_cap=self.cap,
        )  # fmt: skip

    def convolved(self, h, batch):
        """Queries, keys and values as the one entry of a batch."""
        x = ejk.causal_conv1d(
            self.to("mix.w_qkv", h)[None], self.w["mix.conv"], cu_seqlens=batch.starts, activation="silu",
            conv_state=self.before, state_indices=batch.slots,
        )  # fmt: skip
        keys = (x.shape[2] - 256) // 2
        return (part.reshape(1, len(h), -1, 64) for part in np.split(x, [keys, 2 * keys], 2))

    def raw(self, batch):
        return {
            "cu_seqlens": batch.starts, "A_log": self.w["mix.A_log"], "use_beta_sigmoid": True,
            "state": self.state, "state_indices": batch.slots,
        }  # fmt: skip

    def gated_delta(self, h, batch, rotate):
        beta, decay = self.to("mix.w_beta", h)[None], self.to("mix.w_a", h)[None]
        bias = self.w["mix.dt_bias"]
        o = ejk.gated_delta_rule(*self.convolved(h, batch), beta, decay, dt_bias=bias, **self.raw(batch))
        return ejk.gated_rms_norm(o[0], heads(self.to("mix.w_z", h), 4), self.w["mix.o_norm"], eps=EPSILON)

    def kimi_delta(self, h, batch, rotate):
        decay = heads(self.to("mix.w_f2", self.to("mix.w_f1", h)), 4)[None]
        gate = heads(self.to("mix.w_g2", self.to("mix.w_g1", h)), 4)
        bias = self.w["mix.dt_bias"].reshape(4, -1)
        beta = self.to("mix.w_beta", h)[None]
        o = ejk.kda_attention(*self.convolved(h, batch), beta, decay, dt_bias=bias, **self.raw(batch))
        return ejk.gated_rms_norm(o[0], gate, self.w["mix.o_norm"], activation="sigmoid", eps=EPSILON)

    def latent_attention(self, h, batch, rotate):
        q, kv = heads(self.to("mix.w_q", h), 4), self.to("mix.w_kv", h)
        rope = rotate(kv[:, None, 64:])[:, 0]
        latent = normalise(kv[:, :64], self.w["mix.kv_norm"], EPSILON)
        absorbed = np.einsum("thn,rhn->thr", q[..., :32], self.w["mix.w_kc"], order="C")
        out = ejk.multi_latent_ragged_page_attention(
            absorbed, rotate(q[..., 32:]), latent, rope, self.latents, batch.lengths, batch.table.reshape(-1),
            batch.starts, np.array([0, 0, len(batch.lengths)], np.int32), softmax_scale=0.125,
        )  # fmt: skip
        return np.einsum("thr,rhn->thn", out, self.w["mix.w_vc"])

    def mlp(self, h):
        if "mlp.w_router" not in self.w:
            return self.to("mlp.w_down", silu(self.to("mlp.w_gate", h)) * self.to("mlp.w_up", h))
        logits = self.to("mlp.w_router", h)
        best = np.argsort(-logits, axis=1, kind="stable")[:, :2].astype(np.int32)
        weight = np.exp(np.take_along_axis(logits, best, 1) - logits.max(1, keepdims=True))
        weight /= weight.sum(1, keepdims=True)
        return ejk.moe(h, best, weight, self.w["mlp.w_gate_up"], self.w["mlp.w_down"], transpose=True)

    def apply(self, x, batch, rotate):
        mixed = self.mix(normalise(x, self.w["norm1"], EPSILON), batch, rotate)
        x = x + self.to("mix.w_o", mixed.reshape(len(x), -1))
        return x + self.mlp(normalise(x, self.w["norm2"], EPSILON))


class Model:
    def __init__(self, folder=FOLDER, pages=CONTEXT // PAGE, slots=1):
        tensors = load(os.path.join(folder, "model.safetensors"))
        self.embed, self.norm = tensors.pop("embed"), tensors.pop("norm")
        layers = [{} for _ in range(4)]
        for name, tensor in tensors.items():
            _, index, rest = name.split(".", 2)
            layers[int(index)][rest] = tensor
        self.layers = [Layer(weights, i, pages, slots) for i, weights in enumerate(layers)]

    def copy_slot(self, source, target):
        for layer in self.layers:
            for state in layer.states():
                state[target] = state[source]

    def step(self, data, batch):
        """Logits of the byte after each of those that are read; texts whose first bytes they are start anew."""
        rows = np.diff(batch.starts)
        before = batch.lengths - rows
        at = np.concatenate([start + np.arange(count) for start, count in zip(before, rows)])
        for layer in self.layers:
            for state in layer.states():
                state[batch.slots[before == 0]] = 0

        def rotate(x):
            half = x.shape[-1] // 2
            angle = at[:, None, None] * 10000.0 ** (-np.arange(half) / half)
            cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
            a, b = np.split(x, 2, -1)
            return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

        x = self.embed[np.frombuffer(data, np.uint8)]
        for layer in self.layers:
            x = layer.apply(x, batch, rotate)
        return normalise(x, self.norm, EPSILON) @ self.embed.T

    def read(self, data, position=0):
        """For one text, which has all pages and slot 0."""
        ints = lambda *numbers: np.array(numbers, np.int32)  # noqa: E731
        table = np.arange(CONTEXT // PAGE, dtype=np.int32)[None]
        return self.step(data, Batch(ints(0, len(data)), ints(position + len(data)), table, ints(0)))


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else FOLDER
    with open(os.path.join(folder, "prompt.txt"), "rb") as file:
        prompt = file.read()
    logits = Model(folder).read(prompt)[:-1].astype(np.float64)
    chosen = logits[np.arange(len(logits)), np.frombuffer(prompt, np.uint8)[1:]]
    print(f"{(np.log(np.exp(logits).sum(1)) - chosen).mean():.6f} nats a byte of {len(prompt)}")


if __name__ == "__main__":
    main()
