#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every public header stands alone, as C99 and as C++17, and so does a user's own record.
# Usage: check_headers.sh (compilers: $CC and $CXX, by default cc and c++)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
include=$here/../../include
warnings="-Wall -Wextra -Wpedantic -Werror -fsyntax-only"

compile() {
    ${CC:-cc} -std=c99 -x c $warnings -I"$include" "$1"
    ${CXX:-c++} -std=c++17 -x c++ $warnings -I"$include" "$1"
}

for header in "$include"/ejkernel/*.h; do
    unit=$(mktemp)
    # Twice: the guard has to hold. The typedef keeps the unit from being empty.
    name=${header##*/}
    printf '#include <ejkernel/%s>\n#include <ejkernel/%s>\ntypedef int unit;\n' "$name" "$name" >"$unit"
    compile "$unit" || { echo "$name does not stand alone" >&2; rm -f "$unit"; exit 1; }
    rm -f "$unit"
done
compile "$here/record_of_a_user.c"
