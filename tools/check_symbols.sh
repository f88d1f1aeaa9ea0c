#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library exports ejk_* and nothing else, and calls nothing that ends the process or prints.
# Usage: check_symbols.sh <libejkernel.so>
set -eu
exported=$(nm -D --defined-only "$1" | awk '{ print $NF }')
foreign=$(echo "$exported" | grep -v '^ejk_' || true)
if [ -n "$foreign" ]; then
    echo "exported without the prefix ejk_:" $foreign
    exit 1
fi
banned=$(nm -D --undefined-only "$1" | awk '{ print $NF }' | sed 's/@.*//' |
    grep -xE 'abort|_?exit|__assert_fail|raise|(__)?v?printf(_chk)?|puts|putchar|perror|stdout|stderr' ||
    true)
if [ -n "$banned" ]; then
    echo "the library never prints and never ends the process, but uses:" $banned
    exit 1
fi
echo "$(echo "$exported" | wc -l) symbols, all ejk_*"
