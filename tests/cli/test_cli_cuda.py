#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command and GPUs, without one: a driver and a compiler of the tests stand in. Usage: as test_cli.py."""
import array
import json
import os
import struct
import sys
import tempfile
import unittest

from command import EJK, ejk, parsed

FAKES = os.path.join(os.path.dirname(os.path.abspath(EJK)), "tests")
MERGE = "attention_merge:N=3,B=1,T=2,Hq=2,Dv=8"


def write_npy(path, count, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"
    header += " " * (63 - (len(header) + 10) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(array.array("f", [0.5] * count).tobytes())


class WithFakes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.set("EJKERNEL_CUDA_CACHE", self.path("kernels"))
        self.set("EJKERNEL_NVRTC_LIBRARY", os.path.join(FAKES, "libfake_nvrtc.so"))
        self.set("EJKERNEL_CUDA_LIBRARY", os.path.join(FAKES, "libfake_cuda.so"))

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def set(self, name, value):
        old = os.environ.get(name)
        os.environ[name] = value
        self.addCleanup(lambda: os.environ.update({name: old}) if old is not None else os.environ.pop(name))

    def without_a_driver(self):
        self.set("EJKERNEL_CUDA_LIBRARY", self.path("nothing.so"))

    def fails(self, words, *arguments):
        self.assertIn(words, ejk(*arguments, status=2).stderr)

    def test_info_shows_gpus(self):
        text = ejk("info").stdout
        for words in ("cuda:1", "Fake   GPU 1 (sm_90a, 132 SMs), 16 MiB, L2 50 MiB", "driver 13.0",
                      "NVRTC 13.0", f"0 cached in {self.path('kernels')}, 0 of 256 MiB"):
            self.assertIn(words, text)
        cuda = parsed("info")["cuda"]
        self.assertEqual([d["name"] for d in cuda["devices"]], ["Fake   GPU 0", "Fake   GPU 1"])
        self.assertIsNone(cuda["unavailable"])
        self.assertEqual((cuda["driver"], cuda["nvrtc"], cuda["cache"]["kernels"]), (13000, 13000, 0))
        kernels = {k["name"]: k["available"] for k in parsed("info", "--op", "attention_merge")["implementations"]}
        self.assertTrue(kernels["bf16/cuda"])

    def test_info_says_why_there_is_none(self):
        self.without_a_driver()
        self.assertIn("none: no GPU: NVIDIA's driver cannot be loaded", ejk("info").stdout)
        cuda = parsed("info")["cuda"]
        self.assertEqual((cuda["devices"], cuda["driver"]), ([], 0))
        self.assertIn("no GPU", cuda["unavailable"])
        kernels = {k["name"]: k["available"] for k in parsed("info", "--op", "attention_merge")["implementations"]}
        self.assertFalse(kernels["bf16/cuda"])
        self.assertTrue(kernels["f32/reference"])

    def run_words(self, device):
        write_npy(self.path("part.npy"), 96, (3, 1, 2, 2, 8))
        write_npy(self.path("lse.npy"), 12, (3, 1, 2, 2))
        return ("run", "attention_merge", "--partial-out", self.path("part.npy"), "--partial-lse", self.path("lse.npy"),
                "--output", self.path("out.npy"), "--device", device)

    def test_run_moves_tensors(self):
        answer = parsed(*self.run_words("cuda:1"))
        self.assertEqual(answer["plan"]["device"], "cuda:1")
        self.assertEqual(answer["plan"]["implementation"], "f32/cuda")
        self.assertTrue(os.path.exists(self.path("out.npy")))
        self.assertIn("by f32/cuda, cuda:0", ejk(*self.run_words("cuda")).stdout)
        self.assertEqual(parsed(*self.run_words("cpu"))["plan"]["backend"], "cpu")
        self.assertEqual(parsed("info")["cuda"]["cache"]["kernels"], 2)

    def test_run_refuses_devices(self):
        self.fails("--device is 'gpu', expected cpu, cuda or cuda:N", *self.run_words("gpu"))
        self.fails("--device is 'cuda:'", *self.run_words("cuda:"))
        self.fails("device is 2, expected 0 to 1", *self.run_words("cuda:2"))
        self.fails("on platform simd", *self.run_words("cuda"), "--platform", "simd")
        self.without_a_driver()
        self.fails("no GPU: NVIDIA's driver cannot be loaded", *self.run_words("cuda"))

    # Launches fill all memory with zeros, so that results are numbers.
    def call_words(self, *more):
        """A call with heads that one implementation by tensor cores takes."""
        self.set("FAKE_CUDA_CLEARS", "1")
        return ("flash_attention", "--shape", "B=1,Hq=2,T=64,D=160", "--dtype", "bf16", "--device", "cuda:1") + more

    def test_bench_measures_on_a_gpu(self):
        words = ("bench",) + self.call_words("--repeat", "2", "--row", "3", "--causal", "--plain",
                                            "--against", "reference")
        answer = parsed(*words)
        self.assertEqual(answer["machine"]["gpu"]["fingerprint"], "gpu|Fake   GPU 1; 9.0; 13.0")
        row = answer["results"][0]
        self.assertEqual((row["device"], row["implementation"], row["repetitions"]), ("cuda:1", "bf16/cuda/mma", 2))
        self.assertEqual((row["in_a_row"]["rows"], row["in_a_row"]["launches"]), (2, 3))
        for rates in (row, row["in_a_row"]):
            for name in ("time_s", "gflops", "peak_gflops", "share_of_peak", "gbps", "read_gbps",
                         "time_per_flop_over_beside"):
                self.assertGreater(rates[name], 0, name)
        self.assertAlmostEqual(row["share_of_peak"], row["gflops"] / row["peak_gflops"])
        self.assertEqual(row["first_use"]["kernels"], 1)
        self.assertGreater(row["first_use"]["load_s"], 0)
        self.assertGreater(row["host_plan_beyond_launch_ns"], 0)
        self.assertAlmostEqual(row["host_plan_ns"], row["host_plan_driver_ns"] + row["host_plan_beyond_launch_ns"],
                               delta=0.5 * row["host_plan_ns"])
        self.assertEqual(row["error_against"], 0)
        text = ejk(*words, "--plot", self.path("roof.svg")).stdout
        for part in ("cuda:1, gpu|Fake   GPU 1", "alone", "in a row", "first use: ", "ms from the disk",
                     "a bare launch"):
            self.assertIn(part, text)
        self.assertTrue(os.path.exists(self.path("roof.svg")))

    def test_bench_from_a_graph(self):
        words = ("bench",) + self.call_words("--repeat", "2", "--row", "3")
        self.assertIsNone(parsed(*words)["results"][0]["in_a_graph"])
        row = parsed(*words, "--graph")["results"][0]["in_a_graph"]
        self.assertEqual((row["rows"], row["launches"]), (2, 3))
        for name in ("time_s", "gflops", "peak_gflops", "share_of_peak", "gbps", "read_gbps"):
            self.assertGreater(row[name], 0, name)
        self.assertIn("in a graph", ejk(*words, "--graph").stdout)
        self.fails("--graph is for calls on a GPU", "bench", "flash_attention", "--shape",
                   "Hq=1,T=1,D=8", "--graph")

    def test_bench_of_packed_sequences_and_gradients(self):
        self.set("FAKE_CUDA_CLEARS", "1")
        row = parsed("bench", "flash_attention", "--shape", "Hq=2,T=64,N=2,D=64,lengths=2x32", "--dtype", "bf16",
                     "--with", "cum_seqlens_q,cum_seqlens_k", "--device", "cuda", "--repeat", "1")["results"][0]
        self.assertEqual(row["flops"], 2 * 2 * (2 * 32 * 32) * (64 + 64))
        row = parsed("bench", "flash_attention_vjp", "--shape", "B=1,Hq=2,T=64,D=64", "--dtype", "f16",
                     "--layout", "bhtd", "--device", "cuda", "--repeat", "1", "--cold")["results"][0]
        self.assertGreater(row["first_use"]["kernels"], 1)
        self.assertTrue(row["cold"])
        self.fails("device is 2", "bench", "flash_attention", "--shape", "B=1,Hq=2,T=64,D=64", "--device", "cuda:2")

    def test_results_that_are_not_written_are_refused(self):
        self.fails("out", "bench", "flash_attention", "--shape", "B=1,Hq=2,T=64,D=64", "--device", "cuda")

    def test_explain_on_a_gpu(self):
        words = ("explain",) + self.call_words()
        answer = parsed(*words)
        self.assertEqual(answer["key"]["device"], "gpu|Fake   GPU 1; 9.0; 13.0")
        self.assertEqual(answer["plan"]["device"], "cuda:1")
        verdicts = {e["implementation"]: (e["verdict"], e["reason"]) for e in answer["implementations"]}
        self.assertEqual(verdicts["bf16/cuda/mma"], ("chosen", ""))
        self.assertEqual(verdicts["bf16/cuda/plain"], ("fits", "another one is preferred"))
        self.assertEqual(verdicts["f32/reference"], ("does not fit", "is for tensors on the CPU"))
        wide = {e["implementation"]: e["reason"] for e in parsed(
            "explain", "flash_attention", "--shape", "B=1,Hq=2,T=64,D=320", "--dtype", "bf16",
            "--device", "cuda")["implementations"]}
        self.assertIn("cannot compute this problem: it needs heads of 1 to 256", wide["bf16/cuda/mma"])
        self.assertIn("takes float16, the tensors have bfloat16", ejk(*words, "--all").stdout)
        text = ejk(*words).stdout
        self.assertNotIn("takes float16", text)
        self.assertNotIn("f32/reference", text)

    def test_tune_on_a_gpu(self):
        words = self.call_words("--cache", self.path("configs.db"))
        self.set("FAKE_NVRTC_REFUSED", "-DWARPS=(8)")
        answer = parsed("tune", *words, "--budget", "2s")
        self.assertTrue(answer["stored"])
        self.assertEqual(answer["key"]["device"], "gpu|Fake   GPU 1; 9.0; 13.0")
        failed = [c for c in answer["report"]["candidates"] if c["verdict"] == "failed"]
        self.assertEqual(len(failed), 1)
        self.assertIn("cannot be compiled", failed[0]["sentence"])
        self.assertEqual(parsed("explain", *words)["step"], "persistent")
        text = ejk("tune", *words, "--budget", "500ms", "--backward", "--no-store").stdout
        self.assertIn("with=d_query+d_key+d_value", text)

    def test_prebuild_needs_no_gpu(self):
        self.without_a_driver()
        with open(self.path("calls"), "w") as file:
            file.write(f"# two\n{MERGE}\n{MERGE},dtype=bf16\n")
        first = parsed("prebuild", "--device-arch", "sm_90a", "--shapes", self.path("calls"))
        self.assertEqual((first["compiled"], first["found"], first["kernels"]), (4, 0, 4))
        self.assertEqual(len(first["calls"]), 2)
        again = ejk("prebuild", MERGE, "--device-arch", "sm_90a").stdout
        self.assertIn("dtype=float32: 0 compiled, 2 found", again)
        self.assertIn(f"0 kernels for sm_90a compiled, 2 found; 4 in {self.path('kernels')}", again)
        self.fails("architecture is 'sm_1', expected one of", "prebuild", MERGE, "--device-arch", "sm_1")
        self.fails("--device-arch is missing, as sm_90a: no GPU", "prebuild", MERGE)
        self.fails("prebuild needs calls", "prebuild", "--device-arch", "sm_90a")
        self.fails("attention_weights", "prebuild", "attention:B=1,T=2,Hq=2,D=8,dtype=f32,with=attention_weights",
                   "--device-arch", "sm_90a")
        self.assertIn("usage: ejk prebuild", ejk("prebuild", "--help").stdout)

    def test_prebuild_takes_the_first_gpu(self):
        answer = parsed("prebuild", MERGE)
        self.assertEqual((answer["architecture"], answer["compiled"]), ("sm_90a", 2))
        self.set("EJKERNEL_NVRTC_LIBRARY", self.path("nothing.so"))
        self.fails("NVRTC cannot be loaded from EJKERNEL_NVRTC_LIBRARY", "prebuild", MERGE + ",dtype=f16")


if __name__ == "__main__":
    if not os.path.exists(os.path.join(FAKES, "libfake_cuda.so")):
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
