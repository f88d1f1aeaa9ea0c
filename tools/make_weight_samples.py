#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/weights: small quantised weights as other packages store them, and their values.

    make_weight_samples.py FOLDER

weights.gguf is written by the package gguf, with a tensor of each type; blocks of the types that it cannot quantise to
are random bytes. Their values, by that package, are in values.safetensors, with what bitsandbytes makes of a matrix and
its values, and a matrix packed as GPTQ and AWQ pack theirs. Needs gguf, bitsandbytes, torch and safetensors.
"""

import sys
from pathlib import Path

import bitsandbytes.functional
import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

ROWS, COLUMNS, GROUP = 3, 512, 32
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
RANDOM = ["Q4_K", "Q5_K", "Q6_K"]


def random_blocks(rng, kind):
    """Random bytes, but for float16 numbers that are to be finite."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // 256, size), dtype=np.uint8)
    at = [size - 2] if kind.name == "Q6_K" else [0, 2]
    for place in at:
        halves = rng.uniform(-0.1, 0.1, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, place : place + 2] = halves[..., None].view(np.uint8)
    blocks[0, 0, 0 if len(at) == 2 else size - 2 :][:2] = 0  # a scale of 0
    return blocks.reshape(ROWS, -1)


def write_gguf(path, rng, values):
    writer = gguf.GGUFWriter(path, "sample")
    writer.add_array("list", [1, 2, 3])
    writer.add_array("words", ["a", "bc", ""])
    matrix = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    writer.add_tensor("f32", matrix)
    writer.add_tensor("f16", matrix.astype(np.float16)[:, :5])
    values["f32"] = matrix
    for name in QUANTISED + RANDOM:
        kind = gguf.GGMLQuantizationType[name]
        blocks = quantize(matrix, kind) if name in QUANTISED else random_blocks(rng, kind)
        writer.add_tensor(name.lower(), blocks, raw_dtype=kind)
        values[name.lower()] = dequantize(blocks, kind).astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_bitsandbytes(values):
    matrix = torch.from_numpy(values["f32"])
    for name, nested in (("bnb", False), ("bnb_nested", True)):
        codes, state = bitsandbytes.functional.quantize_4bit(
            matrix, quant_type="nf4", blocksize=64, compress_statistics=nested
        )
        values[f"{name}.packed"] = codes.numpy()
        values[f"{name}.scales"] = state.absmax.numpy()
        if nested:
            values[f"{name}.nested_scales"] = state.state2.absmax.numpy()
            values[f"{name}.nested_table"] = state.state2.code.numpy()
            values[f"{name}.nested_offset"] = state.offset.reshape(1).numpy()
        values[name] = bitsandbytes.functional.dequantize_4bit(codes, state).numpy()


def pack_columns(codes, bits):
    """Words down the first axis: streams of codes from the low bits on, as GPTQ has them."""
    bit = (codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    words = bit.reshape(-1, 32, codes.shape[1]).astype(np.uint64) << np.arange(32, dtype=np.uint64)[None, :, None]
    return words.sum(1).astype(np.uint32).view(np.int32)


def pack_awq(codes):
    """Eight codes to a word along the last axis, the codes 0 2 4 6 1 3 5 7 from the low bits on."""
    eight = codes.reshape(codes.shape[0], -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].astype(np.uint64)
    return (eight << (4 * np.arange(8, dtype=np.uint64))).sum(2).astype(np.uint32).view(np.int32)


def add_words(rng, values):
    inputs, outputs = 64, 32
    scales = rng.uniform(0.01, 0.1, (inputs // GROUP, outputs)).astype(np.float16)
    order = rng.permutation(inputs)
    for name, bits in (("gptq3", 3), ("gptq4", 4), ("awq", 4)):
        codes = rng.integers(0, 2**bits, (inputs, outputs))
        zeros = rng.integers(0, 2**bits, scales.shape)
        g_idx = np.arange(inputs) // GROUP if name != "gptq4" else (order // GROUP)
        awq = name == "awq"
        values[f"{name}.packed"] = pack_awq(codes) if awq else pack_columns(codes, bits)
        stored = zeros if awq else (zeros - 1) % 2**bits
        values[f"{name}.zeros"] = pack_awq(stored) if awq else pack_columns(stored.T, bits).T.copy()
        values[f"{name}.scales"] = scales
        values[f"{name}.g_idx"] = g_idx.astype(np.int32)
        difference = (codes - zeros[g_idx]).astype(np.float32)
        values[name] = (difference * scales[g_idx].astype(np.float32)).T.copy()


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng, values = np.random.default_rng(1), {}
    write_gguf(folder / "weights.gguf", rng, values)
    add_bitsandbytes(values)
    add_words(rng, values)
    save_file(values, folder / "values.safetensors")


if __name__ == "__main__":
    main()
