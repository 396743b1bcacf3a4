#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs one at a time and adds up the totals in their last lines. Each may run for TEST_SECONDS (300), and runs
# under TEST_WRAPPER if that is set.
set -u
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in "$@"; do
    echo "---- $program"
    status=0
    # shellcheck disable=SC2086 # a command and its options
    timeout --kill-after=5 "${TEST_SECONDS:-300}" ${TEST_WRAPPER-} "$program" >"$log" 2>&1 || status=$?
    cat "$log"
    counts=$(sed -n '$s/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log")
    # shellcheck disable=SC2086 # three numbers
    set -- $counts
    if [ $# -ne 3 ]; then
        echo "FAIL $program: ended with status $status and no result"
        set -- 0 1 0
    elif [ "$status" -ne 0 ] && [ "$2" -eq 0 ]; then
        echo "FAIL $program: status $status although no case failed"
        set -- "$1" 1 "$3"
    fi
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
