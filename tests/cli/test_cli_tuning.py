#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ejk tune`, `cache`, `explain` and `labels` from outside. Usage: test_cli_tuning.py <ejk> <source folder>"""
import ctypes
import json
import os
import pty
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest

from command import EJK, ejk, parsed, run


def fill_disk():
    """No file of the process can grow any more."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


FULL_DISK = {"preexec_fn": fill_disk, "restore_signals": False}


def obey_modes():
    """Modes of files hold the superuser back too: what it starts lacks CAP_DAC_OVERRIDE and _READ_SEARCH."""
    for capability in (1, 2) if os.geteuid() == 0 else ():
        if ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            raise PermissionError


OBEYING_MODES = {"preexec_fn": obey_modes}


class Cached(unittest.TestCase):
    """Cases with a cache of their own, where nothing is kept at first."""
    CALL = ["flash_attention", "--shape", "Hq=2,T=64,D=16", "--causal", "--threads", "1"]
    LARGE = ["flash_attention", "--shape", "Hq=16,T=1024,D=64", "--threads", "1"]
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

    def tune(self, *words, call=None):
        """The report; the exit status is 0 only if the choice is kept, or none was to be."""
        answer = run("tune", *(call or self.CALL), *self.SHORT, *self.cache, *words, "--json")
        report = json.loads(answer.stdout)
        kept = report["stored"] or "--no-store" in words
        self.assertEqual((answer.returncode, answer.stderr), (0 if kept else 1, ""))
        return report

    def settled(self, *words):
        """The answer of a tuning that was settled: a machine that is busy elsewhere may use up the budget."""
        answers = (run("tune", *words, *self.SHORT, *self.cache) for _ in range(10))
        answer = next((answer for answer in answers if answer.returncode == 0), None)
        self.assertIsNotNone(answer)
        return answer

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
    def test_backward(self):
        """The gradients are an operation of their own, and what is tuned is kept for that."""
        tuned = self.tune("--backward")
        self.assertEqual(tuned["key"]["op_id"], "flash_attention_vjp@v0")
        self.assertIn("with=d_query+d_key+d_value", tuned["problem"])
        call = ["blocksparse_attention", "--shape", "Hq=1,T=32,D=8,Pf=1,Rf=4,Cf=4,fwd_kv_blocksize=8,alive=0.5",
                "--with", "fwd_data_next,fwd_block_mask"]
        tuned = self.tune("--threads", "1", "--backward", call=call)
        self.assertEqual(tuned["key"]["op_id"], "blocksparse_attention_vjp@v0")

    def test_layouts(self):
        """Lengths and blocks are data that the candidates run on."""
        packed = ["--shape", "Hq=1,T=69,N=4,D=16", "--with", "cum_seqlens_q,cum_seqlens_k", "--lengths", "9+3x20"]
        tuned = self.tune("--threads", "1", call=["flash_attention", *packed])
        self.assertIn("T=69", tuned["problem"])
        told = parsed("explain", "flash_attention_vjp", *packed, *self.cache)
        self.assertIn("T=69,S=69,D=16,Dv=16,N=4", told["problem"])
        told = parsed("explain", "blocksparse_attention", "--shape", "Hq=1,T=64,D=16,Pf=1,Rf=4,Cf=4", "--alive", "0.5",
                      "--with", "fwd_data_next,fwd_block_mask", "--fwd-kv-blocksize", "16", *self.cache)
        self.assertIn("fwd_kv_blocksize=16", told["problem"])
        error = self.refused("tune", "flash_attention", *packed[:-1], "9+3x21", *self.cache)
        self.assertIn("lengths is '9+3x21'", error)

    def test_round_trip(self):
        """What is tuned is kept, shown, taken away, brought back and used."""
        self.assertEqual(self.explain()["step"], "heuristics")
        tuned = json.loads(self.settled(*self.CALL, "--candidates", '{"fwd_params": {"q_blocksize": 24}}',
                                        "--seed", "7", "--json").stdout)
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
        text = self.settled(*self.CALL).stdout
        lines = text.split("\n")
        for title in ("configuration", "time", "against default", "verdict"):
            self.assertIn(title, lines[2])
        self.assertEqual(sum(line.startswith("*") for line in lines), 1)
        key = self.explain()["key"]["call_key"]
        self.assertIn(f"\nStored under {key} in {self.path('cache')}/configs.db.\n", text)
        text = ejk("explain", *self.CALL, *self.cache).stdout
        for part in ("persistent  chosen", "heuristics  not asked", "by persistent", key, "threads   1"):
            self.assertIn(part, text)

    def test_an_explanation_begins_with_the_answer(self):
        told = self.explain()
        names = [each["implementation"] for each in told["implementations"]]
        fitting = [each["implementation"] for each in told["implementations"] if each["verdict"] != "does not fit"]
        self.assertIn(told["plan"]["implementation"], fitting)
        text = ejk("explain", *self.CALL, *self.cache).stdout
        self.assertTrue(text.split("\n")[2].startswith(f"implementation  {told['plan']['implementation']} "), text)
        lines = text.split("\n\n")[-1].split("\n")
        self.assertEqual([line.split(" ")[0] for line in lines[:-2]], fitting)
        self.assertEqual(lines[-2], f"{len(names) - len(fitting)} more do not fit; --all says why")
        lines = ejk("explain", *self.CALL, *self.cache, "--all").stdout.split("\n\n")[-1].split("\n")
        self.assertEqual([line.split(" ")[0] for line in lines[:-1]], names)

    def test_not_stored(self):
        self.assertFalse(self.tune("--no-store")["stored"])
        self.assertFalse(os.path.exists(self.path("cache")))
        text = ejk("tune", *self.CALL, *self.SHORT, "--no-store", *self.cache).stdout
        self.assertIn("\nNot stored: --no-store is given.\n", text)
        blocked = self.write("file", "")
        answer = ejk("tune", *self.CALL, *self.SHORT, "--cache", os.path.join(blocked, "x"), status=2)
        self.assertIn("Not stored: the cache cannot be written.", answer.stdout)
        self.assertIn("ejk: cache degraded: ", answer.stderr)
        answer = run("tune", *self.CALL, *self.SHORT, *self.cache, **FULL_DISK)
        self.assertEqual(answer.returncode, 2)
        self.assertIn("Not stored: the cache cannot be written.", answer.stdout)

    def test_nothing_settled(self):
        """0 says that a later call finds the choice."""
        answer = ejk("tune", *self.LARGE, "--budget", "1ms", *self.cache, status=1)
        self.assertIn("Not stored: the budget ended before candidates could be compared.", answer.stdout)
        self.assertEqual(answer.stderr, "")
        recording = self.write("calls.txt", "flash_attention:Hq=2,T=32,D=16,platform=triton\n")
        answer = ejk("tune", "--recorded", recording, *self.SHORT, *self.cache, status=1)
        self.assertIn("is passed over", answer.stderr)
        self.assertEqual(self.rows(), [])

    def test_recording(self):
        recording = self.write("calls.txt", "# from another machine\n"
                               "flash_attention:Hq=2,T=64,D=16,causal\n\n"
                               "flash_attention:Hq=2,T=32,D=16,platform=triton\n"
                               "flash_attention:Hq=1,T=1,S=64,D=16,dtype=float64\n")
        call = ["--recorded", recording, "--threads", "1"]
        report = json.loads(self.settled(*call, "--json").stdout)
        self.assertEqual((report["calls"], report["cancelled"]), (3, False))
        self.assertEqual([tuned["stored"] for tuned in report["tuned"]], [True, True])
        self.assertEqual([skipped["problem"].split(",")[3] for skipped in report["skipped"]], ["T=32"])
        self.assertIn("triton is unavailable", report["skipped"][0]["reason"])
        self.assertEqual(len(self.rows()), 2)
        self.assertEqual(self.explain()["step"], "persistent")
        answer = self.settled(*call)
        self.assertEqual(answer.stdout.count("Stored under"), 2)
        self.assertIn("is passed over: flash_attention on platform triton", answer.stderr)

    def test_recorded_work(self):
        """Packed and sparse calls bring no data along; what is measured is as much work as such calls have."""
        recording = self.write("calls.txt",
                               "flash_attention:Hq=4,D=64,causal,query=[2048,Hq,D],key=[2048,Hkv,D],"
                               "value=[2048,Hkv,D],out=[2048,Hq,D],N=3,cum_seqlens_q,cum_seqlens_k\n"
                               "blocksparse_attention:Hq=4,T=2048,S=2048,D=64,Pf=1,Rf=16,Cf=16,"
                               "with=fwd_data_next+fwd_block_mask,fwd_kv_blocksize=128\n")
        report = parsed("tune", "--recorded", recording, "--threads", "1", *self.SHORT, "--no-store")
        self.assertEqual(report["skipped"], [])
        for tuned in report["tuned"]:  # 0.7 and 2 GFLOP at least; a call without tokens takes 0.2 ms
            candidates = tuned["report"]["candidates"]
            self.assertGreater(candidates[tuned["report"]["default_index"]]["median_s"], 1e-3)

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
        self.assertTrue(report["report"]["cancelled"])
        won = report["report"]["chosen"] != report["report"]["default_index"]
        self.assertEqual(process.returncode, 0 if won else 1)
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
        shown, part = "", b"?"
        while part:
            try:
                part = os.read(leader, 1 << 16)
            except OSError:  # nobody has the other end any more
                part = b""
            shown += part.decode()
        self.assertIn(" tried, ", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), shown)
        self.assertNotIn("\n", shown)
        for line in shown.split("\r\x1b[K"):
            self.assertLess(len(line), 80)
        self.assertIn(b"Not stored", answer.stdout)

    def test_wrong_calls(self):
        shape = self.CALL[:3]
        for words, sentence in (
                ([], "tune needs an operation first, as `ejk tune OPERATION --help`, or --recorded"),
                (self.CALL[:1], "tune needs a shape, as --shape SYMBOL=SIZE,...; the symbols of flash_attention are "
                                "B T Hq D S Hkv Dv N n"),
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
                (["attention_merge_accumulators", "--shape", "N=2,Hq=1,T=2,Dv=8", "--backward"],
                 "attention_merge_accumulators has no hook vjp for this call")):
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
                ([], "explain needs an operation first, as `ejk explain OPERATION --help`"),
                (self.CALL[:1], "explain needs a shape, as --shape SYMBOL=SIZE,...; the symbols of flash_attention are "
                                "B T Hq D S Hkv Dv N n"),
                (self.CALL + ["--layout", "dthb"], "layout is 'dthb', expected bthd or bhtd")):
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

    def verified(self, **options):
        return run("cache", "verify", *self.cache, **options)

    def contents(self):
        with open(self.file, "rb") as file:
            return os.listdir(os.path.dirname(self.file)), file.read()

    def test_damage(self):
        """verify says what is wrong with a file, and leaves it as it is."""
        self.fill()
        sound = f"{self.path('cache')}/configs.db: 3 rows, 0 of them damaged, 0 stale: sound\n"
        self.assertEqual(ejk("cache", "verify", *self.cache).stdout, sound)
        for at in (4096, 0):
            with open(self.file, "r+b") as file:
                file.seek(at)
                file.write(b"this is no database" * 4096)
            before = self.contents()
            answer = ejk("cache", "verify", *self.cache, status=1)
            self.assertTrue(answer.stdout.endswith(": damaged\n"), answer.stdout)
            self.assertTrue(answer.stderr.startswith("ejk: cache damaged: "), answer.stderr)
            self.assertEqual(self.contents(), before)

    def test_verify_reads_alone(self):
        """A folder that cannot be written to and a full disk are no damage."""
        self.fill()
        folder = os.path.dirname(self.file)
        sound = f"{self.path('cache')}/configs.db: 3 rows, 0 of them damaged, 0 stale: sound\n"
        log = sqlite3.connect(self.file)  # another process has it open: with a log beside it
        log.execute("SELECT count(*) FROM configs").fetchall()
        for others in (log, None):
            answer = self.verified(**FULL_DISK)
            self.assertEqual((answer.returncode, answer.stdout), (0, sound))
            if others:
                others.close()
        for file in os.listdir(folder):
            os.chmod(os.path.join(folder, file), 0o444)
        os.chmod(folder, 0o555)
        self.addCleanup(os.chmod, folder, 0o755)
        try:
            answer = self.verified(**OBEYING_MODES)
        except subprocess.SubprocessError:
            self.skipTest("the superuser cannot be held back here")
        self.assertEqual((answer.returncode, answer.stdout), (0, sound))
        os.chmod(self.file, 0)
        answer = self.verified(**OBEYING_MODES)
        self.assertEqual((answer.returncode, answer.stdout), (2, ""))
        self.assertIn("configs.db cannot be read: Permission denied", answer.stderr)

    def test_verify_of_others(self):
        """What is not ours to judge is not called damaged."""
        os.mkdir(self.path("cache"))
        file = f"{self.path('cache')}/configs.db"
        self.assertEqual(ejk("cache", "verify", *self.cache).stdout, f"{file} does not exist\n")
        os.mkdir(file)
        self.assertIn("cannot be read: it is no regular file", self.refused("cache", "verify", *self.cache))
        os.rmdir(file)
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE letters (text TEXT)")
        other.close()
        self.assertIn("cannot be read: it is a database of another program",
                      self.refused("cache", "verify", *self.cache))
        self.assertEqual(os.listdir(self.path("cache")), ["configs.db"])

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
