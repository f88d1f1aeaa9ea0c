#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over what a build folder compiles of the library, the command and the examples. Without `all`, to fit into
# every run, the kernels are left out and the analyzer gives a function up after 50000 states instead of 225000: that
# takes a third of the time (3.0, 5.0 and 1.5 s become 0.6, 1.1 and 0.8). Usage: check_tidy.sh <build folder> [all]
set -eu
build=$1 which=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
set --
case "$which" in
all) filter="^$root/(src|cli|examples)/" ;;
*)
    for word in -analyzer-config max-nodes=50000; do set -- "$@" --extra-arg=-Xclang "--extra-arg=$word"; done
    filter="^$root/(src/(base|tensor|record|device|mask|sequence|numeric|mask_info|draw|ops)|cli|examples)/"
    ;;
esac
files=$(sed -n 's/^ *"file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" |
    grep -E "$filter" | sort -u)
echo "$files" | xargs -P 2 -n 1 clang-tidy -p "$build" --quiet "$@"
