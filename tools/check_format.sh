#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fails if clang-format would change a C file of ours.
set -eu
cd "$(dirname "$0")/.."
find include src cli tests bench examples \( -name '*.c' -o -name '*.h' -o -name '*.inc' \) -print0 \
    2>/dev/null | xargs -0 clang-format --dry-run -Werror
