#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products of other libraries as peers: `ejk bench … --against-python bench/peers/torch_products.py`.

Takes plain calls of matmul, and of grouped_matmul as a loop over the groups, on the CPU. PyTorch computes them, or with
PEER=numpy NumPy, which means OpenBLAS as a rule. The protocol is in docs/howto/benchmarking.md.
"""
import os

import numpy
from protocol import serve

KNOWN = {"lhs", "rhs", "out", "group_sizes", "transpose_rhs"}


class ByTorch:
    def __init__(self):
        import torch
        self.torch = torch
        self.name = f"PyTorch {torch.__version__}"

    def threads(self, count):
        self.torch.set_num_threads(count)

    def tensors(self, path, shape, dtype):
        kind = getattr(self.torch, dtype)
        if dtype == "bfloat16":
            return self.torch.randn(*shape, dtype=kind)
        return self.torch.from_numpy(numpy.load(path)).to(kind)

    def empty(self, shape, dtype):
        return self.torch.empty(*shape, dtype=getattr(self.torch, dtype))

    def turned(self, tensor):
        return tensor.transpose(-1, -2)

    def product(self, lhs, rhs, out):
        self.torch.mm(lhs, rhs, out=out)

    def array(self, out):
        return out.float().numpy()


class ByNumpy:
    def __init__(self):
        self.name = f"NumPy {numpy.__version__}"

    def threads(self, count):
        if os.environ.get("OPENBLAS_NUM_THREADS") != str(count):
            raise ValueError(f"OPENBLAS_NUM_THREADS is not {count}")

    def tensors(self, path, shape, dtype):
        if dtype != "float32":
            raise ValueError(f"no {dtype}")
        return numpy.load(path)

    def empty(self, shape, dtype):
        return numpy.empty(shape, dtype)

    def turned(self, tensor):
        return numpy.swapaxes(tensor, -1, -2)

    def product(self, lhs, rhs, out):
        numpy.matmul(lhs, rhs, out=out)

    def array(self, out):
        return out


def prepare(library, request):
    """A function that runs the call once, and its result; ValueError for what is not computed here."""
    arguments, dtype = request["arguments"], request["dtype"]
    if request["op"] not in ("matmul", "grouped_matmul") or request["device"] != "cpu":
        raise ValueError(f"no {request['op']} on {request['device']}")
    if set(arguments) - KNOWN:
        raise ValueError("no " + ", ".join(sorted(set(arguments) - KNOWN)))
    if len(arguments["lhs"]["shape"]) != 2:
        raise ValueError("no batches")
    library.threads(request["threads"])
    lhs, rhs = (library.tensors(request["inputs"].get(name), arguments[name]["shape"], dtype)
                for name in ("lhs", "rhs"))
    if arguments.get("transpose_rhs"):
        rhs = library.turned(rhs)
    out = library.empty(arguments["out"]["shape"], dtype)
    if request["op"] == "matmul":
        return (lambda: library.product(lhs, rhs, out)), out
    sizes = numpy.load(request["inputs"]["group_sizes"]).tolist()
    ends = numpy.cumsum([0] + sizes).tolist()
    parts = [(lhs[low:high], rhs[g], out[low:high])
             for g, (low, high) in enumerate(zip(ends, ends[1:])) if high > low]

    def loop():
        for part in parts:
            library.product(*part)
    return loop, out


def main():
    library = ByNumpy() if os.environ.get("PEER") == "numpy" else ByTorch()

    def ready(request):
        work, out = prepare(library, request)
        if request["dtype"] == "float32":
            work()
            numpy.save(request["result"], library.array(out))
        return work

    serve({"peer": library.name, "files": True}, ready)


if __name__ == "__main__":
    main()
