#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of what `ejk bench --json` measured: rows of one report, or of two side by side.

    compare.py REPORT.json               each row's rate and share, and the peer's (--against-python) over it
    compare.py BEFORE.json AFTER.json    rows that both have: the time of the first over that of the second

Rows belong together by their problem and number of threads. Of quotients the geometric mean and the least are told,
above 1 where the library, or the second report, is faster. On a GPU each is told alone / in a row.
"""
import argparse
import json
import math
import sys


def read(path):
    with (sys.stdin if path == "-" else open(path)) as file:
        report = json.load(file)
    if report.get("schema") != 1:
        raise SystemExit(f"{path}: schema {report.get('schema')}, expected 1")
    return report["results"]


def times(row):
    """The time, and on a GPU that in a row too."""
    return [row["time_s"]] + ([row["in_a_row"]["time_s"]] if "in_a_row" in row else [])


def peer_quotients(row):
    """The peer's time over ours, or nothing where it was not measured."""
    if "peer_time_s" not in row:
        return []
    return [1 / row["time_over_peer"]] + ([1 / row["in_a_row"]["time_over_peer"]] if "in_a_row" in row else [])


def told(values, form):
    return " / ".join(format(value, form) for value in values)


def rates(row):
    if not row["flops"]:
        return ""
    scale, unit = (1e-12, "TFLOP/s") if "in_a_row" in row else (1e-9, "GFLOP/s")
    return told([row["flops"] / seconds * scale for seconds in times(row)], ".0f") + " " + unit


def share(row):
    of = "bandwidth" if row["cold"] else "peak"
    return f"{100 * (row[f'share_of_{of}'] or 0):.1f} % of {of}"


def remark(row):
    counted = row["undisturbed_repetitions"]
    text = f" ({counted} of {row['repetitions']})" if counted is not None else ""
    return text + "".join(f"; {warning}" for warning in row["warnings"])


def summary(quotients, what):
    """Geometric mean and least, for each way of measuring."""
    if not quotients:
        return
    columns = list(zip(*quotients))
    means = [math.exp(sum(map(math.log, column)) / len(column)) for column in columns]
    print(f"{what}, {len(quotients)} rows: geometric mean {told(means, '.3f')}, "
          f"least {told([min(column) for column in columns], '.3f')}")


def one(rows):
    quotients = {}
    for row in rows:
        line = f"{row['problem']}, {row['threads']} threads: {rates(row)}, {share(row)}{remark(row)}"
        if "time_per_flop_over_beside" in row:
            line += f"; {row['time_per_flop_over_beside']:.3f} over {row['beside']}"
        if "peer_skips" in row:
            line += f"; {row['peer']} does not: {row['peer_skips']}"
        found = peer_quotients(row)
        if found:
            line += f"; {told(found, '.3f')} of {row['peer']}"
            quotients.setdefault(row["peer"], []).append(found)
        print(line)
    for peer, found in quotients.items():
        summary(found, f"over {peer}")


def two(before, after):
    old = {(row["problem"], row["threads"]): row for row in before}
    quotients = []
    for row in after:
        first = old.pop((row["problem"], row["threads"]), None)
        if first is None:
            print(f"{row['problem']}, {row['threads']} threads: only in the second report")
            continue
        quotients.append([a / b for a, b in zip(times(first), times(row))])
        print(f"{row['problem']}, {row['threads']} threads: {told(quotients[-1], '.3f')}, "
              f"{share(first)}{remark(first)}, then {share(row)}{remark(row)}")
    for problem, threads in old:
        print(f"{problem}, {threads} threads: only in the first report")
    summary(quotients, "before over after")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", metavar="REPORT.json", help="one or two; - is standard input")
    reports = [read(path) for path in parser.parse_args().reports]
    if len(reports) > 2:
        parser.error("one or two reports are compared")
    one(*reports) if len(reports) == 1 else two(*reports)


if __name__ == "__main__":
    main()
