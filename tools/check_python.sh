#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the Python package on the library of a build folder. Packages come from PyPI, once, into a virtual
# environment in that folder; ends with 77, skipped, where they cannot be had.
# With --frameworks, JAX, PyTorch and transformers are installed, too; without, their tests are skipped. With --gpu, JAX
# and PyTorch for CUDA are, and only what needs a GPU is run. EJK_TEST_PYTHON names an interpreter that has all packages
# already: nothing is installed then.
# Usage: check_python.sh <build folder> [--frameworks | --gpu] [arguments of pytest]
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
shift
requirements=$source/python/tests/requirements.txt
environment=$build/python-environment
tests=$source/python/tests
case "${1:-}" in
--frameworks)
    shift
    requirements=$source/python/tests/requirements-frameworks.txt
    environment=$build/python-frameworks
    ;;
--gpu)
    shift
    requirements=$source/python/tests/requirements-gpu.txt
    environment=$build/python-gpu
    tests=$source/python/tests/test_gpu.py
    if "$build/ejk" info | grep "^gpu *none" >&2; then
        echo "skipped: what needs a GPU" >&2
        exit 77
    fi
    ;;
esac
python=${EJK_TEST_PYTHON:-$environment/bin/python}

if [ -z "${EJK_TEST_PYTHON:-}" ] && ! cmp -s "$requirements" "$environment/requirements.txt"; then
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
exec "$python" -m pytest -q -p no:cacheprovider "$tests" "$@"
