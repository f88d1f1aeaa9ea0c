#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a preset inside another build folder, from the same sources; of aarch64 with `neon` only the kernels in NEON,
# little optimised, to see that they compile.
# Usage: check_preset.sh <preset> <folder> [neon]
set -eu
cd "$(dirname "$0")/.."
[ "$1" != aarch64 ] || tools/aarch64_sysroot.sh build/aarch64-sysroot
if [ "${3:-}" = neon ]; then
    cmake --preset "$1" -B "$2" -DCMAKE_BUILD_TYPE=Debug >/dev/null
    objects=$(cmake --build "$2" -- -t targets all | sed -n 's/^\(.*_neon\.c\.o\):.*/\1/p')
    [ -n "$objects" ] || exit 1
    cmake --build "$2" --target $objects
else
    cmake --preset "$1" -B "$2" >/dev/null
    cmake --build "$2" --target all tests
fi
