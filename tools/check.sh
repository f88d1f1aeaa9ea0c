#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a build folder and ends with the line `N passed, N failed, N skipped`, counted from
# ctest's own record; before it says how long that took, since the second in <build folder>/check.start if there is one,
# as `make check` leaves it, building included. Fails if a test failed or none ran. The record is check.xml, the line
# also in check.txt, or of the name that EJK_CHECK_RECORD gives in place of check.
# Usage: check.sh <build folder> [ctest options]
set -u
limit=15 # minutes that `make check` may take from nothing on two cores
build=$(cd "$1" && pwd) || exit 2
shift
record=$build/${EJK_CHECK_RECORD:-check}.xml
whole=$(cat "$build/check.start" 2>/dev/null)
start=${whole:-$(date +%s)}
rm -f "$record" "${record%.xml}.txt" "$build/check.start"
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
seconds=$(($(date +%s) - start))
echo "$((seconds / 60)) min $((seconds % 60)) s${whole:+ with building, $limit min are allowed from nothing on 2 cores}"
if [ -n "$whole" ] && [ "$seconds" -gt $((limit * 60)) ]; then
    echo "warning: that is too long; $record has the time of each test" >&2
fi
echo "$passed passed, $failed failed, $skipped skipped" | tee "${record%.xml}.txt"
exit "$status"
