# SPDX-License-Identifier: Apache-2.0
"""What tests of the command share: running it. They are called with <ejk> <source folder>."""
import json
import os
import subprocess
import sys

EJK, SOURCE = sys.argv[1], sys.argv[2]


def run(*words, **options):
    """Runs the command; the answer has returncode, stdout and stderr."""
    return subprocess.run([EJK, *words], capture_output=True, text=True, timeout=150, **options)


def ejk(*words, status=0, given=None, **environment):
    """Runs the command on a text and checks its exit status."""
    answer = run(*words, input=given, env={**os.environ, **environment})
    if answer.returncode != status:
        raise AssertionError(f"{words}: exit {answer.returncode}, expected {status}\n"
                             f"{answer.stdout}{answer.stderr}")
    return answer


def parsed(*words, **options):
    return json.loads(ejk(*words, "--json", **options).stdout)
