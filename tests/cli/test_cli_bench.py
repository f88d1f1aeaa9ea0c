#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Suites, peers and tables of `ejk bench` from outside. Usage: test_cli_bench.py <ejk> <source folder>"""
import ast
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from command import EJK, SOURCE, ejk, parsed

SUITES = sorted(glob.glob(os.path.join(SOURCE, "bench", "suites", "*.txt")))
TORCH_PEER = os.path.join(SOURCE, "bench", "peers", "torch_sdpa.py")
PEER = os.path.join(SOURCE, "tests", "cli", "plain_peer.py")
COMPARE = os.path.join(SOURCE, "bench", "compare.py")


def calls_of(path):
    with open(path) as file:
        return [line.split("#")[0].strip() for line in file if line.split("#")[0].strip()]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)


class Suites(Folder):
    def test_of_the_project(self):
        """Every line of every suite can be planned, and is the call that it says."""
        self.assertTrue(SUITES)
        for path in SUITES:
            with self.subTest(os.path.basename(path)):
                report = parsed("bench", "--suite", path, "--plan", "--threads", "1")
                self.assertEqual(report["schema"], 1)
                rows, calls = report["results"], calls_of(path)
                self.assertEqual([row["op"] for row in rows], [call.split(":")[0] for call in calls])
                self.assertEqual(len({row["problem"] for row in rows}), len(calls), "a row is there twice")
                for row in rows:
                    self.assertTrue(row["implementation"])
                    self.assertGreater(row["flops"] or row["bytes"], 0)  # what only copies has no FLOPs

    def test_every_line_of_a_suite(self):
        path = self.write("calls.txt", """# two operations
flash_attention:Hq=2,T=32,D=16,causal   # the first

attention_merge:N=4,T=8,Hq=2,Dv=16
flash_attention_vjp:Hq=2,T=32,D=16,dtype=bf16,layout=bhtd
""")
        words = ["bench", "--suite", path, "--threads", "1,2", "--repeat", "1", "--against", "reference", "--plain"]
        rows = parsed(*words)["results"]
        self.assertEqual([(row["op"], row["threads"]) for row in rows],
                         [(op, threads) for op in ("flash_attention", "attention_merge", "flash_attention_vjp")
                          for threads in (1, 2)])
        for row in rows:
            self.assertGreater(row["time_s"], 0)
            self.assertLess(row["error_against"], 0.02)
            self.assertGreater(row["time_per_flop_over_beside"], 0)
            self.assertGreater(row["host_ns"], 0)
        self.assertEqual(rows[0]["beside"], "flash_attention:B=1,Hq=2,Hkv=2,T=32,S=32,D=16,Dv=16,dtype=float32")
        self.assertEqual(rows[-1]["arguments"]["d_key"]["shape"], [1, 32, 2, 16])
        self.assertEqual(set(rows[-1]["errors_against"]), {"d_query", "d_key", "d_value"})
        text = ejk(*words).stdout
        for row in rows:
            self.assertIn(row["problem"], text)

    def test_rows_are_told_as_they_are_measured(self):
        calls = "flash_attention:Hq=1,T=8,D=8\nattention_merge:N=4,T=8,Hq=2,Dv=16\n"
        path = self.write("calls.txt", calls + "flash_attention:Hq=8,T=4096,D=128\n" * 50)
        words = [EJK, "bench", "--suite", path, "--threads", "1", "--repeat", "1", "--json"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
            told = [bench.stderr.readline() for _ in range(2)]
            bench.send_signal(signal.SIGINT)
            out, rest = bench.communicate()
        self.assertRegex(told[0], r"^1 of 52: flash_attention:.* 1 thread: \S+ \ws, \S+ % of the peak")
        self.assertRegex(told[1], r"^2 of 52: attention_merge:.* 1 thread: \S+ \ws, .* % of read bandwidth\n$")
        self.assertEqual(bench.returncode, 2)
        rows = json.loads(out)["results"]
        self.assertIn(f"interrupted after {len(rows)} of 52 rows", rest)
        self.assertEqual([row["op"] for row in rows[:2]], ["flash_attention", "attention_merge"])
        self.assertLess(len(rows), 10)

    def test_text_of_plans(self):
        text = ejk("bench", "--suite", SUITES[0], "--plan", "--threads", "1").stdout
        self.assertEqual(len(text.splitlines()), len(calls_of(SUITES[0])))

    def test_what_cannot_be_measured_is_left_out(self):
        path = self.write("calls.txt", f"flash_attention:Hq=1,T={1 << 36},D=64\nflash_attention:Hq=1,T=8,D=8\n")
        answer = ejk("bench", "--suite", path, "--threads", "1", "--repeat", "1", "--json", status=2)
        self.assertEqual([row["shape"] for row in json.loads(answer.stdout)["results"]],
                         ["B=1,Hq=1,Hkv=1,T=8,S=8,D=8,Dv=8"])
        self.assertIn("memory", answer.stderr)
        self.assertIn(f"T={1 << 36}", answer.stderr)

    def test_refused_suites(self):
        for text, part in (("", "no calls"), ("# nothing\n", "no calls"),
                           ("flash_attention:T=8\n", "calls.txt:1: "),
                           ("\nflash_attention:Hq=1,T=8,D=8\nwalk:T=8\n", "calls.txt:3: ")):
            error = ejk("bench", "--suite", self.write("calls.txt", text), status=2).stderr
            self.assertEqual(error.count("\n"), 1, error)
            self.assertIn(part, error)
        error = ejk("bench", "flash_attention", "--suite", SUITES[0], "--shape", "T=8,Hq=1,D=8", status=2).stderr
        self.assertIn("--suite brings its own calls", error)


class Peers(Folder):
    CALL = ["bench", "flash_attention", "--shape", "Hq=1,T=8,D=8", "--threads", "1", "--repeat", "3",
            "--against-python", PEER]

    def test_a_peer_is_timed_in_turn(self):
        row = parsed(*self.CALL)["results"][0]
        self.assertEqual(row["peer"], "plain Python")
        self.assertLess(row["peer_error"], 1e-5)
        self.assertGreater(row["peer_time_s"], row["time_s"])
        quotients = [row["time_over_peer" + part] for part in ("_p10", "", "_p90")]
        self.assertEqual(quotients, sorted(quotients))
        self.assertLess(row["time_over_peer"], 1)
        self.assertIn("of the time of plain Python", ejk(*self.CALL).stdout)

    def test_what_a_peer_does_not_do(self):
        row = parsed(*self.CALL, "--causal")["results"][0]
        self.assertEqual(row["peer_skips"], "only plain attention")
        self.assertNotIn("peer_time_s", row)
        self.assertGreater(row["time_s"], 0)
        self.assertIn("plain Python does not: only plain attention", ejk(*self.CALL, "--causal").stdout)

    def test_wrong_results_are_told(self):
        self.assertAlmostEqual(parsed(*self.CALL, PEER_FAULT="wrong")["results"][0]["peer_error"], 0.5, places=3)

    def test_faults_of_a_peer(self):
        for fault, part in (("hello", 'does not say its name as "peer"'), ("garbage", "answers 'no JSON'"),
                            ("silent", "ended without an answer"), ("seconds", 'a run without "seconds"')):
            error = ejk(*self.CALL, status=2, PEER_FAULT=fault).stderr
            self.assertEqual(error.count("\n"), 1, error)
            self.assertIn(part, error)
        self.assertIn("nowhere.py ended without an answer", ejk(*self.CALL[:-1], "nowhere.py", status=2).stderr)

    def test_the_peer_of_torch_knows_the_arguments(self):
        """Without PyTorch: what it takes are fields of the two operations, among them all that are required."""
        with open(TORCH_PEER) as file:
            source = file.read()
        known = ast.literal_eval(re.search(r"known = (\{[^}]*\})", source).group(1))
        fields = {}
        for op in ("flash_attention", "flash_attention_vjp"):
            for field in parsed("info", "--op", op)["arguments"]:
                fields.setdefault(field["name"], set()).add(field["role"])
        self.assertEqual(known - set(fields), set())
        needed = {name for name, roles in fields.items() if "required" in roles}
        self.assertIn("d_out", needed)
        self.assertEqual(needed - known, set())

    def test_nothing_stays(self):
        ejk(*self.CALL, TMPDIR=self.folder)
        self.assertEqual(os.listdir(self.folder), [])


class Compare(Folder):
    def compare(self, *paths, status=0):
        answer = subprocess.run([sys.executable, COMPARE, *paths], capture_output=True, text=True, timeout=60)
        self.assertEqual(answer.returncode, status, answer.stderr)
        return answer.stdout

    def report(self, name, **members):
        row = parsed(*Peers.CALL)["results"][0]
        return self.write(name, json.dumps({"schema": 1, "results": [{**row, **members}]}))

    def test_one_report(self):
        text = self.compare(self.report("one.json", time_over_peer=0.5, warnings=["beware"]))
        self.assertIn("2.000 of plain Python", text)
        self.assertIn("; beware", text)
        self.assertIn("over plain Python, 1 rows: geometric mean 2.000, least 2.000", text)

    def test_two_reports(self):
        first, second = (self.report(f"{time}.json", time_s=time) for time in (4e-6, 1e-6))
        self.assertIn("before over after, 1 rows: geometric mean 4.000, least 4.000", self.compare(first, second))
        other = self.report("other.json", problem="another")
        self.assertIn("another, 1 threads: only in the second report", self.compare(first, other))
        self.compare(self.write("old.json", '{"results": []}'), status=1)


if __name__ == "__main__":
    if not os.path.exists(EJK):
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
