#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over what a build folder compiles of the library, the command and the examples; without `all`
# the kernels are left out, to fit into every run. Usage: check_tidy.sh <build folder> [all]
set -eu
build=$1
root=$(cd "$(dirname "$0")/.." && pwd)
case "${2:-}" in
all) filter="^$root/(src|cli|examples)/" ;;
*) filter="^$root/(src/(base|tensor|record|device|mask|sequence|numeric|mask_info|draw|ops)|cli|examples)/" ;;
esac
files=$(sed -n 's/^ *"file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" |
    grep -E "$filter" | sort -u)
echo "$files" | xargs -P 2 -n 1 clang-tidy -p "$build" --quiet
