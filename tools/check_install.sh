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
unset LD_LIBRARY_PATH # the library lies where the loader does not look: the rpath has to lead there
for program in $programs; do
    cc -std=c99 "$work/source/$program.c" $(pkg-config --cflags --libs ejkernel) -lm -o "$work/$program"
    "$work/$program"
done

# Under /usr, and on demand, there is none.
DESTDIR="$work/stage" cmake --install "$build" --prefix /usr >/dev/null
staged=$(PKG_CONFIG_PATH=$(find "$work/stage" -type d -name pkgconfig) pkg-config --libs ejkernel)
without=$(pkg-config --define-variable=rpath= --libs ejkernel)
case "$staged $without" in
*rpath*)
    echo "an rpath is asked for where none is wanted: $staged; $without" >&2
    exit 1
    ;;
esac

cat >"$work/source/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(stranger LANGUAGES C)
find_package(ejkernel $(cat "$source/VERSION") REQUIRED)
foreach(program $programs)
  add_executable(\${program} \${program}.c)
  target_link_libraries(\${program} PRIVATE ejkernel::ejkernel m)
  install(TARGETS \${program})
endforeach()
EOF
cmake -G Ninja -S "$work/source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON >/dev/null
cmake --build "$work/build"
cmake --install "$work/build" --prefix "$work/installed" >/dev/null
for program in $programs; do
    "$work/build/$program"
    "$work/installed/bin/$program"
done

"$work/prefix/bin/ejk" info
