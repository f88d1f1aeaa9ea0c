#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Unpacks Debian's libraries for 64-bit Arm into a folder, for cross builds: nothing is installed, and no package of the
# machine changes. Does nothing where the folder is complete. Usage: aarch64_sysroot.sh <folder> [more packages]
set -eu
packages="libc6 libc6-dev libgcc-s1 linux-libc-dev libjansson-dev libjansson4 libsqlite3-dev libsqlite3-0
          libssl-dev libssl3 libpthreadpool-dev libpthreadpool0 libcpuinfo-dev libcpuinfo0 libpng-dev libpng16-16
          zlib1g zlib1g-dev libcmocka-dev libcmocka0 librandom123-dev"
folder=$1
shift
[ ! -e "$folder/complete" ] || exit 0
mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache" "$folder/debs"
cd "$folder"
own="-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists=$PWD/apt/lists
     -o Dir::State::status=/dev/null -o Dir::Cache=$PWD/apt/cache -o APT::Sandbox::User="
# shellcheck disable=SC2086
{
    apt-get $own update
    (cd debs && apt-get $own download $packages "$@")
}
# Debian links /lib to /usr/lib; packages of before that still have files in /lib.
mkdir -p usr/lib
[ -e lib ] || ln -s usr/lib lib
for package in debs/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink; done
# Links to places of the target's own root are links within the folder: libm.so is one, without which libm.a is taken.
find usr -type l -lname '/*' | while read -r link; do ln -sfn "$PWD$(readlink "$link")" "$link"; done
rm -rf apt debs
touch complete
