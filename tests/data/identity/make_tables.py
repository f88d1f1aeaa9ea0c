# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of this folder from Python's own repr() and json. See README.md."""

import json
import random
import struct

random.seed(18)


def numbers():
    yield from (0.0, 1.0, -1.0, 0.1, 0.125, 1 / 3, 2 / 3, 1e-4, 1e-5, 9.5e-5, 1.5e-5, 1e15, 1e16,
                1e17, 1.5e16, 1e22, 1e23, 123456789012345680.0, 9007199254740993.0, 9999999999999998.0, 5e-324,
                2.2250738585072014e-308, 1.7976931348623157e308, 3.141592653589793, 100.0, 1e100, 1e-100)
    for exponent in range(-1074, 1024):  # where the doubles' distance changes
        value = 2.0**exponent
        digits = len(repr(value).split("e")[0].replace(".", ""))
        if exponent % 9 == 0 or float(f"{value:.{digits - 1}e}") != value:
            yield value
    for _ in range(250):
        value = struct.unpack("<d", random.randbytes(8))[0]
        if value - value == 0:
            yield value
    for _ in range(150):
        yield random.randint(-10**6, 10**6) / 10 ** random.randint(0, 12)
    for _ in range(60):
        yield random.randint(1, 4000) * 5e-324


TEXTS = [
    "null", "true", "[]", "{}", "0", "-0", "-0.0", "1.0", "1e5", "1E30", "0.1e-6",
    "9223372036854775807", "-9223372036854775808", '""', '"a\\/b"', '"\\u00e9\\u20ac\\ud83d\\ude00"',
    '"é€😀"', '"\\"\\\\\\b\\f\\n\\r\\t"', '"\\u0000\\u001f\\u007f\x7f~ "', '"<script>&\'"', '"\u2028\uffff"',
    ' { "b" : [ 1 , 2.50 , { } ] , "a" : null } ', '{"b":1,"a":2,"B":3,"":4,"aa":5,"a b":6}',
    '{"z":{"y":{"x":[[[]]],"w":-1.5e-7}},"é":1,"😀":2,"\uffff":3,"e":4}',
    '[1e16,1e15,123456789.123456789,1e-5,0.0001,-1e-310]', '{"block_size":128,"num_warps":4}',
]

with open("floats.txt", "w", encoding="ascii") as file:
    for value in numbers():
        file.write(f"{value.hex()} {value!r}\n")
with open("texts.txt", "w", encoding="utf-8") as file:
    for text in TEXTS:
        file.write(f"{text}\t{json.dumps(json.loads(text), sort_keys=True, separators=(',', ':'))}\n")
