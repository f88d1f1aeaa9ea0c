#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A peer for the tests of `ejk bench --against-python`: attention of one head in plain Python, from the files it is
given.

What it is to do wrong is told by PEER_FAULT: "hello", "garbage", "silent", "seconds" or "wrong".
"""
import array
import json
import math
import os
import struct
import sys
import time

FAULT = os.environ.get("PEER_FAULT", "")


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    return list(array.array("f", data[10 + struct.unpack("<H", data[8:10])[0]:]))


def write_npy(path, values, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple(shape)}}}"
    header += " " * (63 - (len(header) + 10) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(array.array("f", values).tobytes())


def attend(query, key, value, dim):
    out = []
    for at in range(0, len(query), dim):
        row = query[at:at + dim]
        scores = [sum(a * b for a, b in zip(row, key[k:k + dim])) / math.sqrt(dim) for k in range(0, len(key), dim)]
        weights = [math.exp(score) for score in scores]
        total = sum(weights)
        out += [sum(w * value[i * dim + d] for i, w in enumerate(weights)) / total for d in range(dim)]
    return out


def answer(value):
    print(json.dumps(value), flush=True)


def main():
    answer({"name": "nobody"} if FAULT == "hello" else {"peer": "plain Python", "files": True})
    inputs = []
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            start = time.perf_counter()
            for _ in range(request["run"]):
                attend(*inputs)
            took = (time.perf_counter() - start) / request["run"]
            answer({"took": took} if FAULT == "seconds" else {"seconds": took})
        elif request["op"] != "flash_attention" or "causal" in request["arguments"]:
            answer({"skip": "only plain attention"})
        elif FAULT == "garbage":
            print("no JSON", flush=True)
        elif FAULT == "silent":
            return
        else:
            shape = request["arguments"]["query"]["shape"]
            inputs = [read_npy(request["inputs"][name]) for name in ("query", "key", "value")] + [shape[3]]
            out = attend(*inputs)
            write_npy(request["result"], [2 * x for x in out] if FAULT == "wrong" else out, shape)
            answer({"ready": True})


if __name__ == "__main__":
    main()
