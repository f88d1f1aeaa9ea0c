#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares flash attention on a GPU with cuDNN through PyTorch, shape by shape in one run.

Ours is timed by time_flash_attention (tests/gpu), which says how; cuDNN in the same way: half a second of rest, then
launches alone behind 256 MB that are cleared (median of 10), then ten back to back (five of gradients; median of 5).
Needs PyTorch with cuDNN; without it only ours is shown.

    compare.py [--harness PATH] [--rows forward,backward,unordered,short,features,decode,first]
               [--variant IMPLEMENTATION:PARAMETERS ...]

A variant is a name as "bf16/cuda/sm90", after a colon its parameters; without them they are those that the library
would choose. Of several the best is compared.
"""
import argparse
import math
import os
import re
import statistics
import subprocess
import tempfile
import time

FLUSHED = 256 << 20


def shapes(name):
    """(group, B, S, H, D, causal, more, algorithm) of a set of rows; B * S = 16384 and H * D = 4096."""
    out = []

    def add(group, sizes, dims, algorithm="flash_attention", more=""):
        for d in dims:
            for s in sizes:
                for causal in (0, 1):
                    out.append((f"{group} D={d}", 16384 // s, s, 4096 // d, d, causal, more, algorithm))

    if name == "forward":
        add("forward", (2048, 4096, 8192, 16384), (128,))
        add("forward", (4096, 8192, 16384), (64,))
    elif name == "short":
        add("short", (512, 1024), (128, 64))
    elif name in ("backward", "unordered"):
        more = "unordered=1" if name == "unordered" else ""
        add(name, (2048, 4096, 8192), (128, 64), "flash_attention_vjp", more)
    elif name == "few":
        for d in (128, 64):
            for s in (2048, 8192):
                out.append((f"few D={d}", 16384 // s, s, 4096 // d, d, 1, "", "flash_attention"))
    elif name not in ("features", "decode", "first"):
        raise SystemExit(f"no rows {name}")
    return out


class Ours:
    def __init__(self, path, environment=None):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ, **environment or {}))

    def time(self, algorithm, implementation, b, s, h, d, causal, parameters="", more=""):
        """(alone, back to back, TFLOP/s alone, back to back), microseconds; None if it does not run."""
        return self.ask(f"{algorithm} {implementation} {b} {s} {s} {h} {h} {d} {causal} {parameters} {more}")

    def answer(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def ask(self, line):
        answer = self.answer(line)
        try:
            words = answer.split(": ", 1)[1].split()
            return float(words[0]), float(words[1]), float(words[3]), float(words[4])
        except (IndexError, ValueError):
            print("#", answer.strip())
            return None


class Theirs:
    def __init__(self):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.torch, self.kernel, self.backend = torch, sdpa_kernel, SDPBackend.CUDNN_ATTENTION
        self.flushed = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")

    def once(self, work, count, flush):
        first, second = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        if flush:
            self.flushed.zero_()
        first.record()
        for _ in range(count):
            work()
        second.record()
        second.synchronize()
        return first.elapsed_time(second) * 1000 / count

    def time(self, b, s, h, d, causal, backward):
        torch = self.torch
        q, k, v, g = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))

        def forward():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(causal))

        with self.kernel(self.backend):
            work = forward
            if backward:
                for t in (q, k, v):
                    t.requires_grad_()
                out = forward()
                work = lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True)
            return self.medians(work, 5 if backward else 10)

    def medians(self, work, count):
        """Alone and `count` back to back, microseconds each."""
        self.once(work, 1, True)
        time.sleep(0.5)
        alone = statistics.median(self.once(work, 1, True) for _ in range(10))
        return alone, statistics.median(self.once(work, count, False) for _ in range(5))

    def decode(self, b, s, h, kv_heads, d):
        torch = self.torch
        q = torch.randn(b, h, 1, d, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(b, kv_heads, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        with self.kernel(self.backend):
            return self.medians(
                lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), 10)


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def features(ours, implementation, parameters):
    """Ratios of ours to itself: TFLOP/s of visible scores with and without features."""
    forward = "flash_attention"
    for d in (128, 64):
        h = 4096 // d
        plain = ours.time(forward, implementation, 1, 16384, h, d, 1, parameters)
        rows = [("window (1023,0) over causal, S=16384", (1, 16384, h, d, 1, parameters, "window=1023"), plain)]
        causal = ours.time(forward, implementation, 4, 4096, h, d, 1, parameters)
        rows.append(("cap + sinks + window over causal, S=4096",
                     (4, 4096, h, d, 1, parameters, "window=4095 cap=30 sinks=1"), causal))
        rows.append(("cap over causal, S=4096", (4, 4096, h, d, 1, parameters, "cap=30"), causal))
        rows.append(("cap + sinks + window 1023 over causal, S=16384",
                     (1, 16384, h, d, 1, parameters, "window=1023 cap=30 sinks=1"), plain))
        for causal in (0, 1):
            dense = ours.time(forward, implementation, 64, 2048, h // 4, d, causal, parameters)
            rows.append((f"packed 64 of 1-4096 over dense 2048, causal={causal}",
                         (64, 4096, h // 4, d, causal, parameters, "packed=64"), dense))
        for name, line, base in rows:
            got = ours.time(forward, implementation, *line)
            if got and base:
                print(f"{name:52} D={d:3} {got[2]:6.0f} {got[3]:6.0f} of {base[2]:6.0f} {base[3]:6.0f}: "
                      f"{got[2] / base[2]:.2f} {got[3] / base[3]:.2f}")


def decode(ours, theirs):
    """One query for a long cache of keys and values; back to back cuDNN's time has PyTorch's own in it."""
    for b in (1, 8, 32):
        got = ours.ask(f"flash_attention bf16/cuda/decode {b} 1 8192 32 8 128 0")
        if not got:
            continue
        line = f"decode B={b:2} S=8192 Hq=32 Hkv=8 D=128 {got[0]:7.1f} {got[1]:7.1f} us"
        if theirs:
            there = theirs.decode(b, 8192, 32, 8, 128)
            line += f"  cuDNN {there[0]:7.1f} {there[1]:7.1f}  ratio {there[0] / got[0]:.3f} {there[1] / got[1]:.3f}"
        print(line, flush=True)


def first_use(path, implementation):
    """Milliseconds until a call of a new process is ready: nothing kept on the disk, and everything."""
    for d in (128, 64):
        for more in ("", "window=1023", "cap=30"):
            line = f"flash_attention {implementation} 4 4096 4096 {4096 // d} {4096 // d} {d} 1 {more}"
            with tempfile.TemporaryDirectory() as folder:
                took = []
                for _ in range(2):
                    ours = Ours(path, {"EJKERNEL_CUDA_CACHE": folder})
                    answer = ours.answer(line)
                    ours.process.stdin.close()
                    ours.process.wait()
                    found = re.search(r"prepared in ([0-9.]+) s", answer)
                    took.append(float(found[1]) * 1000 if found else math.nan)
            print(f"first use D={d:3} {more:12} compiling {took[0]:7.1f} ms, from the disk {took[1]:5.1f} ms", flush=True)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser()
    parser.add_argument("--harness", default=os.path.join(here, "../../build/tests/time_flash_attention"))
    parser.add_argument("--rows", default="forward,short")
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--all", action="store_true", help="show every variant")
    args = parser.parse_args()
    variants = [(v.split(":") + [""])[:2] for v in args.variant or ["bf16/cuda/sm90"]]
    ours = Ours(args.harness)
    try:
        theirs = Theirs()
        print(theirs.torch.cuda.get_device_name(), "torch", theirs.torch.__version__, "cuDNN",
              theirs.torch.backends.cudnn.version())
    except ImportError as error:
        theirs = None
        print(f"no PyTorch: {error}")
    groups = {}
    for rows in args.rows.split(","):
        if rows == "features":
            features(ours, *variants[0])
        if rows == "decode":
            decode(ours, theirs)
        if rows == "first":
            first_use(args.harness, variants[0][0])
        for group, b, s, h, d, causal, more, algorithm in shapes(rows):
            times = []
            for implementation, parameters in variants:
                got = ours.time(algorithm, implementation, b, s, h, d, causal, parameters, more)
                if got:
                    times.append((got, f"{implementation} {parameters}"))
                if got and args.all:
                    print(f"    {parameters:16} {got[2]:6.0f} {got[3]:6.0f}")
            if not times:
                continue
            best, name = min(times, key=lambda t: t[0][0] * t[0][1])
            line = f"{group:14} S={s:5} {'causal' if causal else 'all   '} {best[2]:6.0f} {best[3]:6.0f}"
            if theirs:
                there = theirs.time(b, s, h, d, causal, "vjp" in algorithm)
                ratios = [there[i] / best[i] for i in range(2)]
                groups.setdefault(group, []).extend(ratios)
                line += f"  cuDNN {best[2] / ratios[0]:6.0f} {best[3] / ratios[1]:6.0f}"
                line += f"  ratio {ratios[0]:.3f} {ratios[1]:.3f}"
            print(line, f" [{name}]" if len(variants) > 1 else "", flush=True)
    for group, ratios in groups.items():
        print(f"{group}: geometric mean {mean(ratios):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
