#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention as a peer: `ejk bench … --against-python bench/peers/torch_sdpa.py`.

Takes dense calls of flash_attention and flash_attention_vjp that are causal or not, on the CPU or a GPU (there by
cuDNN), with inputs of its own: normal numbers in [B, H, T, D]. The protocol is in docs/howto/benchmarking.md.
"""
import torch
from protocol import serve, time_on_cpu
from torch.nn.attention import SDPBackend, sdpa_kernel

FLUSHED = 256 << 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def tensors(arguments):
    return {name: value for name, value in arguments.items() if isinstance(value, dict) and "shape" in value}


def prepare(request):
    """A function that runs the call once; ValueError for what is not computed here."""
    arguments, backward = request["arguments"], request["op"] == "flash_attention_vjp"
    known = {"query", "key", "value", "out", "lse", "d_out", "d_query", "d_key", "d_value", "causal",
             "deterministic"}
    if request["op"] not in ("flash_attention", "flash_attention_vjp"):
        raise ValueError(f"no {request['op']}")
    if set(arguments) - known:
        raise ValueError("no " + ", ".join(sorted(set(arguments) - known)))
    device, dtype, causal = request["device"], DTYPES[request["dtype"]], bool(arguments.get("causal"))
    given = [tensors(arguments)[name]["shape"] for name in ("query", "key", "value")]
    query, key, value = (torch.randn(b, h, t, d, device=device, dtype=dtype) for b, t, h, d in given)
    grouped = query.shape[1] != key.shape[1]

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

    if not backward:
        return forward
    for tensor in (query, key, value):
        tensor.requires_grad_()
    out = forward()
    cotangent = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (query, key, value), cotangent, retain_graph=True)


class OnGpu:
    """By events, as `ejk bench` does it: alone behind memory that is set, or in a row."""

    def __init__(self):
        self.flushed = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")

    def time(self, work, request):
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if request["alone"]:
            self.flushed.zero_()
        first.record()
        for _ in range(request["run"]):
            work()
        second.record()
        second.synchronize()
        return first.elapsed_time(second) * 1e-3 / request["run"]


def main():
    on_gpu = torch.cuda.is_available()
    name = torch.backends.cudnn.version() if on_gpu else ""
    greeting = {"peer": f"PyTorch {torch.__version__}" + (f" with cuDNN {name}" if on_gpu else "")}
    backends = [SDPBackend.CUDNN_ATTENTION] if on_gpu else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    clock = time_on_cpu

    def ready(request):
        nonlocal clock
        if request["device"] == "cpu":
            torch.set_num_threads(request["threads"])
        clock = time_on_cpu if request["device"] == "cpu" else OnGpu().time
        return prepare(request)

    with sdpa_kernel(backends):
        serve(greeting, ready, lambda work, request: clock(work, request))


if __name__ == "__main__":
    main()
