#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ejk mask-info` and `ejk bench mask_info` from outside. Usage: test_cli_mask_info.py <ejk> <source folder>"""
import base64
import json
import os
import re
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

from command import EJK, SOURCE, ejk

FIELDS = ("data_next", "mask_next", "block_mask", "partial_mask_blocks", "q_sequence")
HOLES = [[int(c) for c in row] for row in
         4 * ["0000111100000000"] + 4 * ["0000000000000000"] +
         ["1000000000001111", "1100000000001111", "1110000000001111", "1111000000001111",
          "0000100000000000", "0000000000001000", "0000000000000000", "0000000000000000"]]


# ---- The worked examples ---------------------------------------------------------------------------

def causal(q, kv, offset=0, **more):
    return {"type": "causal", "shape": [q, kv], "offset": offset, **more}


def local(left, right, q=16, kv=16, offset=0):
    return {"type": "local", "shape": [q, kv], "window_size": [left, right], "offset": offset}


def of(mask):
    return {"type": "dense", "of": mask}


def rows_of(mask, q, kv):
    def sees(i, j):
        if mask["type"] == "causal":
            return i + mask["offset"] >= j
        left, right = mask["window_size"]
        return i - left <= j <= i + right
    return [[int(sees(i, j)) for j in range(kv)] for i in range(q)]


def stacked(upper, lower):
    return {"type": "dense", "array": rows_of(upper, 16, 16) + rows_of(lower, 16, 16)}


def joined(how, right):
    return {"type": how, "left": causal(16, 16), "right": right}


FULL = {"type": "full", "shape": [16, 16]}
CAUSAL, LOCAL, SLIDING, NOTHING = of(causal(16, 16)), of(local(2, 2)), of(local(3, 0)), of(local(-1, -1))
CHUNKED = {"type": "chunked_causal", "shape": [16, 16], "chunk_size": 6}
ZIGZAG = causal(16, 16, q_sequence=[0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11])
WHOLE = {"shrink_grid": False}
DYNAMIC = [causal(8, 8), local(1, 1, 8, 8), {"type": "full", "shape": [8, 8]}, local(-1, -1, 8, 8)]

# Name: heads, options, block shape
EXAMPLES = {
    "E01": ([FULL],), "E02": ([CAUSAL],), "E03": ([causal(16, 16)],), "E04": ([of(causal(16, 16, 2))],),
    "E05": ([of(causal(16, 16, -5))],), "E05n": ([of(causal(16, 16, -5))], WHOLE), "E06": ([LOCAL],),
    "E07": ([LOCAL], WHOLE), "E08": ([local(2, 2)],), "E09": ([SLIDING],),
    "E10": ([of(local(1, 1, offset=4))],), "E10n": ([of(local(1, 1, offset=4))], WHOLE),
    "E11a": ([of(local(5, None))],), "E11b": ([of(local(None, 5))],),
    "E12": ([{"type": "dense", "array": HOLES}],), "E12n": ([{"type": "dense", "array": HOLES}], WHOLE),
    "E13": ([of(CHUNKED)],), "E13c": ([CHUNKED],), "E14": ([CAUSAL, CAUSAL],), "E15": ([CAUSAL, LOCAL],),
    "E15s": ([CAUSAL, LOCAL], {"head_shards": 2}),
    "E16a": ([CAUSAL, CAUSAL, LOCAL, LOCAL], {"head_shards": 2}),
    "E16b": ([CAUSAL, LOCAL, CAUSAL, LOCAL], {"head_shards": 2}),
    "E17": (4 * [SLIDING], {"head_shards": 2}), "E18": ([CAUSAL], {"q_seq_shards": 2}),
    "E19": ([CAUSAL, LOCAL], {"q_seq_shards": 2}),
    "E20": ([stacked(causal(16, 16), local(2, 2))], {"q_seq_shards": 2}),
    "E21": ([stacked(local(2, 2), local(3, 0))], {"q_seq_shards": 2}),
    "E22w": ([of(causal(8, 16))], {}, [2, 4]), "E22t": ([of(causal(16, 8))], {}, [2, 4]),
    "E23and": ([joined("logical_and", local(2, 2))],), "E23or": ([joined("logical_or", local(0, 3))],),
    "E24": ([causal(16, 16), FULL], {"head_shards": 2}), "E25": ([NOTHING], WHOLE),
    "E26": (DYNAMIC[:1], {}, [2, 4]),
    "E27": (DYNAMIC, {"head_shards": 2, "q_seq_shards": 2}, [2, 4]), "E27u": (DYNAMIC, {}, [2, 4]),
    "E28": ([FULL], {"q_seq_shards": 2, **WHOLE}), "E29": ([ZIGZAG],), "E30": ([of(local(0, 0))],),
    "E30q": ([of(local(0, 0))], {"q_seq_shards": 2}),
    "E31": ([LOCAL, LOCAL], {"head_shards": 2, "q_seq_shards": 2}),
    "E32": ([CAUSAL, LOCAL, CAUSAL, CAUSAL], {"head_shards": 2, "q_seq_shards": 2}),
    "E33": ([SLIDING], {"downcast_smem_data": False}),
}
FUNCTIONS = {"E03": {"type": "causal", "offset": 0}, "E29": {"type": "causal", "offset": 0},
             "E08": {"type": "local", "window_size": [2, 2], "offset": 0},
             "E13c": {"type": "chunked_causal", "chunk_size": 6}}
DYNAMIC_NAMES = ("E26", "E27", "E27u")


def parts_of(heads, options=None, blocks=(4, 4)):
    return heads, options or {}, list(blocks)


def request_of(name, way, **more):
    heads, options, blocks = parts_of(*EXAMPLES[name])
    mask = {"type": "multi_head", "masks": heads}
    dynamic = name in DYNAMIC_NAMES
    return {"kind": f"process_{'dynamic_' if dynamic else ''}mask{'_dkv' if way == 'dkv' else ''}",
            "mask": of(mask) if dynamic else mask, "block_shape": blocks, "options": options, "name": name, **more}


def flat(data):
    return [x for part in data for x in flat(part)] if isinstance(data, list) else [data]


def shape_of(data):
    return [len(data)] + shape_of(data[0]) if isinstance(data, list) else []


def as_written(text):
    """A field of examples.txt: dtype, shape, values; None for an absent one."""
    if text == "none":
        return None
    dtype, shape, values = re.fullmatch(r"(\w+) \[([\d,]+)\] = ?(.*)", text).groups()
    if values == "0..15":
        found = list(range(16))
    elif dtype == "bool":
        found = [int(c) for c in re.sub(r"#\d+", "", values) if c in "01"]
    else:
        found = [int(number) for number in re.findall(r"\d+", values)]
    names = {"i8": "int8", "i16": "int16", "i32": "int32", "bool": "bool"}
    return names[dtype], [int(n) for n in shape.split(",")], found


def decoded(array):
    """The same of a field of an answer, in either encoding."""
    if array is None:
        return None
    data = array["data"]
    if isinstance(data, list):
        assert shape_of(data) == array["shape"], array
        return array["dtype"], array["shape"], flat(data)
    raw = base64.b64decode(data, validate=True)
    code = {"bool": "B", "int8": "b", "int16": "h", "int32": "i"}[array["dtype"]]
    return array["dtype"], array["shape"], list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))


def examples():
    with open(os.path.join(SOURCE, "tests/data/splash/examples.txt"), encoding="utf-8") as file:
        text = file.read()
    for name, way, body in re.findall(r"\[(\w+)\.(fwd|dkv)\]\n((?:.+\n)+)", text):
        yield name, way, dict(re.findall(r"^(\w+) *: (.*)$", body, re.M))


class Examples(unittest.TestCase):
    def expect(self, name, way, fields, answer):
        self.assertEqual(set(answer), {*FIELDS, "is_dynamic_mask", "mask_function"}, (name, answer))
        for field in FIELDS:
            self.assertEqual(decoded(answer[field]), as_written(fields[field]), (name, way, field))
        self.assertIs(answer["is_dynamic_mask"], name in DYNAMIC_NAMES)
        self.assertEqual(answer["mask_function"], FUNCTIONS.get(name), name)

    def test_in_one_batch_each_in_both_encodings(self):
        known = list(examples())
        self.assertEqual(len(known), 88)
        for encoding in ("list", "base64"):
            lines = "".join(json.dumps(request_of(name, way, encoding=encoding)) + "\n" for name, way, _ in known)
            answers = ejk("mask-info", "--spec", "-", "--batch", given=lines).stdout.splitlines()
            self.assertEqual(len(answers), len(known))
            for (name, way, fields), answer in zip(known, answers):
                self.expect(name, way, fields, json.loads(answer))

    def test_one_by_one_from_files(self):
        with tempfile.TemporaryDirectory() as folder:
            spec, output = os.path.join(folder, "spec.json"), os.path.join(folder, "answer.json")
            for name, way, fields in examples():
                with open(spec, "w", encoding="utf-8") as file:
                    json.dump(request_of(name, way), file, indent=1)
                self.assertEqual(ejk("mask-info", "--spec", spec, "--output", output).stdout, "")
                with open(output, encoding="utf-8") as file:
                    self.expect(name, way, fields, json.load(file))


# ---- Requests at fault -----------------------------------------------------------------------------

def process(mask, **more):
    return {"mask": {"type": "multi_head", "masks": [mask]}, "block_shape": [4, 4], **more}


class Faults(unittest.TestCase):
    FAULTS = (
        ("nonsense", "invalid_request"), ("[]", "invalid_request"), ("[" * 100000, "invalid_request"),
        ('{"kind": "process_mask"', "invalid_request"), ('{"kind": "walk"}', "invalid_request"),
        (process(FULL, options={"shrink_gird": False}), "invalid_request"),
        (process(FULL, block_shape=[4.0, 4]), "invalid_request"),
        (process(FULL, block_shape=[4, 10 ** 30]), "invalid_request"),
        (process({"type": "dense", "array": [[1, 0], [1]]}), "invalid_request"),
        ({"kind": "process_dynamic_mask", "mask": FULL, "block_shape": [4, 4]}, "invalid_request"),
        (process({"type": "dense", "array": [1, 0]}), "array_not_2d"),
        (process({"type": "dense", "array": {"dtype": "int8", "shape": [1, 1], "data": [[1]]}}), "array_not_bool"),
        (process({**CHUNKED, "chunk_size": 0}), "chunk_size"),
        (process(causal(16, 16, shard_count=3)), "shard_count"),
        (process(joined("logical_or", {"type": "full", "shape": [16, 8]})), "shape_mismatch"),
        (process({"type": "full", "shape": [-16, 16]}), "invalid_argument"),
        ({"mask": {"type": "multi_head", "masks": []}, "block_shape": [4, 4]}, "no_masks"),
        ({"mask": FULL, "block_shape": [4, 4]}, "mask_not_3d"),
        (process(FULL, block_shape=[0, 4]), "invalid_argument"), (process(FULL, block_shape=[5, 4]), "q_block_size"),
        (process(FULL, block_shape=[4, 5]), "kv_block_size"),
        (process(FULL, options={"q_seq_shards": 3}), "q_seq_shards"),
        (process(FULL, options={"q_seq_shards": 8}), "q_block_size_per_shard"),
        (process(FULL, options={"head_shards": 2}), "head_shards"),
        ({"kind": "mask_check", "mask": causal(4, 4, -1)}, "empty_row"),
        ({"kind": "mask_dense", "mask": {"type": "full", "shape": [2 ** 62, 2 ** 62]}}, "invalid_argument"),
        (process({"type": "full", "shape": [2 ** 62, 2 ** 62]}, block_shape=[1, 1]), "invalid_argument"),
    )

    def faults(self):
        return [(text if isinstance(text, str) else json.dumps(text), reason) for text, reason in self.FAULTS]

    def test_each_is_answered_with_status_1(self):
        for text, reason in self.faults():
            answer = ejk("mask-info", "--spec", "-", given=text, status=1)
            error = json.loads(answer.stdout)["error"]
            self.assertEqual(error["reason"], reason, text[:100])
            self.assertEqual(answer.stderr, f"ejk: {error['message']}\n")

    def test_a_batch_goes_on_behind_them(self):
        good = json.dumps({"kind": "mask_equal", "mask": FULL, "other": FULL})
        lines = "".join(f"{text}\r\n \t\r\n\n{good}\n" for text, _ in self.faults()).rstrip("\n")
        answer = ejk("mask-info", "--batch", "--spec=-", given=lines)
        found = [json.loads(line) for line in answer.stdout.splitlines()]
        self.assertEqual([line.get("error", {}).get("reason") for line in found[::2]],
                         [reason for _, reason in self.faults()])
        self.assertEqual(found[1::2], len(self.FAULTS) * [{"equal": True}])
        self.assertEqual(answer.stderr, "")

    def test_bytes_that_are_no_text(self):
        given = b"\0\n\xff\xfe\n{\"kind\": \"\xc3\x28\"}\n" + bytes(range(256)).replace(b"\n", b"") + b"\n{\0}\n"
        answer = subprocess.run([EJK, "mask-info", "--spec", "-", "--batch"], input=given, capture_output=True,
                                check=True, timeout=60)
        reasons = [json.loads(line)["error"]["reason"] for line in answer.stdout.splitlines()]
        self.assertEqual(reasons, 5 * ["invalid_request"])

    def test_nothing_in_nothing_out(self):
        self.assertEqual(ejk("mask-info", "--spec", "-", "--batch", given="").stdout, "")
        self.assertEqual(json.loads(ejk("mask-info", "--spec", "-", given="", status=1).stdout)["error"]["reason"],
                         "invalid_request")

    def test_a_batch_answers_while_it_is_asked(self):
        with subprocess.Popen([EJK, "mask-info", "--spec", "-", "--batch"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as process:
            for _ in range(3):
                process.stdin.write(json.dumps({"kind": "mask_check", "mask": FULL}) + "\n")
                process.stdin.flush()
                self.assertEqual(json.loads(process.stdout.readline()), {"valid": True})
            process.stdin.close()
            self.assertEqual(process.wait(), 0)


# ---- Files -----------------------------------------------------------------------------------------

class Files(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.spec = self.write("spec.json", json.dumps({"kind": "mask_check", "mask": FULL}))
        self.output = os.path.join(self.folder, "answer.json")

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def refused(self, *words, given=None):
        answer = ejk("mask-info", *words, status=2, given=given)
        self.assertEqual(answer.stdout, "")
        self.assertEqual(answer.stderr.count("\n"), 1)
        return answer.stderr

    def test_answers_replace_files_and_leave_nothing_beside(self):
        self.write("answer.json", "before")
        os.chmod(self.output, 0o640)
        os.symlink("answer.json", os.path.join(self.folder, "link.json"))
        ejk("mask-info", "--spec", self.spec, "--output", os.path.join(self.folder, "link.json"))
        self.assertEqual(self.read(self.output), '{"valid": true}\n')
        self.assertEqual(stat.S_IMODE(os.stat(self.output).st_mode), 0o640)
        self.assertTrue(os.path.islink(os.path.join(self.folder, "link.json")))
        self.assertEqual(sorted(os.listdir(self.folder)), ["answer.json", "link.json", "spec.json"])

    def test_an_error_answer_is_written_too(self):
        ejk("mask-info", "--spec", "-", "--output", self.output, given="nonsense", status=1)
        self.assertIn("invalid_request", self.read(self.output))

    def test_an_answer_may_replace_its_request(self):
        ejk("mask-info", "--spec", self.spec, "--output", self.spec, "--batch")
        self.assertEqual(self.read(self.spec), '{"valid": true}\n')

    def test_a_failure_leaves_the_old_file(self):
        self.write("answer.json", "before")
        error = self.refused("--spec", os.path.join(self.folder, "none"), "--output", self.output)
        self.assertIn("none could not be read: No such file", error)
        self.refused("--spec", self.folder, "--output", self.output)
        self.refused("--spec", self.folder, "--output", self.output, "--batch")
        self.assertEqual(self.read(self.output), "before")
        self.assertEqual(sorted(os.listdir(self.folder)), ["answer.json", "spec.json"])

    def test_output_that_cannot_be_written(self):
        missing = os.path.join(self.folder, "no", "answer.json")
        self.assertIn(f"{missing} could not be written: No such file",
                      self.refused("--spec", self.spec, "--output", missing))
        self.assertIn("could not be written", self.refused("--spec", self.spec, "--output", self.folder))
        for more in ([], ["--batch"]):
            error = self.refused("--spec", self.spec, "--output", "/dev/full", *more)
            self.assertEqual(error, "ejk: /dev/full could not be written: No space left on device\n")
            with open("/dev/full", "w", encoding="utf-8") as full:
                answer = subprocess.run([EJK, "mask-info", "--spec", self.spec, *more], stdout=full,
                                        stderr=subprocess.PIPE, text=True, check=False, timeout=60)
            self.assertEqual((answer.returncode, answer.stderr), (2, "ejk: standard output could not be written\n"))

    def test_wrong_words(self):
        self.assertIn("--spec FILE", self.refused())
        self.assertIn("--spec needs a value", self.refused("--spec"))
        self.assertIn("--spoc is no flag here; near it: --spec", self.refused("--spoc", self.spec))
        self.assertIn("'spec.json' is not expected here", self.refused("spec.json"))
        self.assertIn("--threads", self.refused("--spec", self.spec, "--threads", "0"))
        self.assertIn("--batch", ejk("mask-info", "--help").stdout)

    def test_a_million_rows_are_answered_piece_by_piece(self):
        mask = {"type": "multi_head", "masks": [causal(1048576, 1048576)]}
        spec = self.write("large.json", json.dumps({"mask": mask, "block_shape": [512, 512], "encoding": "base64"}))
        ejk("mask-info", "--spec", spec, "--output", self.output)
        answer = json.loads(self.read(self.output))
        dtype, shape, values = decoded(answer["data_next"])
        self.assertEqual((dtype, shape), ("int16", [1, 2048, 2048]))
        self.assertEqual(values[2047 * 2048:], list(range(2048)))
        states = decoded(answer["block_mask"])[2]
        self.assertEqual([states.count(i) for i in range(3)], [2048 * 2047 // 2, 2048, 2048 * 2047 // 2])
        self.assertEqual(decoded(answer["q_sequence"])[1], [1048576])


class Bench(unittest.TestCase):
    def test_wrong_words(self):
        self.assertIn("Method.", ejk("bench", "mask_info", "--help").stdout)
        for words in (["--threads", "1,2"], ["--seconds", "0"], ["--shape", "T=1"], ["causal"]):
            self.assertEqual(ejk("bench", "mask_info", *words, status=2).stderr.count("\n"), 1)


if __name__ == "__main__":
    if not os.path.exists(EJK):
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
