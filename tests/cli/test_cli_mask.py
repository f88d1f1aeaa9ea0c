#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ejk mask` from outside. Usage: test_cli_mask.py <ejk> <source folder>"""
import html.parser
import json
import os
import pty
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from command import EJK, SOURCE, ejk

CAUSAL = json.dumps({"type": "causal", "shape": [16, 16]})
LARGE = json.dumps({"type": "local", "shape": [1000000, 1000000], "window_size": [4095, 0]})
SVG = "{http://www.w3.org/2000/svg}"


def stored(name):
    with open(os.path.join(SOURCE, "tests", "data", "drawing", name), encoding="utf-8") as file:
        return file.read()


def on_terminal(*words, **environment):
    """What the command writes to a terminal of 80 columns, and its exit status."""
    master, slave = pty.openpty()
    process = subprocess.Popen([EJK, *words], stdout=slave, stderr=subprocess.PIPE,
                               env={**os.environ, **environment})
    os.close(slave)
    output = b""
    try:
        while piece := os.read(master, 65536):
            output += piece
    except OSError:
        pass  # the other end is closed
    process.stderr.read()
    process.stderr.close()
    os.close(master)
    return output.decode(), process.wait()


class Tags(html.parser.HTMLParser):
    """Collects tags and the addresses that they name."""

    def __init__(self):
        super().__init__()
        self.tags, self.addresses = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]


class Show(unittest.TestCase):
    def test_text(self):
        self.assertEqual(ejk("mask", "show", CAUSAL, "--width", "80").stdout, stored("causal_elements.text"))
        text = ejk("mask", "show", CAUSAL, "--blocks", "4x4", "--colour", "always",
                   "--title", "causal mask, 16 x 16").stdout
        self.assertEqual(text, stored("causal_colour.text"))
        same = ejk("mask", "show", CAUSAL, "--blocks=4", "--colour", "never").stdout
        self.assertEqual(same, ejk("mask", "show", CAUSAL, "--blocks", "4x4").stdout)
        self.assertIn("numbers: the order of visits", same)
        self.assertNotIn("visits", ejk("mask", "show", CAUSAL, "--blocks", "4x4", "--no-order").stdout)

    def test_width(self):
        for width in (20, 40, 133):
            lines = ejk("mask", "show", LARGE, "--width", str(width)).stdout.split("\n")
            self.assertLessEqual(max(len(line) for line in lines if "│" in line), width)

    def test_terminal(self):
        words = ("mask", "show", CAUSAL, "--blocks", "4x4")
        self.assertIn("\x1b[", on_terminal(*words, NO_COLOR="")[0])
        self.assertNotIn("\x1b[", on_terminal(*words, NO_COLOR="1")[0])
        self.assertNotIn("\x1b[", on_terminal(*words, "--colour", "never", NO_COLOR="")[0])
        self.assertIn("\x1b[", on_terminal(*words, "--colour", "always", NO_COLOR="1")[0])
        output, status = on_terminal(*words, "--format", "png")
        self.assertEqual((output, status), ("", 2))

    def test_spec_from_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mask.json")
            with open(path, "w") as file:
                file.write(CAUSAL)
            self.assertEqual(ejk("mask", "show", path).stdout, ejk("mask", "show", " " + CAUSAL).stdout)
            with open(path, "w") as file:
                file.write('{"type": "casual"}')
            self.assertIn(path, ejk("mask", "show", path, status=2).stderr)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "picture")
            ejk("mask", "show", LARGE, "--format", "png", "--output", path, "--width", "300")
            with open(path, "rb") as file:
                self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
            self.assertLess(os.path.getsize(path), 10000)
            ejk("mask", "show", LARGE, "--format", "svg", "--output", path)
            self.assertEqual(xml.etree.ElementTree.parse(path).getroot().tag, SVG + "svg")
            self.assertLess(os.path.getsize(path), 50000)
            self.assertIn("could not be written",
                          ejk("mask", "show", CAUSAL, "--output", os.path.join(path, "x"), status=2).stderr)

    def test_page(self):
        page = ejk("mask", "show", CAUSAL, "--blocks", "4x4", "--format", "html", "--title", "<b>&").stdout
        tags = Tags()
        tags.feed(page)
        self.assertEqual(tags.addresses, [])
        self.assertIn("<title>&lt;b&gt;&amp;</title>", page)
        for tag in ("svg", "script", "button", "input", "output"):
            self.assertIn(tag, tags.tags)
        inner = page[page.index("<svg"):page.rindex("</svg>") + len("</svg>")]
        self.assertEqual(xml.etree.ElementTree.fromstring(inner).tag, SVG + "svg")

    def test_heads(self):
        heads = json.dumps({"type": "multi_head", "masks": [json.loads(CAUSAL),
                                                            {"type": "full", "shape": [16, 16]}]})
        self.assertIn("head 0 of 2, causal mask", ejk("mask", "show", heads).stdout)
        self.assertIn("100.0 % visible", ejk("mask", "show", heads, "--head", "1").stdout)
        self.assertIn("expected 0 to 1", ejk("mask", "show", heads, "--head", "2", status=2).stderr)

    def test_wrong_calls(self):
        for words, part in (([], "show"),
                            (["draw"], "show"),
                            (["show"], "takes one mask"),
                            (["show", CAUSAL, CAUSAL], "2 are given"),
                            (["show", "{"], "JSON"),
                            (["show", "/no/such/mask.json"], "mask.json"),
                            (["show", CAUSAL, "--blocks", "4x"], "--blocks"),
                            (["show", CAUSAL, "--blocks", "0x4"], "--blocks"),
                            (["show", CAUSAL, "--blocks", "4x4x4"], "--blocks"),
                            (["show", CAUSAL, "--blocks", "-4x4"], "--blocks"),
                            (["show", CAUSAL, "--head", "one"], "--head"),
                            (["show", CAUSAL, "--format", "gif"], "gif"),
                            (["show", CAUSAL, "--colour", "blue"], "--colour"),
                            (["show", CAUSAL, "--width", "7"], "width is 7"),
                            (["show", CAUSAL, "--size", "7"], "--size")):
            error = ejk("mask", *words, status=2).stderr
            self.assertTrue(error.startswith("ejk: "), error)
            self.assertIn(part, error)

    def test_help(self):
        self.assertIn("--blocks", ejk("mask", "--help").stdout)
        self.assertIn("--no-order", ejk("mask", "show", "--help").stdout)


if __name__ == "__main__":
    if not os.path.exists(EJK):
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
