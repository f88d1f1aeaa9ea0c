#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention over pages on CPUs as a peer: `ejk bench … --against-python bench/peers/vllm_cpu.py`.

Takes calls of unified_attention and page_attention without options, in float32, bfloat16 and float16, with inputs of
its own in the layout that it chooses: pages in random order, each sequence with as many keys as its table holds. Needs
PyTorch; EJK_VLLM_CPU is the file vllm/_C_AVX512.abi3.so (or _C_AVX2) of the package vllm-cpu. The protocol is in
docs/howto/benchmarking.md.
"""
import math
import os

import torch
from protocol import serve

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KNOWN = {"query", "key_cache", "value_cache", "kv_lens", "context_lens", "block_tables", "query_start_loc", "out"}


def layout(dtype, page, dim):
    """As vLLM chooses it."""
    if dim % 32 == 0 and page % 32 == 0:
        amx = torch.cpu._is_amx_tile_supported() and dtype == torch.bfloat16
        return "amx" if amx else "vec"
    return "vec16"


def prepare(request):
    """A function that runs the call once; ValueError for what is not computed here."""
    arguments, by_head = request["arguments"], request["op"] == "page_attention"
    if request["op"] not in ("unified_attention", "page_attention"):
        raise ValueError(f"no {request['op']}")
    if set(arguments) - KNOWN:
        raise ValueError("no " + ", ".join(sorted(set(arguments) - KNOWN)))
    dtype = DTYPES[request["dtype"]]
    tokens, heads, dim = arguments["query"]["shape"]
    pages, kv_heads, page, _ = arguments["key_cache"]["shape"]
    if not by_head:
        page, kv_heads = kv_heads, page
    sequences, width = arguments["block_tables"]["shape"]
    isa, keys, rows = layout(dtype, page, dim), width * page, tokens // sequences
    query = torch.rand(tokens, heads, dim).mul(2).sub(1).to(dtype)
    cache = torch.zeros(pages, kv_heads, 2 * page, dim, dtype=dtype)
    key_cache, value_cache = cache.chunk(2, dim=2)
    for first in range(0, pages * page, 4096):
        slots = torch.arange(first, min(first + 4096, pages * page))
        key, value = (torch.rand(len(slots), kv_heads, dim).mul(2).sub(1).to(dtype) for _ in range(2))
        torch.ops._C.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slots, isa, 1.0, 1.0, "auto")
    order = torch.randperm(pages).repeat(math.ceil(sequences * width / pages))[:sequences * width]
    table = order.reshape(sequences, width).to(torch.int32)
    starts = torch.arange(0, tokens + 1, rows, dtype=torch.int32)
    lengths = torch.full((sequences,), keys, dtype=torch.int32)
    plan = torch.ops._C.get_scheduler_metadata(sequences, heads, kv_heads, dim, lengths, dtype, starts, True, -1, isa,
                                               True, None, "auto")
    out = torch.empty_like(query)
    return lambda: torch.ops._C.cpu_attention_with_kv_cache(
        query, key_cache, value_cache, out, starts, lengths, dim**-0.5, True, None, -1, table, 0.0, plan, None, None,
        1.0, 1.0, "auto")


def ready(request):
    if request["device"] != "cpu":
        raise ValueError("CPUs only")
    torch.set_num_threads(request["threads"])
    return prepare(request)


if __name__ == "__main__":
    torch.ops.load_library(os.environ["EJK_VLLM_CPU"])
    serve({"peer": f"vLLM for CPUs on PyTorch {torch.__version__}"}, ready)
