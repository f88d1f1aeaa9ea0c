#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a fresh folder and uses it from outside as a stranger would: examples are built by
# pkg-config and by find_package from there, and run. Usage: check_install.sh <build folder>
set -eu
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
work=$build/install-test
rm -rf "$work"
mkdir -p "$work/source"
cmake --install "$build" --prefix "$work/prefix" >/dev/null

programs="flash_attention custom_kernel tuned_kernel"
for program in $programs; do
    [ -f "$source/examples/$program.c" ] || exit 77
    cp "$source/examples/$program.c" "$work/source/"
done

PKG_CONFIG_PATH=$(find "$work/prefix" -type d -name pkgconfig)
export PKG_CONFIG_PATH
library_path=$(pkg-config --variable=libdir ejkernel)
for program in $programs; do
    cc -std=c99 "$work/source/$program.c" $(pkg-config --cflags --libs ejkernel) -lm -o "$work/$program"
    LD_LIBRARY_PATH=$library_path "$work/$program"
done

cat >"$work/source/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(stranger LANGUAGES C)
find_package(ejkernel $(cat "$source/VERSION") REQUIRED)
foreach(program $programs)
  add_executable(\${program} \${program}.c)
  target_link_libraries(\${program} PRIVATE ejkernel::ejkernel m)
endforeach()
EOF
cmake -G Ninja -S "$work/source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build"
for program in $programs; do
    "$work/build/$program"
done

"$work/prefix/bin/ejk" info
