#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the small sample files of tests/data/npy and the first seeds of the fuzz targets.

The bytes are laid out here by hand, from the format's description, so that they do not depend on what a
version of NumPy happens to write. Usage: tools/make_npy_samples.py [repository root]
"""

import json
import pathlib
import struct
import sys


def npy(descr, shape, data, version=1, fortran=False, header=None):
    text = header or "{'descr': %r, 'fortran_order': %r, 'shape': %r, }" % (descr, fortran, shape)
    length_format, preamble = ("<H", 10) if version == 1 else ("<I", 12)
    text += " " * (-(preamble + len(text) + 1) % 64) + "\n"
    length = struct.pack(length_format, len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode("ascii") + data


def bfloat16(*values):
    return b"".join(struct.pack("<f", value)[2:] for value in values)


NPY = {
    "v1_f4": npy("<f4", (2, 3), struct.pack("<6f", *range(6))),
    "v2_i8": npy("<i8", (3,), struct.pack("<3q", -(2**63), -1, 2**63 - 1), version=2),
    "v3_f2": npy("<f2", (2, 2), struct.pack("<4e", 0.5, -1, 65504, 2**-24), version=3),
    "big_endian_f8": npy(">f8", (2,), struct.pack(">2d", 0.1, -2.5)),
    "big_endian_i4": npy(">i4", (3,), struct.pack(">3i", 1, -2, 2**31 - 1)),
    "big_endian_i2": npy(">i2", (2,), struct.pack(">2h", 258, -2)),
    "fortran_f4": npy("<f4", (2, 3), struct.pack("<6f", 0, 3, 1, 4, 2, 5), fortran=True),
    "bool": npy("|b1", (3,), b"\x01\x00\x01"),
    "i1": npy("|i1", (2,), struct.pack("2b", -128, 127)),
    "u1": npy("|u1", (2,), bytes([0, 255])),
    "i2": npy("<i2", (1, 1), struct.pack("<h", -32768)),
    "scalar_f8": npy("<f8", (), struct.pack("<d", 0.1)),
    "empty_f4": npy("<f4", (0, 3), b""),
    "bfloat16": npy("<V2", (3,), bfloat16(1, -2, 0.5)),
    "bfloat16_raw": npy("|V2", (3,), bfloat16(1, -2, 0.5)),
    "bfloat16_named": npy("bfloat16", (3,), bfloat16(1, -2, 0.5)),
    "odd_header": npy(
        None,
        None,
        struct.pack("<2i", 7, -7),
        header='\n{"shape" :( 2 ,1 , ),\t"fortran_order":False ,"descr":"<i4"}\n\n',
    ),
}


def safetensors(header, data):
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    return struct.pack("<Q", len(text)) + text + data


SAFETENSORS = {
    "empty": safetensors({}, b""),
    "two": safetensors(
        {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]},
            "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        },
        struct.pack("<f", 1.5) + bfloat16(1, 2),
    ),
    "unsupported": safetensors(
        {
            "f8": {"dtype": "F8_E4M3", "shape": [1, 3], "data_offsets": [0, 3]},
            "deep": {"dtype": "U8", "shape": [1] * 9, "data_offsets": [3, 4]},
        },
        bytes(4),
    ),
}


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    for folder, files, suffix in (
        ("tests/data/npy", NPY, ".npy"),
        ("tests/fuzz/corpus/npy", NPY, ".npy"),
        ("tests/data/safetensors", SAFETENSORS, ".safetensors"),
        ("tests/fuzz/corpus/safetensors", SAFETENSORS, ".safetensors"),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (root / folder / (name + suffix)).write_bytes(content)


if __name__ == "__main__":
    main()
