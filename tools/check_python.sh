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
patience=300 # seconds for all packages
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

# Packages of PyPI, and PyTorch without CUDA from its own index where that can be reached; by uv, which takes a fraction
# of pip's time and keeps what it has fetched in its cache.
fetch() {
    if ! "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: uv; then
        "$python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
        return
    fi
    uv="$environment/bin/uv pip install --quiet --python $python -r $requirements"
    [ "$environment" = "$build/python-frameworks" ] &&
        UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=20 timeout "$patience" $uv --torch-backend cpu 2>/dev/null ||
        timeout "$patience" $uv
}

if [ -z "${EJK_TEST_PYTHON:-}" ] && ! cmp -s "$requirements" "$environment/requirements.txt"; then
    rm -rf "$environment"
    if ! python3 -m venv "$environment"; then
        echo "skipped: no virtual environment can be made" >&2
        exit 77
    fi
    if ! fetch; then
        rm -rf "$environment"
        echo "skipped: $requirements cannot be installed within $patience s" >&2
        exit 77
    fi
    cp "$requirements" "$environment/"
fi

# Into one folder, whoever else runs tests there.
"$build/ejk" info --operations --json >"$build/operations.$$.json"
"$python" "$source/tools/python_package.py" "$("$build/ejk" --version | cut -d ' ' -f 2)" \
    "$build/operations.$$.json" "$build/python/libejkernel" --link "$build"
rm "$build/operations.$$.json"
# Threads of PyTorch's that wait by spinning take the cores from other tests.
export PYTHONPATH="$build/python" PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive
exec "$python" -m pytest -q -p no:cacheprovider "$tests" "$@"
