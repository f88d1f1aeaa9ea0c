#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the API pages of the public headers into <build folder>/docs; a warning fails.
# Usage: check_docs.sh <build folder>
set -eu
mkdir -p "$1/docs"
output=$(cd "$1/docs" && pwd)
cd "$(dirname "$0")/.."
{
    cat docs/Doxyfile
    echo "OUTPUT_DIRECTORY = $output"
    echo "PROJECT_NUMBER = $(cat VERSION)"
} | doxygen -
echo "$output/html/index.html"
