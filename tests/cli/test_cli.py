#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command from outside: what it prints, writes and answers. Usage: test_cli.py <ejk> <source folder>"""
import array
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from command import EJK, SOURCE, ejk, parsed

BYTELM = os.path.join(SOURCE, "examples", "data", "bytelm")
HEADS, DIM = 2, 4


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
            for command in ("info", "run", "bench", "tune", "cache", "explain", "labels", "mask",
                            "mask-info"):
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
                            (["bench", "--suite", "no_such_file"], "no_such_file"),
                            (["bench", "--suite", "no_such_file", "--shape", "T=1"], "--shape cannot"),
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
        self.assertIn("lengths", [option["name"] for option in facts["input_options"]])
        text = ejk("info", "--op", "flash_attention").stdout
        self.assertIn("--sliding-window", text)
        self.assertIn("--lengths", text)

    def test_operations(self):
        described = {each["op"]: each for each in parsed("info", "--operations")}
        text = ejk("info", "--operations").stdout
        for name, each in described.items():
            self.assertIn(f"{name} ", text)
            self.assertIn(each["doc"], text)
            ends = [field["offset"] + field["size"] for field in each["args"]["fields"]]
            self.assertEqual(ends, sorted(ends))
            self.assertLessEqual(ends[-1], each["args"]["size"])
        self.assertEqual(described["flash_attention_vjp"]["forward"], "flash_attention")

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
    def gradients(self, op, layout, aux_shape, bias_shape):
        """Runs an operation and its gradients with sinks and a bias of these shapes; reads d_softmax_aux and d_bias."""
        heads_first = layout == "bhtd"
        shape = (1, HEADS, self.LENGTH, DIM) if heads_first else (1, self.LENGTH, HEADS, DIM)
        tensors = {"query": shape, "key": shape, "value": shape, "d_out": shape, "softmax_aux": aux_shape,
                   "bias": bias_shape}
        flags = {}
        for seed, (name, lengths) in enumerate(tensors.items()):
            if lengths:
                flags[name] = self.path(name)
                period = {"softmax_aux": 2, "bias": self.LENGTH}.get(name, 1000)  # the same along broadcast axes
                write_npy(flags[name], [numbers(seed, period)[i % period] for i in range(math.prod(lengths))], lengths)
        results = {name: self.path(name) for name in ("out", "lse")}
        words = lambda of: [word for name, path in of.items() for word in ("--" + name.replace("_", "-"), path)]
        given = {name: path for name, path in flags.items() if name != "d_out"}
        ejk("run", op, *words(given), *words(results))
        wanted = {f"d_{name}": self.path("d_" + name) for name in ("softmax_aux", "bias") if name in flags}
        report = parsed("run", op + "_vjp", *words(flags), *words(results), *words(wanted))
        for name in wanted:
            self.assertEqual(tuple(report["outputs"][name]["shape"]), tensors[name[2:]])
        return {name: read_npy(path) for name, path in wanted.items()}

    def test_gradients_have_the_shapes_of_their_arguments(self):
        """The gradient of a broadcast argument is the sum of that of the argument written out."""
        n, length = 2, self.LENGTH
        for op, layout in (("flash_attention", "bthd"), ("attention", "bthd"),
                           ("scaled_dot_product_attention", "bthd"), ("blocksparse_attention", "bhtd")):
            aux = op != "scaled_dot_product_attention"
            whole = self.gradients(op, layout, (HEADS, n) if aux else None, (1, HEADS, length, length))
            small = self.gradients(op, layout, (n,) if aux else None, (1, 1, 1, length))
            for name, period in (("d_softmax_aux", n), ("d_bias", length)):
                if name not in whole:
                    continue
                for i in range(period):
                    self.assertAlmostEqual(small[name][i], sum(whole[name][i::period]), places=5)

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
        self.assertEqual(rows[0]["shape"], "B=1,Hq=2,Hkv=1,T=64,S=64,D=16,Dv=16,n=1")
        for row in rows:
            self.assertLessEqual(row["time_s_p10"], row["time_s"])
            self.assertLessEqual(row["time_s"], row["time_s_p90"])
            self.assertGreaterEqual(row["repetitions"], 3)
            self.assertAlmostEqual(row["gflops"] * 1e9 * row["time_s"] / row["flops"], 1, places=6)
            self.assertAlmostEqual(row["gbps"] * 1e9 * row["time_s"] / row["bytes"], 1, places=6)
            for name in ("peak_gflops", "share_of_peak", "read_gbps", "share_of_bandwidth", "host_ns",
                         "host_plan_ns", "host_executor_ns", "against_time_s"):
                self.assertGreater(row[name], 0)
            self.assertIn(row["undisturbed_repetitions"], range(row["repetitions"] + 1))
            self.assertIn(row["host_undisturbed_batches"], range(row["host_batches"] + 1))
            disturbed = any("disturbed every" in warning for warning in row["warnings"])
            self.assertEqual(disturbed, row["undisturbed_repetitions"] == 0)
            self.assertLess(row["error_against"], 1e-5)
            self.assertTrue(row["arguments"]["causal"])
            self.assertIn("bias", row["arguments"])

    def test_busy_neighbour(self):
        """A program that shares the core in slices of time disturbs every repetition, and the report says so."""
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(allowed)})
        self.addCleanup(os.sched_setaffinity, 0, allowed)
        call = ["bench", "flash_attention", "--shape", "T=64,Hq=1,D=64", "--threads", "1", "--repeat", "4"]
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            self.addCleanup(busy.kill)
            row = parsed(*call)["results"][0]
            text = ejk(*call).stdout
            busy.kill()
        self.assertEqual((row["repetitions"], row["undisturbed_repetitions"]), (4, 0))
        self.assertGreater(row["lost_to_others"], 0.1)
        self.assertRegex(row["warnings"][0], r"disturbed every repetition: a thread waited [1-9]\d*\.\d % of the time")
        self.assertIn("warning: other programs disturbed every repetition", text)

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

    def test_lengths(self):
        """Packed sequences: what the data leave to be done is counted."""
        call = ["bench", "flash_attention", "--threads", "1", *self.SHORT, "--with", "cum_seqlens_q,cum_seqlens_k"]
        row = parsed(*call, "--shape", "Hq=2,D=16,N=5,T=60", "--lengths", "30+3x10+0", "--against", "reference",
                     "--beside", "flash_attention:Hq=2,D=16,B=5,T=15")["results"][0]
        self.assertEqual(row["shape"], "Hq=2,Hkv=2,T=60,S=60,D=16,Dv=16,N=5")
        self.assertEqual(row["problem"], "flash_attention:" + row["shape"] + ",dtype=float32,"
                         "with=cum_seqlens_q+cum_seqlens_k,lengths=30+3x10+0")
        self.assertEqual(row["arguments"]["cum_seqlens_q"]["shape"], [6])
        self.assertEqual(row["flops"], 2 * 2 * (30 * 30 + 3 * 10 * 10) * (16 + 16))
        self.assertEqual(row["beside"], "flash_attention:B=5,Hq=2,Hkv=2,T=15,S=15,D=16,Dv=16,dtype=float32")
        self.assertLess(row["error_against"], 1e-5)
        quotients = [row["time_per_flop_over_beside" + part] for part in ("_p10", "", "_p90")]
        self.assertEqual(quotients, sorted(quotients))
        self.assertGreater(quotients[0], 0)
        row = parsed(*call, "--shape", "Hq=2,D=16,N=3,T=10,lengths=2x3+4", "--causal",
                     "--sliding-window", "1,1")["results"][0]
        self.assertEqual(row["flops"], 2 * 2 * (5 + 5 + 7) * (16 + 16))
        first, second = (parsed(*call, "--shape", "Hq=2,D=16,N=9,T=180")["results"][0] for _ in range(2))
        self.assertEqual(first["flops"], second["flops"])

    def test_lengths_of_other_operations(self):
        """Gradients too; without cumulative lengths segment ids tell the sequences apart."""
        for operation, tensors, dtype, factor in (
                ("flash_attention_vjp", "cum_seqlens_q,cum_seqlens_k", "f32", 5),
                ("scaled_dot_product_attention", "cum_seqlens_q,cum_seqlens_k", "bf16", 2),
                ("scaled_dot_product_attention_vjp", "cum_seqlens_q,cum_seqlens_k", "f32", 5),
                ("blocksparse_attention", "q_segment_ids,kv_segment_ids", "f16", 2),
                ("blocksparse_attention_vjp", "q_segment_ids,kv_segment_ids", "f32", 5),
                ("attention_vjp", "q_segment_ids,kv_segment_ids", "f32", 5)):
            with self.subTest(operation):
                number = "N=4," if "cum" in tensors else ""
                row = parsed("bench", operation, "--shape", number + "Hq=2,T=60,D=16,lengths=30+3x10", "--threads",
                             "1", "--causal", "--with", tensors, "--dtype", dtype, "--against", "reference",
                             *self.SHORT)["results"][0]
                name = tensors.split(",")[0]
                self.assertEqual(row["arguments"][name]["shape"], [5] if number else [1, 60])
                self.assertEqual(row["flops"], factor * 2 * 2 * (30 * 31 / 2 + 3 * 10 * 11 / 2) * 16)
                self.assertLess(row["error_against"], 0.05)
                results = {"out"} if "vjp" not in operation else {"d_query", "d_key", "d_value"}
                self.assertLessEqual(results, set(row["errors_against"]))

    def test_alive(self):
        """A MaskInfo of which a part is alive: the same part in every row of blocks."""
        shape = "Hq=2,T=64,S=80,D=16,Pf=1,Rf=8,Cf=10,fwd_kv_blocksize=8"
        call = ["--threads", "1", "--with", "fwd_data_next,fwd_block_mask", *self.SHORT]
        row = parsed("bench", "blocksparse_attention", "--shape", shape + ",alive=0.2", *call, "--plain", "--against",
                     "reference")["results"][0]
        self.assertEqual(row["arguments"]["fwd_block_mask"]["shape"], [1, 8, 10])
        self.assertEqual(row["flops"], 2 * 2 * (64 * 80 / 5) * (16 + 16))
        self.assertLess(row["error_against"], 1e-5)
        self.assertGreater(row["time_per_flop_over_beside"], 0)
        self.assertEqual(row["beside"],
                         "blocksparse_attention:B=1,Hq=2,Hkv=2,T=64,S=80,D=16,Dv=16,dtype=float32")
        row = parsed("bench", "blocksparse_attention_vjp", "--shape", shape + ",alive=0.2", *call)["results"][0]
        self.assertEqual(row["flops"], 5 * 2 * 2 * (64 * 80 / 5) * 16)
        row = parsed("bench", "blocksparse_attention", "--shape", shape + ",alive=1", *call, "--causal",
                     "--causal-offset", "0")["results"][0]
        self.assertEqual(row["flops"], 2 * 2 * (64 * 65 / 2) * (16 + 16))

    def test_plain(self):
        """Features together, by FLOP; the text of the report says so too."""
        call = ["bench", "flash_attention", "--shape", "Hq=1,T=64,D=16", "--threads", "1", "--plain",
                "--causal", "--logits-soft-cap", "30", "--with", "bias,softmax_aux", *self.SHORT]
        row = parsed(*call)["results"][0]
        self.assertEqual(row["flops"], 2 * (64 * 65 / 2) * (16 + 16))
        self.assertEqual(row["beside"], "flash_attention:B=1,Hq=1,Hkv=1,T=64,S=64,D=16,Dv=16,dtype=float32")
        self.assertIn("a FLOP takes", ejk(*call).stdout)

    def test_views(self):
        """Strides and types of single tensors are said as in any problem's text."""
        row = parsed("bench", "flash_attention", "--shape", "Hq=2,T=32,D=16,bias=[1,1,32,32]@[0,0,0,1],lse=float32",
                     "--threads", "1", "--dtype", "bf16", "--against", "reference", *self.SHORT)["results"][0]
        self.assertIn("bias=[1,1,32,32]@[0,0,0,1]", row["problem"])
        self.assertEqual(set(row["errors_against"]), {"out", "lse"})
        self.assertLess(row["error_against"], 0.02)

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
                            (["--shape", "T=8;D=8"], "T is '8;D=8'"),
                            (["--shape", "T=8,D=8"], "Hq"),
                            (["--shape", "T=8,Hq=3,Hkv=2,D=8"], "heads"),
                            (shape + ["--threads", "1,x"], "--threads"),
                            (shape + ["--threads", "0"], "--threads"),
                            (shape + ["--dtype", "f128"], "f128"),
                            (shape + ["--layout", "dthb"], "layout is 'dthb'"),
                            (shape + ["--with", "bais"], "bais"),
                            (shape + ["--query", "q.npy"], "tensor"),
                            (shape + ["--seconds", "0"], "--seconds"),
                            (shape + ["--repeat", "1001"], "--repeat"),
                            (["--shape", f"T={1 << 36},Hq=1,D=64"], "memory"),
                            (shape + ["--against", "pallas"], "pallas"),
                            (["--shape", "T=9,N=2,Hq=1,D=8,lengths=2x5", "--with",
                              "cum_seqlens_q,cum_seqlens_k"], "lengths"),
                            (shape + ["--alive", "0.5"], "--alive is no flag here"),
                            (shape + ["--plain", "--beside", "flash_attention:T=8,Hq=1,D=8"], "--beside"),
                            (shape + ["--beside", "T=8"], "T=8"),
                            (shape + ["--suite", "x.txt"], "--suite"),
                            (["--shape", "T=8,Hq=1,D=8,Hk=2"], "'Hk' is no field"),
                            (shape + ["--plot", "/no/such/folder.svg"] + self.SHORT, "folder.svg")):
            error = ejk("bench", "flash_attention", *words, status=2).stderr
            self.assertTrue(error.startswith("ejk: "), error)
            self.assertIn(part, error)


if __name__ == "__main__":
    if not os.path.exists(EJK):
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
