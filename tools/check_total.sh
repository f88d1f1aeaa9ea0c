#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Adds up what the runs of check.sh in a build folder counted, as one line `N passed, N failed, N skipped`. No run at
# all, as where the build fails, counts as one failure.
# Usage: check_total.sh <build folder>
cat "$1"/check*.txt 2>/dev/null | awk '
    { passed += $1; failed += $3; skipped += $5 }
    END { print passed + 0 " passed, " (NR ? failed : 1) " failed, " skipped + 0 " skipped" }'
