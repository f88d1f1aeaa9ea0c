#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the Python package on the library of a build folder. Packages come from PyPI, once, into a virtual
# environment in that folder; ends with 77, skipped, where they cannot be had.
# With --frameworks, JAX, PyTorch and transformers are installed, too; without, their tests are skipped.
# Usage: check_python.sh <build folder> [--frameworks] [arguments of pytest]
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
shift
requirements=$source/python/tests/requirements.txt
environment=$build/python-environment
if [ "${1:-}" = --frameworks ]; then
    shift
    requirements=$source/python/tests/requirements-frameworks.txt
    environment=$build/python-frameworks
fi
python=$environment/bin/python

if ! cmp -s "$requirements" "$environment/requirements.txt"; then
    rm -rf "$environment"
    if ! python3 -m venv "$environment"; then
        echo "skipped: no virtual environment can be made" >&2
        exit 77
    fi
    if [ "$environment" = "$build/python-frameworks" ]; then
        # PyTorch's own index has it without CUDA; where that cannot be reached, PyPI's build takes its place.
        "$python" -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 20 --no-deps \
            --index-url https://download.pytorch.org/whl/cpu torch 2>/dev/null || true
    fi
    if ! "$python" -m pip install --quiet --disable-pip-version-check -r "$requirements"; then
        rm -rf "$environment"
        echo "skipped: $requirements cannot be installed" >&2
        exit 77
    fi
    cp "$requirements" "$environment/"
fi

"$build/ejk" info --operations --json >"$build/operations.json"
"$python" "$source/tools/python_package.py" "$build/libejkernel.so" "$build/operations.json" \
    "$build/python/libejkernel" --link
export PYTHONPATH="$build/python" PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest -q -p no:cacheprovider "$source/python/tests" "$@"
