# SPDX-License-Identifier: Apache-2.0
"""What a process has after many calls that it did not have before."""

import gc
import os
import sys


def resident():
    """Bytes of memory that the process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left_behind(work, watched, first, count):
    """(objects, references to what is watched, bytes) that `work(count)` leaves behind, after `work(first)`."""
    work(first)
    gc.collect()
    objects, references, size = len(gc.get_objects()), sum(map(sys.getrefcount, watched)), resident()
    work(count)
    gc.collect()
    grown = resident() - size  # before the list of all objects takes some
    return len(gc.get_objects()) - objects, sum(map(sys.getrefcount, watched)) - references, grown
