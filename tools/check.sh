#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a build folder and ends with the line `N passed, N failed, N skipped`, counted from
# ctest's own record. Fails if a test failed or none ran. Usage: check.sh <build folder> [ctest options]
set -u
build=$(cd "$1" && pwd) || exit 2
shift
record=$build/check.xml
rm -f "$record"
ctest --test-dir "$build" --parallel 2 --output-on-failure --no-tests=error \
    --output-junit "$record" "$@"
status=$?

# A test that could not be started at all has no verdict in the record: it failed.
count() { cat "$record" 2>/dev/null | grep -cE "$1"; }
passed=$(count '<testcase .* status="run"')
skipped=$(count '<skipped message="SKIP_RETURN_CODE')
failed=$(($(count '<testcase ') - passed - skipped))
if [ "$passed" -eq 0 ] || [ "$failed" -gt 0 ]; then
    status=1
elif [ "$status" -ne 0 ]; then
    failed=1 # ctest itself went wrong
fi
echo "$passed passed, $failed failed, $skipped skipped" | tee "$build/check.txt"
exit "$status"
