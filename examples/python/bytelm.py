#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small language model served from NumPy: prefill, then a byte at a time over a cache of keys and values.

    python examples/python/bytelm.py [FOLDER] [--bytes N] [--prompt TEXT]

Attention is libejkernel's, with sinks, soft cap and, in every second layer, a window; all else is NumPy.
"""

import argparse
import json
import os
import struct
import sys
import time

import numpy as np

import libejkernel.numpy as ejk

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "bytelm")


def load(path):
    """The tensors of a safetensors file in bfloat16, as float32: these are its upper halves."""
    with open(path, "rb") as file:
        data = file.read()
    (size,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            halves = np.frombuffer(data[begin:end], "<u2").astype(np.uint32)
            tensors[name] = (halves << 16).view(np.float32).reshape(entry["shape"])
    return tensors


def normalise(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


class Model:
    """The weights, and a cache of the bytes that were read."""

    def __init__(self, folder=FOLDER):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = c = json.load(file)
        self.weights = load(os.path.join(folder, "model.safetensors"))
        half = c["head_dim"] // 2
        angle = np.arange(c["context"])[:, None] * c["rope_theta"] ** (-np.arange(half) / half)
        self.turn = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
        # Each head's keys lie together, so that a call over any number of them reads memory in order.
        room = (c["num_layers"], 2, 1, c["num_kv_heads"], c["context"], c["head_dim"])
        self.cache = np.empty(room, np.float32).swapaxes(3, 4)
        self.position = 0

    def rotate(self, x):
        cosine, sine = (each[self.position : self.position + x.shape[1]] for each in self.turn)
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    def attend(self, index, h):
        c, rows = self.config, h.shape[1]
        head = [
            (h @ self.weights[f"layers.{index}.{name}"].T).reshape(1, rows, -1, c["head_dim"])
            for name in ("wq", "wk", "wv")
        ]
        keys, values = self.cache[index]
        end = self.position + rows
        keys[:, self.position : end] = self.rotate(head[1])
        values[:, self.position : end] = head[2]
        # With fewer queries than keys, the last query sees the last key: no offset has to be given.
        out = ejk.flash_attention(
            self.rotate(head[0]),
            keys[:, :end],
            values[:, :end],
            softmax_aux=self.weights[f"layers.{index}.sinks"].reshape(-1, 1),
            causal=True,
            sliding_window=(c["sliding_window_left"], 0) if index in c["sliding_window_layers"] else None,
            logits_soft_cap=c["logits_soft_cap"],
        )
        return out.reshape(1, rows, -1) @ self.weights[f"layers.{index}.wo"].T

    def read(self, data):
        """Logits of the byte after each of those that are read."""
        c, w = self.config, self.weights
        if self.position + len(data) > c["context"]:
            raise ValueError(f"{self.position} bytes were read and {len(data)} given, expected at most {c['context']}")
        x = w["embed"][np.frombuffer(data, np.uint8)][None]
        for i in range(c["num_layers"]):
            x = x + self.attend(i, normalise(x, w[f"layers.{i}.attn_norm"], c["rms_norm_eps"]))
            h = normalise(x, w[f"layers.{i}.mlp_norm"], c["rms_norm_eps"])
            gate = h @ w[f"layers.{i}.gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"layers.{i}.up"].T)) @ w[f"layers.{i}.down"].T
        self.position += len(data)
        return (normalise(x, w["norm"], c["rms_norm_eps"]) @ w["embed"].T)[0]

    def generate(self, prompt, count):
        """The likeliest bytes after a prompt, one after the other."""
        logits = self.read(prompt)
        for _ in range(count):
            byte = bytes([int(logits[-1].argmax())])
            yield byte
            logits = self.read(byte)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=FOLDER)
    parser.add_argument("--bytes", type=int, default=120)
    parser.add_argument("--prompt")
    wish = parser.parse_args()
    prompt = wish.prompt.encode() if wish.prompt else None
    if prompt is None:
        with open(os.path.join(wish.folder, "prompt.txt"), "rb") as file:
            prompt = file.read()[:600]
    model = Model(wish.folder)
    start = time.perf_counter()
    for byte in model.generate(prompt, wish.bytes):
        sys.stdout.buffer.write(byte)
        sys.stdout.flush()
    took = time.perf_counter() - start
    print(f"\n{len(prompt)} bytes read and {wish.bytes} written in {took:.2f} s")


if __name__ == "__main__":
    main()
