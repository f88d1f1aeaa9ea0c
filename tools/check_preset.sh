#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a preset inside another build folder, from the same sources, and with `run` runs its tests.
# Usage: check_preset.sh <preset> <folder> [run]
set -eu
cd "$(dirname "$0")/.."
[ "$1" != aarch64 ] || tools/aarch64_sysroot.sh build/aarch64-sysroot
cmake --preset "$1" -B "$2" >/dev/null
cmake --build "$2" --target all tests
[ "${3:-}" != run ] || ctest --test-dir "$2" --parallel 2 --output-on-failure --no-tests=error
