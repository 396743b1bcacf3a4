# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests that are functions of a shell: they read this file, and sum what it has counted.
# shellcheck disable=SC2034  # they print it
passed=0 failed=0

# One test; what it printed is shown if it fails. Not to be called as a condition.
part() { # NAME COMMAND...
    local name=$1 log began=$SECONDS status
    shift
    log=$(mktemp)
    # Not as a condition: there bash goes on after a command that fails.
    (set -e && "$@") >"$log" 2>&1
    status=$?
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok   $name ($((SECONDS - began)) s)"
    else
        failed=$((failed + 1))
        echo "FAIL $name ($((SECONDS - began)) s):"
        tail -n 25 "$log" | sed 's/^/     | /'
    fi
    rm -f "$log"
}
