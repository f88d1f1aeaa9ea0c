#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tunes many shapes and measures each choice afresh against the default: the table in docs/howto/tuning.md.

    tools/tuning_table.py build/ejk [seconds of tuning a shape] [pairs of fresh measurements]

Tuning and measuring are separate processes, and choices go through a cache file as they would for a user.
Default and choice are measured in turn; the ratio of a pair is the default's time over the choice's, so above
1 means that tuning gained. Prints Markdown.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

SHAPES = [
    ("B=1,Hq=8,T=%d,D=%d" % (t, d), flags)
    for t in (64, 128, 256, 512, 1024, 2048)
    for d, flags in ((32, ""), (64, ""), (64, "--causal"), (128, ""))
] + [
    ("B=1,Hq=32,Hkv=8,T=1,S=%d,D=128" % s, "") for s in (64, 512, 2048, 8192)
] + [
    ("B=8,Hq=12,T=128,D=32", ""),
    ("B=2,Hq=16,Hkv=2,T=300,D=80", "--causal"),
    ("B=1,Hq=4,T=4096,D=64", "--causal --sliding-window 255,0"),
    ("B=1,Hq=2,T=777,S=1555,D=96", ""),
    ("B=16,Hq=4,Hkv=4,T=1,S=333,D=64", ""),
]


def ejk(command, *words, cache):
    environment = dict(os.environ, EJKERNEL_CACHE_DIR=cache)
    result = subprocess.run([command, *words, "--json"], capture_output=True, text=True, env=environment)
    if result.returncode > 1:  # 1: a tuning that kept no choice, which has a report all the same
        sys.exit(f"{' '.join(words)}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def measure(command, shape, flags, config, empty):
    words = ["bench", "flash_attention", "--shape", shape, *flags.split(), "--seconds", "0.2"]
    if config is not None:
        words += ["--config", json.dumps(config)]
    return ejk(command, *words, cache=empty)["results"][0]["time_s"]


def main():
    command = sys.argv[1]
    budget = sys.argv[2] if len(sys.argv) > 2 else "2"
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    ratios, gains = [], 0
    print("| shape | choice | default | choice | default / choice |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        cache, empty = os.path.join(folder, "tuned"), os.path.join(folder, "empty")
        for shape, flags in SHAPES:
            words = ["tune", "flash_attention", "--shape", shape, *flags.split(), "--budget", budget + "s"]
            tuned = ejk(command, *words, cache=cache)
            report = tuned["report"]
            chosen = report["candidates"][report["chosen"]]
            name = f"{shape} {flags}".strip()
            if report["chosen"] == report["default_index"]:
                ratios.append(1.0)
                print(f"| {name} | default | {chosen['median_s'] * 1e3:.3f} ms | | 1 |", flush=True)
                continue
            config = tuned["config"]
            times = [[], []]
            for _ in range(pairs):
                times[0].append(measure(command, shape, flags, None, empty))
                times[1].append(measure(command, shape, flags, config, empty))
            ratio = statistics.median(a / b for a, b in zip(*times))
            ratios.append(ratio)
            gains += ratio > 1
            text = ", ".join(f"{k} {v}" for k, v in config["fwd_params"].items())
            default, choice = (statistics.median(t) * 1e3 for t in times)
            print(f"| {name} | {text} | {default:.3f} ms | {choice:.3f} ms | {ratio:.2f} |", flush=True)
    changed = sum(r != 1.0 for r in ratios)
    print(f"\n{len(ratios)} shapes, {changed} with another choice than the default, {gains} of these faster; "
          f"least ratio {min(ratios):.2f}, geometric mean {statistics.geometric_mean(ratios):.3f}.")


if __name__ == "__main__":
    main()
