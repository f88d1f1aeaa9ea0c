#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continuous batching from NumPy, as examples/serve does it: python examples/python/serve.py [FOLDER [REQUESTS]]"""

import os
import sys
import time
from collections import Counter

import numpy as np
from bytemix import CONTEXT, FOLDER, PAGE, Batch, Model


class Request:
    def __init__(self, prompt, count, arrival=0.0):
        self.prompt, self.data, self.end, self.arrival = prompt, bytearray(prompt), len(prompt) + count, arrival
        self.read, self.pages, self.slot, self.share, self.first, self.preempted = 0, [], None, 0, None, 0


class Server:
    def __init__(self, model, pages=256, slots=24, rows=128, running=16):
        self.model, self.rows, self.most, self.free, self.slots = model, rows, running, [*range(pages)], [*range(slots)]
        self.requests, self.prefixes, self.users = [], {}, Counter()

    def texts(self, running):
        return [r for r in self.requests if len(r.data) < r.end and (r.slot is not None) == running]

    def release(self, pages, slot):
        self.users.subtract(pages)
        self.free += [page for page in pages if not self.users[page]]
        self.slots.append(slot)

    def drop_prefix(self):
        self.release(*self.prefixes.pop(next(iter(self.prefixes))))

    def stop(self, r):
        self.release(r.pages, r.slot)
        r.read, r.pages, r.slot = 0, [], None

    def share(self, pages, source, target):
        self.users.update(pages)
        self.model.copy_slot(source, target)
        return list(pages), target

    def start(self, r):
        if not self.slots:
            self.drop_prefix()
        r.slot, known = self.slots.pop(), [p for p in self.prefixes if r.data.startswith(p) and len(p) < len(r.data)]
        if known:
            r.pages, _ = self.share(*self.prefixes[max(known, key=len)], r.slot)
            r.read = len(r.pages) * PAGE
        common = [os.path.commonprefix([r.prompt[:-1], other.prompt[:-1]]) for other in self.requests if other != r]
        r.share = max(map(len, common), default=0) // PAGE * PAGE

    def reserve(self, r, length, batch):
        """Pages: free ones, those of prefixes, or those of the youngest text, which may be this one."""
        while len(r.pages) * PAGE < length and r.slot is not None:
            if self.free:
                r.pages.append(self.free.pop())
                self.users[r.pages[-1]] = 1
            elif self.prefixes:
                self.drop_prefix()
            else:
                youngest = [other for other in self.texts(True) if other not in batch][-1]
                youngest.preempted += 1
                self.stop(youngest)
        return r.slot is not None

    def step(self):
        """Reads a byte of each text that is written, then chunks of prompts; False if there is nothing to do."""
        for r in self.texts(False)[: self.most - len(self.texts(True))]:
            self.start(r)
        batch, left = {}, self.rows
        for r in sorted(self.texts(True), key=lambda each: len(each.data) - each.read > 1):
            rows = min(len(r.data) - r.read, left, r.share - r.read if r.share > r.read else CONTEXT)
            if rows and r.slot is not None and self.reserve(r, r.read + rows, batch):
                batch[r], left = rows, left - rows
        table = [[*r.pages, *[0] * (CONTEXT // PAGE - len(r.pages))] for r in batch]
        ends, slots = np.cumsum([0, *batch.values()]), [r.slot for r in batch]
        numbers = ends, [r.read + rows for r, rows in batch.items()], table, slots
        data = b"".join(r.data[r.read : r.read + rows] for r, rows in batch.items())
        logits = self.model.step(data, Batch(*(np.array(each, np.int32) for each in numbers))) if batch else ()
        for r, end in zip(batch, ends[1:]):
            r.read += batch[r]
            if r.read == r.share and self.slots and r.prompt[: r.read] not in self.prefixes:
                self.prefixes[r.prompt[: r.read]] = self.share(r.pages, r.slot, self.slots.pop())
            if r.read == len(r.data):
                r.data.append(logits[end - 1].argmax())
                r.first = r.first or time.perf_counter()
                if len(r.data) == r.end:
                    self.stop(r)
        return bool(batch)


def main():
    server, start = Server(Model(*sys.argv[1:2], pages=256, slots=24)), time.perf_counter()
    with open(sys.argv[2] if sys.argv[2:] else os.path.join(FOLDER, "..", "requests.txt"), encoding="utf-8") as file:
        lines = [line.rstrip("\n").replace("\\n", "\n").encode().split(b" ", 2) for line in file]
    while server.step() or lines:
        while lines and start + int(lines[0][0]) / 1000 <= time.perf_counter():
            arrival, count, prompt = lines.pop(0)
            server.requests.append(Request(prompt, int(count), start + int(arrival) / 1000))
    for r in server.requests:
        print(f"after {r.first - r.arrival:.3f} s: {r.prompt.decode()}|{r.data[len(r.prompt) :].decode()}")
    rate = sum(r.end - len(r.prompt) for r in server.requests) / (time.perf_counter() - start)
    print(f"{rate:.0f} tokens a second")


if __name__ == "__main__":
    main()
