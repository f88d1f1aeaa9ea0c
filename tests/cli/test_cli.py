#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command from outside: what it prints, writes and answers. Usage: test_cli.py <ejk> <source folder>"""
import array
import json
import math
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

EJK, SOURCE = sys.argv[1], sys.argv[2]
BYTELM = os.path.join(SOURCE, "examples", "data", "bytelm")
HEADS, DIM = 2, 4


def ejk(*words, status=0, **environment):
    """Runs the command and checks its exit status; the answer has stdout and stderr."""
    answer = subprocess.run([EJK, *words], capture_output=True, text=True, timeout=150,
                            env={**os.environ, **environment})
    if answer.returncode != status:
        raise AssertionError(f"{words}: exit {answer.returncode}, expected {status}\n"
                             f"{answer.stdout}{answer.stderr}")
    return answer


def parsed(*words, **options):
    return json.loads(ejk(*words, "--json", **options).stdout)


def write_npy(path, values, shape, code="f", order="C"):
    header = f"{{'descr': '<{ {'f': 'f4', 'd': 'f8'}[code] }', 'fortran_order': {order == 'F'}, 'shape': {shape}}}"
    header += " " * (63 - (len(header) + 10) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(array.array(code, values).tobytes())


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<H", data[8:10])[0]
    code = "f" if b"<f4" in data[:10 + size] else "d"
    return list(array.array(code, data[10 + size:]))


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (values, shape) in tensors.items():
        added = array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(added)]}
        data += added
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def numbers(seed, count):
    return [math.sin(seed + 1.7 * i) for i in range(count)]


def attend(query, key, value, length, causal):
    """Attention over [1, length, HEADS, DIM] for as many heads of each, and the log of the sums."""
    out, lse = [0.0] * len(query), [0.0] * (HEADS * length)
    at = lambda t, h: (t * HEADS + h) * DIM
    for h in range(HEADS):
        for i in range(length):
            keys = range(i + 1 if causal else length)
            scores = [sum(query[at(i, h) + d] * key[at(j, h) + d] for d in range(DIM)) / math.sqrt(DIM)
                      for j in keys]
            total = sum(math.exp(s) for s in scores)
            lse[h * length + i] = math.log(total)
            for d in range(DIM):
                out[at(i, h) + d] = sum(math.exp(s) * value[at(j, h) + d]
                                        for j, s in zip(keys, scores)) / total
    return out, lse


class Help(unittest.TestCase):
    def test_general(self):
        for words in ([], ["--help"], ["-h"]):
            text = ejk(*words).stdout
            for command in ("info", "run", "bench", "tune", "cache", "explain", "labels"):
                self.assertIn(command, text)
        with open(os.path.join(SOURCE, "VERSION")) as file:
            self.assertEqual(ejk("--version").stdout, f"ejk {file.read().strip()}\n")

    def test_of_commands(self):
        self.assertIn("--kernels", ejk("info", "--help").stdout)
        self.assertIn("--expect", ejk("run", "--help").stdout)
        self.assertIn("--logits-soft-cap", ejk("run", "flash_attention", "--help").stdout)
        text = ejk("bench", "--help").stdout
        self.assertIn("--shape", text)
        self.assertIn("Method.", text)
        for words in (["tune"], ["tune", "flash_attention"], ["explain"], ["explain", "flash_attention"],
                      ["cache"], ["cache", "rm"], ["labels"]):
            self.assertIn("--cache PATH", ejk(*words, "--help").stdout)

    def test_wrong_words(self):
        for words, part in ((["walk"], "'walk' is no command"),
                            (["run"], "needs an operation"),
                            (["bench", "--threads", "1"], "needs an operation"),
                            (["run", "no_such_op"], "no_such_op"),
                            (["info", "--op", "no_such_op"], "no_such_op"),
                            (["info", "--kernel"], "--kernels"),
                            (["info", "--json=yes"], "takes no value"),
                            (["info", "flash_attention"], "'flash_attention'")):
            error = ejk(*words, status=2).stderr
            self.assertTrue(error.startswith("ejk: "), error)
            self.assertEqual(error.count("\n"), 1)
            self.assertIn(part, error)


class Info(unittest.TestCase):
    def test_machine(self):
        facts = parsed("info")
        self.assertIn("scalar", facts["tiers"])
        self.assertIn(facts["isa"], facts["tiers"])
        self.assertGreaterEqual(facts["cores"], 1)
        self.assertTrue(facts["fingerprint"].startswith("cpu|"))
        text = ejk("info").stdout
        for fact in (facts["version"], facts["name"], facts["fingerprint"]):
            self.assertIn(fact, text)

    def test_environment(self):
        facts = parsed("info", EJKERNEL_ISA="scalar", EJKERNEL_NUM_THREADS="3")
        self.assertEqual((facts["isa"], facts["threads"]), ("scalar", 3))
        self.assertIn("bogus", ejk("info", EJKERNEL_ISA="bogus").stdout)

    def test_operation(self):
        facts = parsed("info", "--op", "flash_attention")
        arguments = {argument["name"]: argument for argument in facts["arguments"]}
        self.assertEqual(arguments["query"]["role"], "required")
        self.assertEqual(arguments["causal_offset"]["type"], "int")
        self.assertTrue(arguments["cfg"]["fields"])
        self.assertTrue(all(arguments[name]["doc"] for name in arguments))
        self.assertTrue(facts["implementations"])
        self.assertIn("--sliding-window", ejk("info", "--op", "flash_attention").stdout)

    def test_registry(self):
        entries = parsed("info", "--kernels")
        self.assertIn("reference", {entry["platform"] for entry in entries})
        self.assertTrue(any(entry["available"] for entry in entries))
        text = ejk("info", "--kernels").stdout
        for entry in entries:
            self.assertIn(entry["name"], text)


class Run(unittest.TestCase):
    LENGTH = 5

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.shape = (1, self.LENGTH, HEADS, DIM)
        self.inputs = {name: numbers(seed, self.LENGTH * HEADS * DIM)
                       for seed, name in enumerate(("query", "key", "value"))}
        self.flags = []
        for name, values in self.inputs.items():
            write_npy(self.path(name), values, self.shape)
            self.flags += ["--" + name, self.path(name)]

    def path(self, name):
        return os.path.join(self.folder, name + ".npy")

    def run_here(self, *words, **options):
        return ejk("run", "flash_attention", *self.flags, *words, **options)

    def expect(self, causal):
        out, lse = attend(*self.inputs.values(), self.LENGTH, causal)
        write_npy(self.path("expect"), out, self.shape, "d")
        return lse

    def test_results(self):
        for causal in (False, True):
            lse = self.expect(causal)
            for platform in ("reference", "auto"):
                self.run_here("--platform", platform, f"--causal={'true' if causal else 'false'}",
                              "--output", self.path("out"), "--lse", self.path("lse"),
                              "--expect", self.path("expect"))
                self.assertEqual(len(read_npy(self.path("out"))), len(self.inputs["query"]))
                for a, b in zip(read_npy(self.path("lse")), lse):
                    self.assertAlmostEqual(a, b, places=5)

    def test_report(self):
        self.expect(True)
        report = parsed("run", "flash_attention", *self.flags, "--causal", "--threads", "1",
                        "--platform", "reference", "--expect", self.path("expect"))
        self.assertEqual(report["plan"]["platform"], "reference")
        self.assertTrue(report["expect"]["passed"])
        self.assertLess(report["expect"]["relative_error"], 1e-6)
        self.assertEqual(report["outputs"]["out"]["shape"], list(self.shape))
        self.assertGreater(report["time_s"], 0)

    def test_differences_fail(self):
        self.expect(True)
        error = self.run_here("--expect", self.path("expect"), status=1).stderr
        self.assertIn("differs", error)
        self.run_here("--expect", self.path("expect"), "--tolerance", "100")
        self.run_here("--causal", "--expect", self.path("expect"), "--tolerance", "1e-12", status=1)
        write_npy(self.path("expect"), [math.nan] * len(self.inputs["query"]), self.shape, "d")
        report = parsed("run", "flash_attention", *self.flags, "--expect", self.path("expect"), status=1)
        self.assertFalse(report["expect"]["passed"])
        write_npy(self.path("expect"), [0.0] * 4, (1, 1, 1, 4), "d")
        self.assertIn("shape", self.run_here("--expect", self.path("expect"), status=2).stderr)

    def test_float64(self):
        for name, values in self.inputs.items():
            write_npy(self.path(name), values, self.shape, "d")
        self.expect(False)
        self.run_here("--output", self.path("out"), "--expect", self.path("expect"), "--tolerance", "1e-13")
        self.run_here("--normalize-output", "false", "--output", self.path("out"),
                      "--row-max", self.path("row_max"))
        with open(self.path("out"), "rb") as file:
            self.assertIn(b"<f4", file.read(128))

    def test_fortran_order(self):
        shape, values = self.shape, self.inputs["query"]
        index = lambda t, h, d: (t * shape[2] + h) * shape[3] + d
        write_npy(self.path("query"), [values[index(t, h, d)] for d in range(shape[3])
                                       for h in range(shape[2]) for t in range(shape[1])],
                  shape, order="F")
        self.expect(False)
        self.run_here("--expect", self.path("expect"))

    def test_safetensors(self):
        path = os.path.join(self.folder, "all.safetensors")
        write_safetensors(path, {name: (values, self.shape) for name, values in self.inputs.items()})
        self.expect(False)
        ejk("run", "flash_attention", *[f"--{name}={path}:{name}" for name in self.inputs],
            "--expect", self.path("expect"))
        self.assertIn("key", ejk("run", "flash_attention", "--query", path + ":other", status=2).stderr)

    def test_values(self):
        """Negative numbers, windows and nested fields are values; each leaves its trace."""
        self.expect(False)
        for words in (["--causal", "--causal-offset", "-1"], ["--sliding-window", "0,0"],
                      ["--softmax-scale=-2"], ["--logits-soft-cap", "0.5"]):
            self.run_here(*words, "--expect", self.path("expect"), status=1)
        self.run_here("--cfg.platform", "reference", "--expect", self.path("expect"))

    def test_config(self):
        plan = parsed("run", "flash_attention", *self.flags, "--config", '{"platform": "reference"}')["plan"]
        self.assertEqual(plan["platform"], "reference")

    def test_isa(self):
        plan = parsed("run", "flash_attention", *self.flags, "--isa", "scalar")["plan"]
        self.assertEqual(plan["isa"], "scalar")
        plan = parsed("run", "flash_attention", *self.flags, EJKERNEL_ISA="scalar")["plan"]
        self.assertEqual(plan["isa"], "scalar")

    def test_wrong_calls(self):
        for words, part in ((["--causl"], "--causal"),
                            (["--window", "3"], "--sliding-window"),
                            (["--logits-soft-cap"], "needs a value"),
                            (["--logits-soft-cap", "-3"], "logits_soft_cap"),
                            (["--logits-soft-cap", "much"], "logits_soft_cap"),
                            (["--causal", "perhaps"], "'perhaps'"),
                            (["--threads", "0"], "--threads"),
                            (["--tolerance", "-1"], "--tolerance"),
                            (["--platform", "triton"], "triton"),
                            (["--platform", "abacus"], "abacus"),
                            (["--isa", "abacus"], "abacus"),
                            (["--config", "{"], "cfg"),
                            (["--config", '{"speed": 1}'], "speed"),
                            (["--key", self.path("none")], "none.npy"),
                            (["--key", "key"], "'key'"),
                            (["--bias", self.path("query")], "bias"),
                            (["--output", os.path.join(self.folder, "no", "folder.npy")], "folder")):
            error = self.run_here(*words, status=2).stderr
            self.assertTrue(error.startswith("ejk: "), error)
            self.assertIn(part, error)
        self.assertIn("--query is missing", ejk("run", "flash_attention", status=2).stderr)
        self.assertIn("--key is missing", ejk("run", "flash_attention", *self.flags[:2], status=2).stderr)

    @unittest.skipUnless(os.path.exists(os.path.join(BYTELM, "layer1_output.npy")), "no bytelm data")
    def test_language_model(self):
        for layer, words in ((0, []), (1, ["--sliding-window", "127,0"])):
            file = lambda what: os.path.join(BYTELM, f"layer{layer}_{what}.npy")
            call = ["run", "flash_attention", "--query", file("query"), "--key", file("key"),
                    "--value", file("value"), "--softmax-aux", file("sinks"), "--logits-soft-cap", "30",
                    *words, "--expect", file("output"), "--output", self.path("out"), "--threads", "2"]
            ejk(*call, "--causal", "--tolerance", "1e-6")
            ejk(*call, "--causal", "--logits-soft-cap", "5", status=1)


class Bench(unittest.TestCase):
    SHORT = ["--seconds", "0.05"]

    def test_rows(self):
        report = parsed("bench", "flash_attention", "--shape", "Hq=2,Hkv=1,T=64,D=16", "--shape",
                        "B=2,Hq=1,T=1,S=300,D=8,Dv=5", "--threads", "1,2", "--against", "reference",
                        "--causal", "--with", "bias,softmax-aux,attention_mask,lse", *self.SHORT)
        self.assertEqual(report["machine"]["fingerprint"], parsed("info")["fingerprint"])
        rows = report["results"]
        self.assertEqual([row["threads"] for row in rows], [1, 2, 1, 2])
        self.assertEqual(rows[0]["shape"], "B=1,Hq=2,Hkv=1,T=64,S=64,D=16,Dv=16")
        for row in rows:
            self.assertLessEqual(row["time_s_p10"], row["time_s"])
            self.assertLessEqual(row["time_s"], row["time_s_p90"])
            self.assertGreaterEqual(row["repetitions"], 3)
            self.assertAlmostEqual(row["gflops"] * 1e9 * row["time_s"] / row["flops"], 1, places=6)
            self.assertAlmostEqual(row["gbps"] * 1e9 * row["time_s"] / row["bytes"], 1, places=6)
            for name in ("peak_gflops", "share_of_peak", "read_gbps", "share_of_bandwidth", "host_ns",
                         "host_plan_ns", "against_time_s"):
                self.assertGreater(row[name], 0)
            self.assertLess(row["error_against"], 1e-5)
            self.assertTrue(row["arguments"]["causal"])
            self.assertIn("bias", row["arguments"])

    def test_rotation(self):
        """Decoding lives from memory, prefill does not; --cold makes no difference between them."""
        decode, prefill = "T=1,S=256,Hq=1,D=64", "T=256,Hq=1,D=64"
        rows = parsed("bench", "flash_attention", "--shape", decode, "--shape", prefill, "--threads", "1",
                      *self.SHORT)["results"]
        self.assertEqual([row["cold"] for row in rows], [True, False])
        self.assertGreater(rows[0]["input_copies"], 1)
        self.assertEqual(rows[1]["input_copies"], 1)
        rows = parsed("bench", "flash_attention", "--shape", prefill, "--threads", "1", "--cold",
                      *self.SHORT)["results"]
        self.assertTrue(rows[0]["cold"])

    def test_choices(self):
        rows = parsed("bench", "flash_attention", "--shape", "T=16,Hq=2,D=8", "--threads", "1", "--isa",
                      "scalar", "--repeat", "4", "--layout", "bhtd", "--against", "reference",
                      *self.SHORT)["results"]
        self.assertEqual((rows[0]["isa"], rows[0]["repetitions"]), ("scalar", 4))
        self.assertLess(rows[0]["error_against"], 1e-5)
        rows = parsed("bench", "flash_attention", "--shape", "T=16,Hq=2,D=8", "--threads", "1",
                      "--dtype", "f64", "--platform", "reference", *self.SHORT)["results"]
        self.assertEqual((rows[0]["dtype"], rows[0]["platform"]), ("float64", "reference"))

    def test_config(self):
        """A parameter's smallest value is taken, and said to come from outside."""
        call = ["bench", "flash_attention", "--shape", "T=256,Hq=1,D=64", "--threads", "1", *self.SHORT]
        name = parsed(*call)["results"][0]["implementation"]
        entries = parsed("info", "--op", "flash_attention")["implementations"]
        parameters = next(entry for entry in entries if entry["name"] == name)["parameters"]
        self.assertTrue(parameters)
        first, least = parameters[0]["name"], parameters[0]["minimum"]
        row = parsed(*call, "--config", json.dumps({"fwd_params": {first: least}}))["results"][0]
        self.assertEqual((row["config"][first], row["chosen_by"][first]), (least, "override"))
        error = ejk(*call, "--config", json.dumps({"fwd_params": {first: least - 1}}), status=2).stderr
        self.assertIn(first, error)

    def test_table_and_plot(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "roofline.svg")
            text = ejk("bench", "flash_attention", "--shape", "T=32,Hq=1,D=8", "--shape", "T=1,S=64,Hq=1,D=8",
                       "--threads", "1,2", "--plot", path, *self.SHORT).stdout
            self.assertIn("B=1,Hq=1,Hkv=1,T=32,S=32,D=8,Dv=8", text)
            self.assertIn("host cost", text)
            root = xml.etree.ElementTree.parse(path).getroot()
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
            circles = root.iter("{http://www.w3.org/2000/svg}circle")
            self.assertEqual(len(list(circles)), 8)  # four points, four lines of the list

    def test_wrong_calls(self):
        shape = ["--shape", "T=8,Hq=1,D=8"]
        for words, part in (([], "--shape"),
                            (["--shape", "T=8;D=8"], "axes"),
                            (["--shape", "T=8,D=8"], "Hq"),
                            (["--shape", "T=8,Hq=3,Hkv=2,D=8"], "heads"),
                            (shape + ["--threads", "1,x"], "--threads"),
                            (shape + ["--threads", "0"], "--threads"),
                            (shape + ["--dtype", "f128"], "f128"),
                            (shape + ["--layout", "dthb"], "--layout"),
                            (shape + ["--with", "bais"], "bais"),
                            (shape + ["--query", "q.npy"], "tensor"),
                            (shape + ["--seconds", "0"], "--seconds"),
                            (shape + ["--repeat", "1001"], "--repeat"),
                            (["--shape", f"T={1 << 36},Hq=1,D=64"], "memory"),
                            (shape + ["--against", "pallas"], "pallas"),
                            (shape + ["--plot", "/no/such/folder.svg"] + self.SHORT, "folder.svg")):
            error = ejk("bench", "flash_attention", *words, status=2).stderr
            self.assertTrue(error.startswith("ejk: "), error)
            self.assertIn(part, error)


class Cached(unittest.TestCase):
    """Cases with a cache of their own, where nothing is kept at first."""
    CALL = ["flash_attention", "--shape", "Hq=2,T=64,D=16", "--causal", "--threads", "1"]
    LARGE = ["flash_attention", "--shape", "Hq=16,T=2048,D=64", "--threads", "1"]
    SHORT = ["--budget", "200ms"]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.cache = ["--cache", self.path("cache")]
        self.file = os.path.join(os.path.realpath(self.folder), "cache", "configs.db")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def tune(self, *words):
        return parsed("tune", *self.CALL, *self.SHORT, *self.cache, *words)

    def explain(self, *words):
        return parsed("explain", *self.CALL, *self.cache, *words)

    def rows(self, *words):
        return parsed("cache", "ls", *self.cache, *words)["rows"]

    def refused(self, *words):
        error = ejk(*words, status=2).stderr
        self.assertTrue(error.startswith("ejk: "), error)
        self.assertEqual(error.count("\n"), 1, error)
        return error[len("ejk: "):-1]


class Tune(Cached):
    def test_round_trip(self):
        """What is tuned is kept, shown, taken away, brought back and used."""
        self.assertEqual(self.explain()["step"], "heuristics")
        tuned = self.tune("--candidates", '{"fwd_params": {"q_blocksize": 24}}', "--seed", "7")
        key, report = tuned["key"], tuned["report"]
        self.assertTrue(tuned["stored"])
        self.assertEqual(os.path.realpath(tuned["cache"]), self.file)
        self.assertEqual(len(report["candidates"]), 2)
        self.assertEqual((report["seed"], report["budget_s"], report["cancelled"]), ("7", 0.2, False))
        chosen = report["candidates"][report["chosen"]]
        self.assertEqual(json.loads(chosen["description"]), tuned["config"])
        self.assertIn("flash_attention:B=1,Hq=2,Hkv=2,T=64,S=64,D=16,Dv=16", tuned["problem"])

        row, = self.rows()
        self.assertEqual({name: row[name] for name in key}, key)
        self.assertEqual((row["config"], row["threads"]), (tuned["config"], 1))
        self.assertAlmostEqual(row["measurement"]["median_s"] / chosen["median_s"], 1, places=6)
        text = ejk("cache", "ls", *self.cache).stdout
        for part in ("flash_attention@v0", "here", key["call_key"], row["implementation"], "q_blocksize="):
            self.assertIn(part, text)
        for name in (key["call_key"], key["call_key"][:4]):
            self.assertEqual(parsed("cache", "show", name, *self.cache)["rows"], [row])
        self.assertIn(key["layout"], ejk("cache", "show", key["call_key"], *self.cache).stdout)

        whole = ejk("cache", "export", *self.cache).stdout
        ejk("cache", "export", self.path("all.json"), *self.cache)
        with open(self.path("all.json")) as file:
            self.assertEqual(file.read(), whole)
        self.assertIn(f"{key['device']}|{key['op_id']}|{key['call_key']}", json.loads(whole))

        self.assertEqual(ejk("cache", "rm", key["call_key"], *self.cache).stdout,
                         f"1 removed from {self.path('cache')}/configs.db\n")
        self.assertEqual((self.rows(), self.explain()["step"]), ([], "heuristics"))
        counts = parsed("cache", "import", self.path("all.json"), *self.cache)
        self.assertEqual((counts["added"], counts["rejected"]), (1, 0))
        self.assertEqual(self.rows(), [row])
        self.assertEqual(parsed("cache", "verify", *self.cache),
                         {"path": f"{self.path('cache')}/configs.db", "exists": True, "rows": 1,
                          "rejected": 0, "stale": 0, "sound": True})

        found = self.explain()
        self.assertEqual((found["step"], found["key"]), ("persistent", key))
        self.assertEqual(found["plan"]["config"], tuned["config"])
        self.assertEqual([step["outcome"] for step in found["steps"]],
                         ["none", "none", "miss", "chosen", "not asked", "not asked"])
        self.assertEqual(parsed("explain", *self.CALL[:-1], "2", *self.cache)["step"], "heuristics")

    def test_tables(self):
        text = ejk("tune", *self.CALL, *self.SHORT, *self.cache).stdout
        lines = text.split("\n")
        for title in ("configuration", "time", "against default", "verdict"):
            self.assertIn(title, lines[2])
        self.assertEqual(sum(line.startswith("*") for line in lines), 1)
        key = self.explain()["key"]["call_key"]
        self.assertIn(f"\nStored under {key} in {self.path('cache')}/configs.db.\n", text)
        text = ejk("explain", *self.CALL, *self.cache).stdout
        for part in ("persistent  chosen", "heuristics  not asked", "by persistent", key, "threads   1"):
            self.assertIn(part, text)

    def test_not_stored(self):
        self.assertFalse(self.tune("--no-store")["stored"])
        self.assertFalse(os.path.exists(self.path("cache")))
        text = ejk("tune", *self.CALL, *self.SHORT, "--no-store", *self.cache).stdout
        self.assertIn("\nNot stored: --no-store is given.\n", text)
        blocked = self.write("file", "")
        answer = ejk("tune", *self.CALL, *self.SHORT, "--cache", os.path.join(blocked, "x"), status=2)
        self.assertIn("Not stored: the cache cannot be written.", answer.stdout)
        self.assertIn("ejk: cache degraded: ", answer.stderr)

    def test_recording(self):
        recording = self.write("calls.txt", "# from another machine\n"
                               "flash_attention:Hq=2,T=64,D=16,causal\n\n"
                               "flash_attention:Hq=2,T=32,D=16,platform=triton\n"
                               "flash_attention:Hq=1,T=1,S=64,D=16,dtype=float64\n")
        call = ["tune", "--recorded", recording, "--threads", "1", *self.SHORT, *self.cache]
        report = parsed(*call)
        self.assertEqual((report["calls"], report["cancelled"]), (3, False))
        self.assertEqual([tuned["stored"] for tuned in report["tuned"]], [True, True])
        self.assertEqual([skipped["problem"].split(",")[3] for skipped in report["skipped"]], ["T=32"])
        self.assertIn("triton is unavailable", report["skipped"][0]["reason"])
        self.assertEqual(len(self.rows()), 2)
        self.assertEqual(self.explain()["step"], "persistent")
        answer = ejk(*call)
        self.assertEqual(answer.stdout.count("Stored under"), 2)
        self.assertIn("is passed over: flash_attention on platform triton", answer.stderr)

    def start(self, *words, **options):
        # A shell may have left the signal ignored.
        return subprocess.Popen([EJK, "tune", *self.LARGE, "--budget", "20s", *self.cache, *words], text=True,
                                stdout=subprocess.PIPE, **options,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def test_interrupt(self):
        process = self.start("--json")
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        report = json.loads(process.communicate(timeout=60)[0])
        self.assertEqual(process.returncode, 0)
        self.assertTrue(report["report"]["cancelled"])
        won = report["report"]["chosen"] != report["report"]["default_index"]
        self.assertEqual((report["stored"], len(self.rows())), (won, int(won)))
        if not won:
            self.assertIn("interrupted", report["not_stored"])

    def test_progress(self):
        """On a terminal there is one line, rewritten, that fits; elsewhere there is none."""
        self.assertEqual(ejk("tune", *self.CALL, *self.SHORT, "--no-store").stderr, "")
        leader, follower = pty.openpty()
        self.addCleanup(os.close, leader)
        answer = subprocess.run([EJK, "tune", *self.CALL, *self.SHORT, "--no-store"], stderr=follower,
                                stdout=subprocess.PIPE, check=True, timeout=60)
        os.close(follower)
        shown = os.read(leader, 1 << 16).decode()
        self.assertIn(" tried, ", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), shown)
        self.assertNotIn("\n", shown)
        for line in shown.split("\r\x1b[K"):
            self.assertLess(len(line), 80)
        self.assertIn(b"Not stored", answer.stdout)

    def test_wrong_calls(self):
        shape = self.CALL[:3]
        for words, sentence in (
                ([], "tune needs an operation first, as `ejk tune flash_attention --help`, or --recorded"),
                (self.CALL[:1], "tune needs a shape, as --shape B=1,Hq=8,T=1024,D=64"),
                (shape + ["--budget", "3h"], "--budget is '3h', expected a time as 30s, 500ms or 2m"),
                (shape + ["--budget", "-1s"], "--budget is '-1s', expected a time as 30s, 500ms or 2m"),
                (shape + ["--budget"], "--budget needs a value: TIME"),
                (shape + ["--seed", "x"], "--seed is 'x', expected a whole number above 0"),
                (shape + ["--candidates", "[]"],
                 "--candidates is '[]', expected a configuration or a list of them as JSON"),
                (shape + ["--candidates", '{"speed": 1}'],
                 "--candidates, configuration 1: speed: no such field; ejk_flash_attention_config has "
                 "platform, backend, fwd_params, bwd_params"),
                (shape + ["--cfg.platform", "simd"], "tune chooses the configuration, but --cfg is given"),
                (shape + ["--recorded", "x"],
                 "--recorded brings its own operations, but flash_attention is given"),
                (["--recorded", "x", "--shape", "T=1"],
                 "--recorded brings its own calls, --shape cannot be given with it"),
                (["--recorded", "/no/such/file"], "/no/such/file: No such file or directory"),
                (shape + ["--backward"], "flash_attention has no hook vjp for this call")):
            self.assertEqual(self.refused("tune", *words, *self.cache), sentence)
        self.assertIn("calls.txt:2: ", self.refused("tune", "--recorded",
                                                    self.write("calls.txt", "# x\nflash_attention:T=\n")))


class Explain(Cached):
    def test_steps(self):
        """Asking makes no cache."""
        found = self.explain()
        self.assertEqual([step["step"] for step in found["steps"]],
                         ["override", "overlay", "memory", "persistent", "autotune", "heuristics"])
        self.assertEqual([step["outcome"] for step in found["steps"]],
                         ["none", "none", "miss", "miss", "not allowed", "chosen"])
        self.assertEqual(found["cache"]["exists"], False)
        self.assertFalse(os.path.exists(self.path("cache")))
        self.assertEqual(len(found["key"]["call_key"]), 16)
        self.assertEqual(found["plan"]["step"], "heuristics")
        self.assertIn("configs.db does not exist", ejk("explain", *self.CALL, *self.cache).stdout)

    def test_override(self):
        found = self.explain("--config", '{"platform": "reference"}')
        self.assertEqual((found["step"], found["plan"]["platform"]), ("override", "reference"))
        self.assertEqual(found["key"], self.explain()["key"])

    def test_rejected(self):
        """A configuration that the implementation does not take is said to be there."""
        key = self.explain()["key"]
        name = f"{key['device']}|{key['op_id']}|{key['call_key']}"
        entries = {name: {"fwd_params": {"q_blocksize": -5}}}
        ejk("cache", "import", self.write("bad.json", json.dumps(entries)), *self.cache)
        found = self.explain()
        self.assertEqual(found["step"], "heuristics")
        self.assertEqual(found["steps"][3]["outcome"], "rejected")
        self.assertIn("q_blocksize", found["steps"][3]["detail"])

    def test_wrong_calls(self):
        for words, sentence in (
                ([], "explain needs an operation first, as `ejk explain flash_attention --help`"),
                (self.CALL[:1], "explain needs a shape, as --shape B=1,Hq=8,T=1024,D=64"),
                (self.CALL + ["--layout", "dthb"], "--layout is 'dthb', expected bthd or bhtd")):
            self.assertEqual(self.refused("explain", *words, *self.cache), sentence)


class Cache(Cached):
    KEYS = ["aa00000000000001", "aa00000000000002", "bb00000000000003"]

    def fill(self):
        names = ["cpu|here|one@v0|", "cpu|here|one@v1|", "cpu|there|two@v0|"]
        entries = {name + key: {"rows": i} for i, (name, key) in enumerate(zip(names, self.KEYS))}
        path = self.write("entries.json", json.dumps(entries))
        self.assertEqual(parsed("cache", "import", path, *self.cache)["added"], 3)

    def keys(self, *words):
        return [row["call_key"] for row in self.rows(*words)]

    def test_path(self):
        self.assertEqual(ejk("cache", "path", *self.cache).stdout, f"{self.path('cache')}/configs.db\n")
        for environment, file in (({"EJKERNEL_CACHE_DIR": "/a/b.db"}, "/a/b.db"),
                                  ({"EJKERNEL_CACHE_DIR": "", "XDG_CACHE_HOME": "/x"}, "/x/ejkernel/configs.db"),
                                  ({"EJKERNEL_CACHE_DIR": "~/c", "HOME": "/h"}, "/h/c/configs.db"),
                                  ({"EJKERNEL_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/h"},
                                   "/h/.cache/ejkernel/configs.db")):
            self.assertEqual(parsed("cache", "path", **environment), {"path": file})

    def test_same_path(self):
        """Where the command says the file lies is where the library makes it."""
        for environment in ({"EJKERNEL_CACHE_DIR": self.path("e")}, {"EJKERNEL_CACHE_DIR": self.path("e.db")},
                            {"EJKERNEL_CACHE_DIR": "", "XDG_CACHE_HOME": self.path("x")},
                            {"EJKERNEL_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": self.path("h")},
                            {"EJKERNEL_CACHE_DIR": "~/t", "HOME": self.path("h")}):
            file = parsed("cache", "path", **environment)["path"]
            self.assertFalse(os.path.exists(file))
            ejk("cache", "import", self.write("none.json", "{}"), **environment)
            self.assertTrue(os.path.exists(file))

    def test_rows(self):
        self.assertEqual(ejk("cache", "ls", *self.cache).stdout,
                         f"{self.path('cache')}/configs.db has no configurations.\n")
        self.fill()
        self.assertEqual(sorted(self.keys()), self.KEYS)
        self.assertEqual(sorted(self.keys("--op", "one")), self.KEYS[:2])
        self.assertEqual(self.keys("--op", "one@v1"), self.KEYS[1:2])
        self.assertEqual(self.keys("--device", "cpu|there"), self.KEYS[2:])
        self.assertEqual(self.keys("--device", "here"), [])
        self.assertIn("cpu|there", ejk("cache", "ls", *self.cache).stdout)
        exported = json.loads(ejk("cache", "export", "--op", "two", *self.cache).stdout)
        self.assertEqual([name for name in exported if not name.startswith("$")], ["cpu|there|two@v0|" + self.KEYS[2]])

    def test_remove(self):
        self.fill()
        self.assertEqual(self.refused("cache", "rm", "aa", *self.cache),
                         "'aa' begins the call keys aa00000000000001 and aa00000000000002, expected one")
        self.assertEqual(self.refused("cache", "rm", self.KEYS[0], "cc", *self.cache),
                         f"no call key in {self.path('cache')}/configs.db begins with 'cc'")
        self.assertEqual(len(self.keys()), 3)
        self.assertEqual(parsed("cache", "rm", "bb", *self.cache)["removed"], 1)
        self.assertEqual(parsed("cache", "rm", "--op", "one@v0", *self.cache)["removed"], 1)
        self.assertEqual(parsed("cache", "rm", "--all", *self.cache)["removed"], 1)
        self.assertEqual(self.keys(), [])

    def test_damage(self):
        """Nothing is lost silently: verify says what became of a file that cannot be read."""
        self.fill()
        self.assertEqual(ejk("cache", "verify", *self.cache).stdout,
                         f"{self.path('cache')}/configs.db: 3 rows, 0 of them damaged, 0 stale: sound\n")
        for at, event in ((4096, ""), (0, "ejk: cache degraded: ")):
            with open(self.file, "r+b") as file:
                file.seek(at)
                file.write(b"this is no database" * 4096)
            answer = ejk("cache", "verify", *self.cache, status=1)
            self.assertIn(": damaged\n", answer.stdout)
            self.assertTrue(answer.stderr.startswith(event), answer.stderr)

    def test_wrong_calls(self):
        nothing = ("cache needs to be told what to do, expected ls, show, rm, export, import, verify or path")
        for words, sentence in (
                ([], nothing), (["look"], nothing),
                (["ls", "x"], "ls takes no words, 'x' given"),
                (["ls", "--all"], "ls takes no --all"),
                (["path", "--op", "x"], "path takes no --op"),
                (["verify", "--device", "x"], "verify takes no --device"),
                (["show"], "show needs a call key, or what it begins with; `ejk cache ls` lists them"),
                (["rm"], "rm needs call keys, --op, --device or --all"),
                (["rm", "--all", "aa"], "rm is given --all and what to remove, expected one of them"),
                (["export", "a", "b"], "export takes one file, 2 are given"),
                (["import"], "import needs a file as `ejk cache export` writes it, or -"),
                (["import", "/no/such/file"], "/no/such/file could not be read: No such file or directory"),
                (["ls", "--kee"], "--kee is no flag here")):
            self.assertEqual(self.refused("cache", *words, *self.cache), sentence)
        self.assertIn("list.json: ", self.refused("cache", "import", self.write("list.json", "[1]"), *self.cache))
        self.assertFalse(ejk("cache", "path", *self.cache).stderr)


class Labels(Cached):
    def test_labels(self):
        key = self.tune("--candidates", "{}")["key"]["call_key"]
        text = (f'#loc1 = loc("ejkernel_ops#flash_attention@v0:{key}")\n'
                '#loc2 = loc("ejkernel_ops#other_op@v2:0123456789abcdef")\n'
                'metadata={op_name="ejkernel_ops#cut"}\n'
                r'attribute = "ejkernel_ops:{\"args\":[],\"op_id\":\"flash_attention@v0\"}"' + "\n")
        file = self.write("program.mlir", text)
        found = parsed("labels", file, *self.cache)
        self.assertEqual([(label["line"], label["offset"]) for label in found["labels"]],
                         [(1, text.index("ejkernel_ops#flash")), (2, text.index("ejkernel_ops#other"))])
        self.assertEqual([(label["op"], label["version"], label["key"]) for label in found["labels"]],
                         [("flash_attention", "0", key), ("other_op", "2", "0123456789abcdef")])
        self.assertEqual(found["labels"][0]["known"], self.rows())
        self.assertEqual((found["labels"][1]["known"], found["cut"]), ([], 1))
        stamps = parsed("labels", file, "--stamps", *self.cache)["labels"]
        self.assertEqual([(label["line"], label["op"]) for label in stamps[2:]], [(4, "flash_attention")])
        table = ejk("labels", file, *self.cache).stdout.split("\n")
        self.assertIn(key, table[1])
        self.assertTrue(table[2].endswith("none"), table[2])
        self.assertIn("cut short by XLA: 1", table[3])

    def test_nothing(self):
        file = self.write("program.mlir", "module {}\n")
        self.assertEqual(ejk("labels", file, *self.cache).stdout, f"{file} has no labels\n")
        self.assertEqual(parsed("labels", file, *self.cache)["labels"], [])
        self.assertFalse(os.path.exists(self.path("cache")))

    def test_wrong_calls(self):
        for words, sentence in (
                ([], "labels needs one file of HLO or StableHLO as text, 0 are given"),
                (["a", "b"], "labels needs one file of HLO or StableHLO as text, 2 are given"),
                (["/no/such/file"], "/no/such/file could not be read: No such file or directory")):
            self.assertEqual(self.refused("labels", *words, *self.cache), sentence)


if __name__ == "__main__":
    if not os.path.exists(EJK):
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
