#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a target of the Makefile needs and that are not there yet. When all
# are there it does nothing and needs no network; on another system it says what is needed and goes on.
set -eu

build="gcc libc6-dev cmake ninja-build pkg-config libjansson-dev libcpuinfo-dev libpthreadpool-dev
       libssl-dev libsqlite3-dev libpng-dev librandom123-dev"
check="$build libcmocka-dev python3 python3-venv g++ clang clang-format clang-tidy libclang-rt-14-dev
       gcc-aarch64-linux-gnu qemu-user valgrind doxygen"

case "${1:-}" in
build) wanted=$build ;;
check) wanted=$check ;;
*)
    echo "usage: tools/setup.sh build|check" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "not Debian: make sure that these are installed: $(echo $wanted)" >&2
    exit 0
fi

missing=
for package in $wanted; do
    case "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" in
    installed*) ;;
    *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get -qq update
$sudo apt-get -qq install -y --no-install-recommends $missing
