# SPDX-License-Identifier: Apache-2.0
"""What the peers in this folder share: their side of the protocol of docs/howto/benchmarking.md."""
import json
import sys
import time


def time_on_cpu(work, request):
    start = time.perf_counter()
    for _ in range(request["run"]):
        work()
    return (time.perf_counter() - start) / request["run"]


def answer(value):
    print(json.dumps(value), flush=True)


def serve(greeting, prepare, time_runs=time_on_cpu):
    """Answers requests until there are none.

    prepare(request) makes a function that runs the call once; it raises ValueError or RuntimeError where this peer
    computes no such call. time_runs(work, request) is the seconds that a run takes of request["run"] ones.
    """
    answer(greeting)
    work = None
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            answer({"seconds": time_runs(work, request)})
            continue
        try:
            work = prepare(request)
            work()
            answer({"ready": True})
        except (ValueError, RuntimeError) as error:
            answer({"skip": str(error).splitlines()[0]})
